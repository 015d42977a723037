/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_env.c — `zinc env`: what this machine and build can do. A row says what it is needed for and,
 * where something is missing, the way to it. */
#include "cli/cmd_env.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/sys.h"
#include "kernels/kernels.h"
#include "zinc/version.h"

#define VALUE_BYTES 512

typedef struct env_report {
    bool json;
    void *program; /* handle of the running program, to ask which libraries are in it */
} env_report;

/* One line of the report. unit "bytes": value is a whole number of them; "": it is text. */
typedef struct env_row {
    const char *name, *unit, *needed_for, *hint;
    char value[VALUE_BYTES];
} env_row;

static void set_value(env_row *row, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void set_value(env_row *row, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(row->value, sizeof row->value, format, list);
    va_end(list);
}

static zinc_status append_json(zn_buf *buf, const env_row *row)
{
    const struct {
        const char *key, *text;
    } parts[] = {{"\"name\":", row->name},
                 {",\"value\":", row->value},
                 {",\"unit\":", row->unit},
                 {",\"needed_for\":", row->needed_for},
                 {",\"hint\":", row->hint}};
    ZN_TRY(zn_buf_puts(buf, "{"));
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        ZN_TRY(zn_buf_puts(buf, parts[i].key));
        if (i == 1 && row->unit[0])
            ZN_TRY(zn_buf_puts(buf, row->value));
        else
            ZN_TRY(zn_json_append_string(buf, parts[i].text, strlen(parts[i].text)));
    }
    return zn_buf_puts(buf, "}\n");
}

static zinc_status append_text(zn_buf *buf, const env_row *row)
{
    ZN_TRY(zn_buf_printf(buf, "%-18s", row->name));
    if (strcmp(row->unit, "bytes") == 0)
        ZN_TRY(zn_buf_printf(buf, "%.1f GiB", strtod(row->value, NULL) / 0x1p30));
    else
        ZN_TRY(zn_buf_puts(buf, row->value));
    if (row->hint[0])
        ZN_TRY(zn_buf_printf(buf, "\n%-18s  for %s: %s", "", row->needed_for, row->hint));
    return zn_buf_puts(buf, "\n");
}

static zinc_status print_row(const env_report *report, const env_row *row)
{
    zn_buf buf = {0};
    const zinc_status status = report->json ? append_json(&buf, row) : append_text(&buf, row);
    if (status == ZINC_OK)
        fputs(buf.data, stdout);
    zn_buf_fini(&buf);
    return status;
}

/* Copy what follows "key" and a colon in a file such as /proc/cpuinfo; false if it is not there. */
static bool read_field(const char *path, const char *key, char out[VALUE_BYTES])
{
    char line[VALUE_BYTES];
    bool found = false;
    FILE *file = fopen(path, "r");
    while (file && !found && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || !colon)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(out, VALUE_BYTES, "%s", colon);
        found = true;
    }
    if (file)
        fclose(file);
    return found;
}

static void vector_features(env_row *row)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    const struct {
        int has;
        const char *name;
    } features[] = {{__builtin_cpu_supports("avx2"), "avx2"},
                    {__builtin_cpu_supports("fma"), "fma"},
                    {__builtin_cpu_supports("avx512f"), "avx512f"},
                    {__builtin_cpu_supports("avx512bw"), "avx512bw"},
                    {__builtin_cpu_supports("avx512vl"), "avx512vl"},
                    {__builtin_cpu_supports("avx512vnni"), "avx512vnni"},
                    {__builtin_cpu_supports("avx512bf16"), "avx512bf16"}};
    for (size_t i = 0; i < sizeof features / sizeof features[0]; i++)
        if (features[i].has) {
            const size_t n = strlen(row->value);
            snprintf(row->value + n, sizeof row->value - n, "%s%s", n ? " " : "", features[i].name);
        }
#endif
    if (!row->value[0])
        set_value(row, "none");
}

static zinc_status report_machine(const env_report *report)
{
    struct utsname names;
    env_row os = {.name = "os", .unit = "", .needed_for = "everything", .hint = ""};
    if (uname(&names) == 0)
        set_value(&os, "%s %s %s", names.sysname, names.release, names.machine);
    else
        set_value(&os, "unknown");
    ZN_TRY(print_row(report, &os));

    env_row cpu = {.name = "cpu", .unit = "", .needed_for = "training", .hint = ""};
    if (!read_field("/proc/cpuinfo", "model name", cpu.value))
        set_value(&cpu, "unknown");
    ZN_TRY(print_row(report, &cpu));

    env_row vector = {.name = "cpu_features", .unit = "", .needed_for = "fast kernels", .hint = ""};
    vector_features(&vector);
    ZN_TRY(print_row(report, &vector));

    env_row isa = {.name = "isa", .unit = "", .needed_for = "fast kernels", .hint = ""};
    const bool has_kernels = zn_kernels_for(zn_sys_isa()) != NULL;
    set_value(&isa, "%s", zn_isa_name(has_kernels ? zn_sys_isa() : ZN_ISA_REF));
    if (!has_kernels)
        isa.hint = "plain C kernels: slow; build with -DZINC_SIMD=ON";
    else if (zn_sys_isa() == ZN_ISA_REF)
        isa.hint =
            "plain C kernels: slow; this needs a CPU with AVX2 (and ZINC_ISA not set to ref)";
    ZN_TRY(print_row(report, &isa));

    env_row cores = {.name = "cores", .unit = "cores", .needed_for = "ranks x threads", .hint = ""};
    set_value(&cores, "%d", zn_sys_cores());
    return print_row(report, &cores);
}

static zinc_status report_memory(const env_report *report)
{
    const double physical = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const int64_t usable = zn_sys_memory_bytes();
    env_row memory = {
        .name = "memory", .unit = "bytes", .needed_for = "model and optimizer", .hint = ""};
    set_value(&memory, "%.0f", physical);
    ZN_TRY(print_row(report, &memory));

    env_row limit = {
        .name = "memory_limit", .unit = "bytes", .needed_for = "model and optimizer", .hint = ""};
    set_value(&limit, "%lld", (long long)usable);
    if ((double)usable < physical)
        limit.hint = "a control group allows less than the machine has";
    ZN_TRY(print_row(report, &limit));

    env_row huge = {
        .name = "huge_pages", .unit = "", .needed_for = "speed of large buffers", .hint = ""};
    zn_buf text = {0};
    if (zn_fs_read("/sys/kernel/mm/transparent_hugepage/enabled", 4096, &text) == ZINC_OK)
        set_value(&huge, "%.*s", (int)strcspn(text.data, "\n"), text.data);
    else
        set_value(&huge, "unknown");
    zn_buf_fini(&text);
    if (strstr(huge.value, "[never]"))
        huge.hint = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
    ZN_TRY(print_row(report, &huge));

    struct rlimit lock = {0};
    env_row locked = {
        .name = "locked_memory", .unit = "", .needed_for = "pinned offload buffers", .hint = ""};
    if (getrlimit(RLIMIT_MEMLOCK, &lock) != 0)
        set_value(&locked, "unknown");
    else if (lock.rlim_cur == RLIM_INFINITY)
        set_value(&locked, "unlimited");
    else
        set_value(&locked, "%.1f MiB", (double)lock.rlim_cur / 0x1p20);
    if (lock.rlim_cur < ((rlim_t)1 << 26))
        locked.hint = "raise it with 'ulimit -l' or /etc/security/limits.conf";
    return print_row(report, &locked);
}

/* Look a library's function up in the running program, so that the report says what is really
 * linked and loaded, whatever the build was asked for. The copy is the way ISO C allows to make a
 * function pointer of dlsym's result. */
static bool find_function(const env_report *report, const char *name, void *function_pointer)
{
    void *symbol = report->program ? dlsym(report->program, name) : NULL;
    memcpy(function_pointer, &symbol, sizeof symbol);
    return symbol != NULL;
}

static zinc_status report_gemm(const env_report *report)
{
    const int *(*dnnl_version_fn)(void) = NULL; /* dnnl_version_t begins with major, minor, patch */
    env_row row = {.name = "onednn", .unit = "", .needed_for = "fast matrix products", .hint = ""};
    if (find_function(report, "dnnl_version", &dnnl_version_fn)) {
        const int *v = dnnl_version_fn();
        set_value(&row, "%d.%d.%d", v[0], v[1], v[2]);
    } else {
        set_value(&row, "not in this build");
        row.hint = "install libdnnl-dev and build with -DZINC_DNNL=ON";
    }
    return print_row(report, &row);
}

static zinc_status report_mpi(const env_report *report)
{
    int (*version_fn)(char *, int *) = NULL;
    env_row row = {.name = "mpi",
                   .unit = "",
                   .needed_for = "ranks in several processes or on several machines",
                   .hint = ""};
    if (find_function(report, "MPI_Get_library_version", &version_fn)) {
        char text[8192] = ""; /* MPI_MAX_LIBRARY_VERSION_STRING is 256 to 8192 by implementation */
        int n = 0;
        version_fn(text, &n);
        set_value(&row, "%.*s", (int)strcspn(text, ",\n"), text);
    } else {
        set_value(&row, "not in this build");
        row.hint = "install libopenmpi-dev and build with -DZINC_MPI=ON; one machine needs no MPI";
    }
    return print_row(report, &row);
}

static zinc_status report_openmp(const env_report *report)
{
    int (*threads_fn)(void) = NULL;
    env_row row = {.name = "openmp", .unit = "", .needed_for = "threads inside a rank", .hint = ""};
    if (find_function(report, "omp_get_max_threads", &threads_fn)) {
        set_value(&row, "up to %d threads", threads_fn());
    } else {
        set_value(&row, "not in this build");
        row.hint = "build with -DZINC_OPENMP=ON";
    }
    return print_row(report, &row);
}

static zinc_status report_uring(const env_report *report)
{
    void *(*probe_fn)(void) = NULL;
    void (*free_fn)(void *) = NULL;
    env_row row = {
        .name = "io_uring", .unit = "", .needed_for = "several disk requests at once", .hint = ""};
    if (!find_function(report, "io_uring_get_probe", &probe_fn) ||
        !find_function(report, "io_uring_free_probe", &free_fn)) {
        set_value(&row, "not in this build");
        row.hint = "install liburing-dev and build with -DZINC_URING=ON; offload works without it";
        return print_row(report, &row);
    }
    void *probe = probe_fn();
    set_value(&row, "%s", probe ? "yes" : "refused by the kernel");
    if (probe)
        free_fn(probe);
    else
        row.hint = "sysctl kernel.io_uring_disabled=0, or a container's seccomp profile; offload "
                   "works without it, one request at a time";
    return print_row(report, &row);
}

static zinc_status report_text_libraries(const env_report *report)
{
    int (*pcre2_fn)(uint32_t, void *) = NULL;
    const char *(*utf8proc_fn)(void) = NULL;
    const uint32_t pcre2_config_version = 11; /* PCRE2_CONFIG_VERSION */
    env_row json = {.name = "jansson", .unit = "", .needed_for = "JSON files", .hint = ""};
    set_value(&json, "%s", jansson_version_str());
    ZN_TRY(print_row(report, &json));

    env_row pcre2 = {.name = "pcre2", .unit = "", .needed_for = "tokenizers", .hint = ""};
    if (!find_function(report, "pcre2_config_8", &pcre2_fn))
        set_value(&pcre2, "not in this build");
    else if (pcre2_fn(pcre2_config_version, NULL) < (int)sizeof pcre2.value)
        pcre2_fn(pcre2_config_version, pcre2.value);
    ZN_TRY(print_row(report, &pcre2));

    env_row utf8 = {.name = "utf8proc", .unit = "", .needed_for = "tokenizers", .hint = ""};
    if (find_function(report, "utf8proc_version", &utf8proc_fn))
        set_value(&utf8, "%s", utf8proc_fn());
    else
        set_value(&utf8, "not in this build");
    return print_row(report, &utf8);
}

/* The environment variables that Zinc reads. */
static zinc_status report_variables(const env_report *report)
{
    static const struct {
        const char *name, *needed_for;
    } variables[] = {
        {"ZINC_LOG", "what is logged: error, warn, info, debug, trace; 'info,comm=debug'"},
        {"ZINC_HEARTBEAT_FILE", "file that zinc train touches every step (set by zinc launch)"},
        {"ZINC_ISA", "at most these kernels: ref, avx2, avx512, avx512_bf16, amx"},
        {"ZINC_GUARD_DEVICE", "1: a stand-in device's memory faults under host code (test builds)"},
        {"HF_HOME", "where --model org/name is looked up (in its folder hub)"},
        {"HF_HUB_CACHE", "the same, the folder itself"},
    };
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = getenv(variables[i].name);
        env_row row = {.name = variables[i].name,
                       .unit = "",
                       .needed_for = variables[i].needed_for,
                       .hint = ""};
        set_value(&row, "%s", value ? value : "(not set)");
        ZN_TRY(print_row(report, &row));
    }
    return ZINC_OK;
}

static zinc_status report_all(const env_report *report)
{
    env_row version = {.name = "zinc", .unit = "", .needed_for = "everything", .hint = ""};
    env_row device = {.name = "devices", .unit = "", .needed_for = "training", .hint = ""};
    set_value(&version, "%s", zinc_version());
    set_value(&device, "cpu");
    ZN_TRY(print_row(report, &version));
    ZN_TRY(print_row(report, &device));
    ZN_TRY(report_machine(report));
    ZN_TRY(report_memory(report));
    ZN_TRY(report_gemm(report));
    ZN_TRY(report_openmp(report));
    ZN_TRY(report_mpi(report));
    ZN_TRY(report_uring(report));
    ZN_TRY(report_text_libraries(report));
    return report_variables(report);
}

static zinc_status refuse_remote(const zn_args *args)
{
    static const char *const names[] = {"launcher", "launcher_args", "ssh_port", "connect_timeout"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (zn_args_given(args, names[i]))
            ZN_FAIL(ZINC_E_INVALID, "--%s goes with --hostfile", names[i]);
    return ZINC_OK;
}

static int run_env(const zn_args *args)
{
    if (zn_args_given(args, "hostfile"))
        return zn_env_hosts(args);
    if (refuse_remote(args) != ZINC_OK)
        return zn_cli_fail("env", ZINC_E_INVALID);
    env_report report = {.json = zn_args_flag(args, "json", false)};
    report.program = dlopen(NULL, RTLD_LAZY);
    const zinc_status status = report_all(&report);
    if (report.program)
        dlclose(report.program);
    return status == ZINC_OK ? 0 : zn_cli_fail("env", status);
}

static const zn_option env_options[] = {
    {.name = "json", .kind = ZN_OPTION_FLAG, .help = "one JSON object a row on stdout"},
    {.name = "hostfile",
     .kind = ZN_OPTION_VALUE,
     .metavar = "F",
     .help = "ask every host of F (as zinc launch does) and print what differs"},
    {.name = "launcher",
     .kind = ZN_OPTION_VALUE,
     .metavar = "NAME",
     .default_text = "ssh",
     .help = "with --hostfile: how hosts are reached, as in zinc launch"},
    {.name = "launcher_args",
     .kind = ZN_OPTION_VALUE,
     .metavar = "WORDS",
     .help = "with --hostfile: more arguments for it"},
    {.name = "ssh_port",
     .kind = ZN_OPTION_VALUE,
     .metavar = "PORT",
     .default_text = "ssh's own",
     .help = "with --hostfile: port of the hosts' ssh servers"},
    {.name = "connect_timeout",
     .kind = ZN_OPTION_VALUE,
     .metavar = "SECONDS",
     .default_text = "20",
     .help = "with --hostfile: longest wait for a host to answer"},
};

const zn_command zn_command_env = {
    .name = "env",
    .summary = "what this machine and build can do, and what is missing",
    .positional = "",
    .options = env_options,
    .n_options = sizeof env_options / sizeof env_options[0],
    .run = run_env,
};
