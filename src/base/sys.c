/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "base/sys.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

#if defined(__x86_64__)
/* Tiles are large: Linux saves them at a switch only for processes that asked. */
static bool may_use_tiles(void)
{
#if defined(SYS_arch_prctl)
    const long arch_req_xcomp_perm = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, arch_req_xcomp_perm, tile_data) == 0;
#else
    return false;
#endif
}

/* What a CPU with AVX-512 has for bf16. */
static zn_isa bf16_isa(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1))
        return ZN_ISA_AVX512;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1))
        return ZN_ISA_AVX512_BF16;
    return may_use_tiles() ? ZN_ISA_AMX : ZN_ISA_AVX512_BF16;
}
#endif

static zn_isa cpu_isa(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return bf16_isa();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return ZN_ISA_AVX2;
#endif
    return ZN_ISA_REF;
}

zn_isa zn_sys_isa(void)
{
    zn_isa isa = cpu_isa();
    const char *wish = getenv("ZINC_ISA");
    for (zn_isa i = ZN_ISA_REF; wish && i < isa; i++)
        if (strcmp(wish, zn_isa_name(i)) == 0)
            isa = i;
    return isa;
}

const char *zn_sys_env(const char *name)
{
    return getenv(name);
}

const char *zn_isa_name(zn_isa isa)
{
    static const char *const names[] = {"ref", "avx2", "avx512", "avx512_bf16", "amx"};
    return names[isa];
}

/* First number of a one-line file such as /sys/fs/cgroup/memory.max; -1 if there is none. */
static double read_number(const char *path, double *second)
{
    double value = -1;
    FILE *file = fopen(path, "r");
    if (!file)
        return -1;
    if (fscanf(file, "%lf %lf", &value, second) < 1)
        value = -1; /* "max" */
    fclose(file);
    return value;
}

int zn_sys_cores(void)
{
    cpu_set_t set;
    int cores = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cores = CPU_COUNT(&set);
    double period = 0;
    const double quota = read_number("/sys/fs/cgroup/cpu.max", &period);
    if (quota > 0 && period > 0 && quota / period < cores)
        cores = (int)(quota / period + 0.999);
    return cores > 0 ? cores : 1;
}

int64_t zn_sys_memory_bytes(void)
{
    const int64_t physical = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    double unused = 0;
    const double limit = read_number("/sys/fs/cgroup/memory.max", &unused);
    return limit > 0 && limit < (double)physical ? (int64_t)limit : physical;
}

static int64_t status_kib(const char *key)
{
    char line[256];
    long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), ": %lld", &kib) == 1)
            break;
    fclose(file);
    return (int64_t)kib;
}

int64_t zn_sys_rss_bytes(void)
{
    return status_kib("VmRSS") * 1024;
}

int64_t zn_sys_rss_peak_bytes(void)
{
    return status_kib("VmHWM") * 1024;
}

double zn_sys_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct timespec zn_sys_deadline(int64_t timeout_ms)
{
    const int64_t most_ms = (int64_t)1000000000 * 1000; /* so that tv_sec cannot overflow */
    const int64_t ms = timeout_ms < 0 ? 0 : timeout_ms < most_ms ? timeout_ms : most_ms;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(ms / 1000);
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

void zn_sys_sleep(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}
