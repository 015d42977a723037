/* SPDX-License-Identifier: Apache-2.0 */
#include "train/run_json.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/fs.h"
#include "base/json.h"
#include "zinc/version.h"

/* One member of a flat object; exactly one kind of value. */
typedef struct member {
    const char *name;
    enum { TEXT, COUNT, REAL, FLAG } kind;
    const char *text; /* NULL: null */
    int64_t count;
    double real; /* not finite: null */
    bool flag;
} member;

#define TEXT_OF(member_name, value)                                                                \
    {                                                                                              \
        .name = (member_name), .kind = TEXT, .text = (value)                                       \
    }
#define COUNT_OF(member_name, value)                                                               \
    {                                                                                              \
        .name = (member_name), .kind = COUNT, .count = (value)                                     \
    }
#define REAL_OF(member_name, value)                                                                \
    {                                                                                              \
        .name = (member_name), .kind = REAL, .real = (value)                                       \
    }
#define FLAG_OF(member_name, value)                                                                \
    {                                                                                              \
        .name = (member_name), .kind = FLAG, .flag = (value)                                       \
    }
#define N_OF(array) ((int)(sizeof(array) / sizeof(array)[0]))

static zinc_status append_text(const char *text, zn_buf *out)
{
    return text ? zn_json_append_string(out, text, strlen(text)) : zn_buf_puts(out, "null");
}

static zinc_status append_value(const member *m, zn_buf *out)
{
    switch (m->kind) {
    case TEXT:
        return append_text(m->text, out);
    case COUNT:
        return zn_buf_printf(out, "%lld", (long long)m->count);
    case REAL:
        return zn_json_append_number(out, m->real);
    default:
        return zn_buf_puts(out, m->flag ? "true" : "false");
    }
}

/* "name": value, …; the braces are the caller's. */
static zinc_status append_members(const member *members, int n, zn_buf *out)
{
    for (int i = 0; i < n; i++) {
        ZN_TRY(zn_buf_puts(out, i ? "," : ""));
        ZN_TRY(append_text(members[i].name, out));
        ZN_TRY(zn_buf_puts(out, ":"));
        ZN_TRY(append_value(&members[i], out));
    }
    return ZINC_OK;
}

static zinc_status append_list(const char *head, const char *const *texts, int n, zn_buf *out)
{
    ZN_TRY(zn_buf_printf(out, "%s[", head));
    for (int i = 0; i < n; i++) {
        ZN_TRY(zn_buf_puts(out, i ? "," : ""));
        ZN_TRY(append_text(texts[i], out));
    }
    return zn_buf_puts(out, "]");
}

static zinc_status append_run(const zn_train_setup *s, zn_buf *out)
{
    const zn_config_values *v = s->values;
    const member members[] = {
        COUNT_OF("steps", s->max_steps),
        COUNT_OF("steps_per_epoch", s->steps_per_epoch),
        COUNT_OF("ranks", s->n_ranks),
        COUNT_OF("threads", s->threads),
        TEXT_OF("comm", s->o->comm),
        TEXT_OF("device", s->o->device),
        COUNT_OF("zero_stage", v->zero.stage),
        TEXT_OF("precision", v->bf16.enabled   ? "bf16"
                             : v->fp16.enabled ? "fp16"
                                               : "fp32"),
        COUNT_OF("micro_batch", s->micro_batch),
        COUNT_OF("accumulation", s->accumulation),
        COUNT_OF("global_batch", v->train_batch_size),
        COUNT_OF("block_size", s->block_size),
        TEXT_OF("optimizer", s->optim->name),
        REAL_OF("learning_rate", s->hyper.lr),
        REAL_OF("weight_decay", s->hyper.weight_decay),
        TEXT_OF("output_dir", s->o->output_dir),
    };
    ZN_TRY(zn_buf_puts(out, "\"run\":{"));
    return append_members(members, N_OF(members), out);
}

static zinc_status append_model(const zn_train_setup *s, zn_buf *out)
{
    zinc_status status;
    zn_param_list list = {0};
    ZN_TRY_GOTO(zn_train_param_list(s, &list));
    const member members[] = {
        TEXT_OF("path", s->o->model),
        TEXT_OF("type", s->spec.model_type),
        COUNT_OF("parameters", zn_param_list_elems(&list, false)),
        COUNT_OF("trainable", zn_param_list_elems(&list, true)),
        COUNT_OF("layers", s->spec.L),
        COUNT_OF("hidden", s->spec.C),
        COUNT_OF("heads", s->spec.H),
        COUNT_OF("vocabulary", s->spec.V),
        FLAG_OF("from_scratch", s->o->from_scratch),
    };
    ZN_TRY_GOTO(zn_buf_puts(out, "},\"model\":{"));
    ZN_TRY_GOTO(append_members(members, N_OF(members), out));
fail:
    zn_param_list_fini(&list);
    return status;
}

static zinc_status append_data(const zn_train_setup *s, zn_buf *out)
{
    const member members[] = {
        COUNT_OF("rows", zn_dataset_n_rows(s->train)),
        COUNT_OF("validation_rows", s->validation ? zn_dataset_n_rows(s->validation) : 0),
        COUNT_OF("rows_cut", zn_dataset_n_cut(s->train)),
        COUNT_OF("rows_without_target", zn_dataset_n_empty(s->train)),
        FLAG_OF("shuffle", s->o->shuffle),
    };
    ZN_TRY(zn_buf_puts(out, "},\"data\":{"));
    ZN_TRY(append_members(members, N_OF(members), out));
    ZN_TRY(append_list(",\"train_files\":", s->o->train_files, s->o->n_train_files, out));
    return append_list(",\"validation_files\":", s->o->validation_files, s->o->n_validation_files,
                       out);
}

static zinc_status append_options(const zn_train_setup *s, zn_buf *out)
{
    const zn_train_options *o = s->o;
    const member members[] = {
        TEXT_OF("deepspeed", o->deepspeed),
        TEXT_OF("accelerate_config", o->accelerate_config),
        TEXT_OF("fsdp", o->fsdp),
        TEXT_OF("fsdp_config", o->fsdp_config),
        TEXT_OF("tokenizer", o->tokenizer),
        COUNT_OF("seed", (int64_t)o->seed),
        COUNT_OF("max_steps", o->max_steps),
        REAL_OF("num_train_epochs", o->num_train_epochs),
        TEXT_OF("lr_scheduler_type", o->lr_scheduler_type),
        COUNT_OF("warmup_steps", o->warmup_steps),
        REAL_OF("warmup_ratio", o->warmup_ratio),
        COUNT_OF("logging_steps", o->logging_steps),
        COUNT_OF("eval_steps", o->eval_steps),
        COUNT_OF("save_steps", o->save_steps),
        REAL_OF("dropout", o->dropout),
        FLAG_OF("gradient_checkpointing", s->checkpointing),
        FLAG_OF("share_parameters", o->share_parameters),
        TEXT_OF("loss_average",
                o->loss_average == ZN_LOSS_AVERAGE_TOKENS ? "tokens" : "micro_batches"),
        TEXT_OF("decay_groups", o->decay_groups),
        TEXT_OF("save_dtype", o->save_dtype),
        COUNT_OF("device_memory", o->device_limit),
        REAL_OF("timeout", o->timeout_s),
    };
    ZN_TRY(zn_buf_puts(out, "},\"options\":{"));
    ZN_TRY(append_members(members, N_OF(members), out));
    ZN_TRY(append_list(",\"freeze\":", o->freeze, o->n_freeze, out));
    ZN_TRY(zn_buf_puts(out, ",\"given\":{"));
    for (int i = 0; i < o->n_arguments; i++) {
        ZN_TRY(zn_buf_puts(out, i ? "," : ""));
        ZN_TRY(append_text(o->arguments[i].name, out));
        ZN_TRY(zn_buf_puts(out, ":"));
        ZN_TRY(append_text(o->arguments[i].value, out));
    }
    return zn_buf_puts(out, "}}");
}

zinc_status zn_run_json_append(const zn_train_setup *setup, zn_buf *out)
{
    char when[32] = "";
    struct tm utc;
    const time_t now = time(NULL);
    if (gmtime_r(&now, &utc))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    ZN_TRY(zn_buf_printf(out, "{\"zinc\":\"%s\",\"started\":\"%s\",", ZINC_VERSION_STRING, when));
    ZN_TRY(append_run(setup, out));
    ZN_TRY(append_model(setup, out));
    ZN_TRY(append_data(setup, out));
    ZN_TRY(append_options(setup, out));
    ZN_TRY(zn_buf_puts(out, ",\"config\":"));
    ZN_TRY(zn_config_append_json(setup->config, out));
    return zn_buf_puts(out, "}\n");
}

zinc_status zn_run_json_write(const zn_train_setup *setup)
{
    zinc_status status;
    char *path = NULL;
    zn_buf text = {0};
    ZN_TRY_GOTO(zn_fs_join(setup->o->output_dir, "run.json", &path));
    ZN_TRY_GOTO(zn_run_json_append(setup, &text));
    ZN_TRY_GOTO(zn_fs_write_atomic(path, text.data, text.n));
fail:
    zn_buf_fini(&text);
    zn_free(path);
    return status;
}
