/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_config.c — `zinc config`: check and resolve a ds_config.json, list the keys. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/fs.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/config_new.h"
#include "config/config.h"

#define MAX_WORLD 1000000
#define MAX_HIDDEN ((int64_t)1 << 30)
#define MAX_ARGUMENTS 32

/* The Trainer arguments that were given. */
static zinc_status apply_arguments(const zn_args *args, zn_config *config)
{
    zn_config_argument given[MAX_ARGUMENTS];
    int n = 0;
    for (int i = 0; i < zn_config_n_arguments() && n < MAX_ARGUMENTS; i++) {
        const char *name = zn_config_argument_name(i);
        if (zn_args_given(args, name))
            given[n++] = (zn_config_argument){.name = name, .value = zn_args_get(args, name)};
    }
    return zn_config_override(config, given, n);
}

static int64_t largest(const json_t *sizes)
{
    int64_t size = 0;
    for (size_t i = 0; i < json_array_size(sizes); i++) {
        const int64_t one = json_integer_value(json_array_get(sizes, i));
        size = one > size ? one : size;
    }
    return size;
}

/* hidden_size, else the largest of hidden_sizes, else the same under text_config: the Trainer's
 * order. 0 if there is none. */
static int64_t hidden_size_of(const json_t *model)
{
    const int64_t size = json_integer_value(json_object_get(model, "hidden_size"));
    const json_t *inner = json_object_get(model, "text_config");
    if (size > 0)
        return size;
    const int64_t of_list = largest(json_object_get(model, "hidden_sizes"));
    if (of_list > 0)
        return of_list;
    const int64_t of_gpt2 = json_integer_value(json_object_get(model, "n_embd"));
    if (of_gpt2 > 0)
        return of_gpt2;
    return inner ? hidden_size_of(inner) : 0;
}

static zinc_status read_hidden_size(const char *model_dir, int64_t *out)
{
    char *path = NULL;
    json_t *model = NULL;
    ZN_TRY(zn_fs_join(model_dir, "config.json", &path));
    const zinc_status status = zn_json_load(path, &model);
    zn_free(path);
    ZN_TRY(status);
    const int64_t size = hidden_size_of(model);
    json_decref(model);
    if (size < 0 || size > MAX_HIDDEN)
        ZN_FAIL(ZINC_E_FORMAT, "%s/config.json: hidden_size %lld is not possible", model_dir,
                (long long)size);
    *out = size;
    return ZINC_OK;
}

static zinc_status read_facts(const zn_args *args, zn_config_facts *facts)
{
    const char *model = zn_args_get(args, "model_name_or_path");
    ZN_TRY(zn_args_int(args, "world_size", 1, MAX_WORLD, &facts->world_size));
    if (model)
        ZN_TRY(read_hidden_size(model, &facts->hidden_size));
    return zn_args_int(args, "hidden_size", 1, MAX_HIDDEN, &facts->hidden_size);
}

/* The document of a file that cannot even be read. */
static zinc_status print_unreadable(void)
{
    zn_buf buf = {0};
    const char *message = zinc_last_error();
    zinc_status status;
    ZN_TRY_GOTO(zn_buf_puts(&buf, "{\"ok\":false,\"errors\":[{\"path\":\"\",\"line\":null,"
                                  "\"column\":null,\"message\":"));
    ZN_TRY_GOTO(zn_json_append_string(&buf, message, strlen(message)));
    ZN_TRY_GOTO(zn_buf_puts(&buf, ",\"hint\":null}]}\n"));
    fputs(buf.data, stdout);
fail:
    zn_buf_fini(&buf);
    return status;
}

/* Resolved values on stdout; notes and errors on stderr unless they are in the document. */
static zinc_status print_result(const zn_config *config, bool json)
{
    zn_buf buf = {0};
    const int n_errors = zn_config_n_errors(config);
    zinc_status status = ZINC_OK;
    if (json)
        status = zn_config_append_json(config, &buf);
    else if (n_errors == 0)
        status = zn_config_append_table(config, &buf);
    if (status == ZINC_OK && buf.data)
        printf("%s%s", buf.data, json ? "\n" : "");
    zn_buf_fini(&buf);
    for (int i = 0; !json && i < n_errors; i++)
        fprintf(stderr, "%s\n", zn_config_error(config, i));
    for (int i = 0; !json && i < zn_config_n_notes(config); i++)
        fprintf(stderr, "note: %s\n", zn_config_note(config, i));
    return status;
}

static zinc_status write_plain(const zn_config *config, const char *path)
{
    zn_buf buf = {0};
    zinc_status status = zn_config_append_plain(config, &buf);
    if (status == ZINC_OK)
        status = zn_fs_write_atomic(path, buf.data, buf.n);
    zn_buf_fini(&buf);
    return status;
}

static bool ends_in(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n >= m && strcasecmp(path + n - m, end) == 0;
}

/* An accelerate YAML by its name, or the user's own by the word "default"; else a ds_config.json.
 */
static zinc_status load_any(const char *path, zn_config **out)
{
    if (strcmp(path, "default") == 0 || ends_in(path, ".yaml") || ends_in(path, ".yml"))
        return zn_config_load_accelerate(path, NULL, out);
    return zn_config_load(path, out);
}

/* Load, fill, resolve; E_CONFIG leaves the errors in the configuration. */
static zinc_status resolve(const zn_args *args, const char *path, zn_config **out)
{
    zn_config_facts facts = {0};
    ZN_TRY(read_facts(args, &facts));
    const zinc_status loaded = load_any(path, out);
    if (!*out)
        return loaded;
    const zinc_status filled = apply_arguments(args, *out);
    if (filled != ZINC_OK)
        return filled;
    if (loaded != ZINC_OK)
        return loaded;
    zn_config_facts_from_accelerate(*out, &facts);
    return zn_config_resolve(*out, &facts);
}

static zinc_status check_usage(const zn_args *args)
{
    const char *reader = zn_args_get(args, "for");
    if (zn_args_n_positional(args) != 2)
        ZN_FAIL(ZINC_E_INVALID, "which file? zinc config check FILE");
    if (reader && strcmp(reader, "transformers") != 0)
        ZN_FAIL(ZINC_E_INVALID, "--for takes \"transformers\", found \"%s\"", reader);
    if ((reader != NULL) != zn_args_given(args, "output"))
        ZN_FAIL(ZINC_E_INVALID, "--for transformers and --output FILE go together");
    return ZINC_OK;
}

static int run_check(const zn_args *args)
{
    zn_config *config = NULL;
    const bool json = zn_args_flag(args, "json", false);
    zinc_status status = check_usage(args);
    if (status != ZINC_OK)
        return zn_cli_fail("config", status);
    status = resolve(args, zn_args_positional(args, 1), &config);
    if (!config || (status != ZINC_OK && status != ZINC_E_CONFIG)) {
        const int code = zn_cli_fail("config", status);
        if (json && status != ZINC_E_INVALID && status != ZINC_E_NOMEM)
            status = print_unreadable();
        zn_config_destroy(config);
        return code;
    }
    const bool ok = status == ZINC_OK;
    status = print_result(config, json);
    if (ok && status == ZINC_OK && zn_args_given(args, "output"))
        status = write_plain(config, zn_args_get(args, "output"));
    const int code = status != ZINC_OK ? zn_cli_fail("config", status) : ok ? 0 : 1;
    zn_config_destroy(config);
    return code;
}

/* ---- convert ---- */

static zinc_status check_convert(const zn_args *args)
{
    const char *to = zn_args_get(args, "to");
    if (zn_args_n_positional(args) != 2 || !to)
        ZN_FAIL(ZINC_E_INVALID, "zinc config convert FILE --to accelerate|ds_config|resolved");
    if (strcmp(to, "accelerate") != 0 && strcmp(to, "ds_config") != 0 &&
        strcmp(to, "resolved") != 0)
        ZN_FAIL(ZINC_E_INVALID, "--to %s: accelerate, ds_config or resolved", to);
    return ZINC_OK;
}

static zinc_status append_as(const zn_config *config, const char *to, int64_t n_ranks, zn_buf *lost,
                             zn_buf *out)
{
    if (strcmp(to, "accelerate") == 0)
        return zn_config_append_accelerate(config, n_ranks, lost, out);
    if (strcmp(to, "ds_config") == 0)
        return zn_config_append_deepspeed(config, zn_config_get(config)->accelerate.given, out);
    ZN_TRY(zn_config_append_json(config, out));
    return zn_buf_puts(out, "\n");
}

static zinc_status convert(const zn_args *args, const zn_config *config)
{
    const char *output = zn_args_get(args, "output");
    int64_t n_ranks = zn_config_get(config)->accelerate.num_processes;
    zn_buf text = {0}, lost = {0};
    zinc_status status;
    if (n_ranks < 1)
        n_ranks = 1;
    ZN_TRY_GOTO(zn_args_int(args, "world_size", 1, MAX_WORLD, &n_ranks));
    ZN_TRY_GOTO(append_as(config, zn_args_get(args, "to"), n_ranks, &lost, &text));
    if (lost.n > 0)
        fprintf(stderr,
                "lost, for an accelerate YAML has no place for it; deepspeed_config_file "
                "can name a ds_config.json that keeps it:\n%s",
                lost.data);
    if (output)
        ZN_TRY_GOTO(zn_fs_write_atomic(output, text.data, text.n));
    else
        fputs(text.data, stdout);
fail:
    zn_buf_fini(&text);
    zn_buf_fini(&lost);
    return status;
}

static int run_convert(const zn_args *args)
{
    zn_config *config = NULL;
    zinc_status status = check_convert(args);
    if (status == ZINC_OK)
        status = resolve(args, zn_args_positional(args, 1), &config);
    for (int i = 0; status == ZINC_E_CONFIG && config && i < zn_config_n_errors(config) - 1; i++)
        fprintf(stderr, "%s\n", zn_config_error(config, i + 1));
    if (status == ZINC_OK)
        status = convert(args, config);
    zn_config_destroy(config);
    return status == ZINC_OK ? 0 : zn_cli_fail("config", status);
}

static int run_keys(void)
{
    zn_buf buf = {0};
    const zinc_status status = zn_config_append_doc(&buf);
    if (status == ZINC_OK)
        fputs(buf.data, stdout);
    zn_buf_fini(&buf);
    return status == ZINC_OK ? 0 : zn_cli_fail("config", status);
}

static zinc_status unknown_action(const char *action)
{
    static const char *const actions[] = {"check", "new", "convert", "keys"};
    const char *near = zn_nearest_name(action, actions, 4);
    if (near)
        ZN_FAIL(ZINC_E_INVALID, "no action \"%.80s\"; did you mean \"%s\"?", action, near);
    ZN_FAIL(ZINC_E_INVALID, "no action \"%.80s\"; there are: check, new, convert, keys", action);
}

static int run_config(const zn_args *args)
{
    const char *action = zn_args_positional(args, 0);
    if (strcmp(action, "check") == 0)
        return run_check(args);
    if (strcmp(action, "convert") == 0)
        return run_convert(args);
    if (strcmp(action, "new") == 0)
        return zn_config_new(args);
    if (strcmp(action, "keys") == 0)
        return run_keys();
    return zn_cli_fail("config", unknown_action(action));
}

#define TRAINER(option, meta, text)                                                                \
    {                                                                                              \
        .name = option, .kind = ZN_OPTION_VALUE, .metavar = meta, .help = text                     \
    }

static const zn_option config_options[] = {
    {.name = "world_size",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .default_text = "1",
     .help = "ranks that the batch sizes are for"},
    {.name = "json", .kind = ZN_OPTION_FLAG, .help = "one JSON document on stdout"},
    {.name = "model_name_or_path",
     .alias = "model",
     .kind = ZN_OPTION_VALUE,
     .metavar = "DIR",
     .help = "model whose hidden size fills \"auto\""},
    TRAINER("hidden_size", "N", "hidden size, without a model folder"),
    TRAINER("for", "transformers", "with --output: write the file as strict JSON, \"auto\" kept"),
    TRAINER("output", "FILE", "file that --for, convert or new writes"),
    TRAINER("to", "FORM", "convert: accelerate, ds_config or resolved"),
    TRAINER("format", "FORM", "new: accelerate (a YAML, the default) or ds_config"),
    TRAINER("device_memory", "BYTES", "new: memory of a device to plan for, e.g. 24GB"),
    {.name = "yes", .kind = ZN_OPTION_FLAG, .help = "new: take every default"},
    {.name = "overwrite", .kind = ZN_OPTION_FLAG, .help = "new: replace a file that is there"},
    TRAINER("per_device_train_batch_size", "N", "fills train_micro_batch_size_per_gpu"),
    TRAINER("gradient_accumulation_steps", "N", "fills gradient_accumulation_steps"),
    TRAINER("learning_rate", "X", "fills optimizer.params.lr and warmup_max_lr"),
    TRAINER("weight_decay", "X", "fills optimizer.params.weight_decay"),
    TRAINER("adam_beta1", "X", "fills optimizer.params.betas"),
    TRAINER("adam_beta2", "X", "fills optimizer.params.betas"),
    TRAINER("adam_epsilon", "X", "fills optimizer.params.eps"),
    TRAINER("max_grad_norm", "X", "fills gradient_clipping"),
    TRAINER("max_steps", "N", "fills scheduler.params.total_num_steps"),
    TRAINER("num_train_epochs", "X", "length of the run where its data are known"),
    TRAINER("warmup_steps", "N", "fills scheduler.params.warmup_num_steps"),
    TRAINER("warmup_ratio", "X", "the same, as a share of the run"),
    {.name = "bf16", .kind = ZN_OPTION_FLAG, .help = "fills bf16.enabled"},
    {.name = "fp16", .kind = ZN_OPTION_FLAG, .help = "fills fp16.enabled"},
};

const zn_command zn_command_config = {
    .name = "config",
    .summary =
        "check a ds_config.json or an accelerate YAML, show what every key comes to, convert it",
    .positional = "check FILE | new | convert FILE | keys",
    .min_positional = 1,
    .max_positional = 2,
    .options = config_options,
    .n_options = sizeof config_options / sizeof config_options[0],
    .epilog = "zinc config check ds_config.json --world_size 4\n"
              "zinc config check ds_config.json --learning_rate 2e-5 --json\n"
              "zinc config check ds_config.json --for transformers --output plain.json\n"
              "zinc config new --model DIR --device_memory 24GB\n"
              "zinc config convert fsdp.yaml --to ds_config --output ds_config.json\n"
              "zinc config keys > keys.md",
    .run = run_config,
};
