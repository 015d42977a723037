/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_checkpoint.c — `zinc checkpoint ls|verify|prune`: what is there, is it whole, keep the
 * newest.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/fs.h"
#include "base/json.h"
#include "ckpt/checkpoint.h"
#include "cli/cli.h"

/* {"name":…,"value":…,"unit":…, with room for more members behind it. */
static zinc_status append_row(zn_buf *out, const char *name, int64_t value, const char *unit)
{
    ZN_TRY(zn_buf_puts(out, "{\"name\":"));
    ZN_TRY(zn_json_append_string(out, name, strlen(name)));
    return zn_buf_printf(out, ",\"value\":%" PRId64 ",\"unit\":\"%s\"", value, unit);
}

static zinc_status append_text(zn_buf *out, const char *key, const char *text)
{
    ZN_TRY(zn_buf_printf(out, ",\"%s\":", key));
    return zn_json_append_string(out, text, strlen(text));
}

static zinc_status print_and_clear(zn_buf *out, zinc_status status)
{
    if (status == ZINC_OK)
        fputs(out->data, stdout);
    zn_buf_fini(out);
    return status;
}

/* ---- ls ---- */

static zinc_status append_entry(zn_buf *out, const zn_ckpt_entry *e, bool is_latest)
{
    const zn_ckpt_meta *m = &e->meta;
    ZN_TRY(append_row(out, e->path, e->n_bytes, "bytes"));
    ZN_TRY(zn_buf_printf(out, ",\"step\":%" PRId64 ",\"complete\":%s,\"latest\":%s", e->step,
                         e->trouble ? "false" : "true", is_latest ? "true" : "false"));
    if (e->trouble)
        ZN_TRY(append_text(out, "trouble", e->trouble));
    else
        ZN_TRY(zn_buf_printf(out,
                             ",\"ranks\":%d,\"stage\":%d,\"dtype\":\"%s\",\"optimizer\":\"%s\","
                             "\"created_ns\":%" PRId64 ",\"run\":\"%016" PRIx64 "\"",
                             m->n_ranks, m->stage, m->dtype, m->optimizer, m->created_ns,
                             m->run_id));
    return zn_buf_puts(out, "}\n");
}

static void print_entry(const zn_ckpt_entry *e, bool is_latest)
{
    char when[32] = "";
    struct tm parts;
    const time_t seconds = (time_t)(e->meta.created_ns / 1000000000);
    if (e->trouble) {
        printf("%s: not complete: %s\n", e->path, e->trouble);
        return;
    }
    if (localtime_r(&seconds, &parts))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &parts);
    printf("%s  step %" PRId64 "  %.1f MB  %s  %d ranks, stage %d, %s, %s%s\n", e->path, e->step,
           (double)e->n_bytes / 1e6, when, e->meta.n_ranks, e->meta.stage, e->meta.dtype,
           e->meta.optimizer, is_latest ? "  <- latest" : "");
}

static zinc_status list_all(const char *folder, bool json)
{
    zn_ckpt_entry *entries = NULL;
    char *latest = NULL;
    int n = 0;
    zinc_status status = ZINC_OK;
    ZN_TRY(zn_ckpt_list(folder, &entries, &n));
    if (zn_ckpt_latest(folder, &latest) != ZINC_OK)
        latest = NULL;
    for (int i = 0; i < n && status == ZINC_OK; i++) {
        zn_buf out = {0};
        const bool is_latest = latest && strcmp(latest, entries[i].path) == 0;
        if (json)
            status = print_and_clear(&out, append_entry(&out, &entries[i], is_latest));
        else
            print_entry(&entries[i], is_latest);
    }
    if (n == 0)
        fprintf(stderr, "zinc checkpoint: %s holds no folder checkpoint-N\n", folder);
    zn_free(latest);
    zn_ckpt_list_free(entries, n);
    return status;
}

/* ---- verify ---- */

typedef struct verdict {
    const char *path;
    bool json;
    zinc_status status;
} verdict;

static void print_problem(void *ctx, const char *text)
{
    verdict *v = ctx;
    zn_buf out = {0};
    if (!v->json) {
        fprintf(stderr, "zinc checkpoint: %s\n", text);
        return;
    }
    zinc_status status = append_row(&out, v->path, 1, "problems");
    if (status == ZINC_OK)
        status = append_text(&out, "problem", text);
    if (status == ZINC_OK)
        status = zn_buf_puts(&out, "}\n");
    status = print_and_clear(&out, status);
    if (v->status == ZINC_OK)
        v->status = status;
}

static zinc_status verify_one(const char *path, bool json, int *n_problems)
{
    int n = 0;
    zn_buf out = {0};
    verdict v = {.path = path, .json = json};
    ZN_TRY(zn_ckpt_verify(path, print_problem, &v, &n));
    ZN_TRY(v.status);
    *n_problems += n;
    if (n > 0)
        return ZINC_OK;
    int elsewhere = 0;
    ZN_TRY(zn_ckpt_elsewhere(path, &elsewhere));
    if (!json) {
        printf("%s: every byte is as it was written", path);
        if (elsewhere > 0)
            printf("; %d files are on other nodes", elsewhere);
        printf("\n");
        return ZINC_OK;
    }
    zinc_status status = append_row(&out, path, 0, "problems");
    if (status == ZINC_OK)
        status = zn_buf_puts(&out, "}\n");
    return print_and_clear(&out, status);
}

/* One checkpoint, or all of a run. */
static zinc_status verify(const char *path, bool json, int *n_problems)
{
    zn_ckpt_entry *entries = NULL;
    char *manifest = NULL;
    int n = 0;
    ZN_TRY(zn_fs_join(path, ZN_CKPT_MANIFEST, &manifest));
    const bool one = zn_fs_exists(manifest);
    zn_free(manifest);
    if (one)
        return verify_one(path, json, n_problems);
    ZN_TRY(zn_ckpt_list(path, &entries, &n));
    zinc_status status = ZINC_OK;
    for (int i = 0; i < n && status == ZINC_OK; i++)
        status = verify_one(entries[i].path, json, n_problems);
    zn_ckpt_list_free(entries, n);
    if (status == ZINC_OK && n == 0)
        ZN_FAIL(ZINC_E_IO, "%s is no checkpoint and holds none: it has neither %s nor checkpoint-N",
                path, ZN_CKPT_MANIFEST);
    return status;
}

/* ---- prune ---- */

static void print_removed(void *ctx, const char *path)
{
    verdict *v = ctx;
    zn_buf out = {0};
    if (!v->json) {
        printf("removed %s\n", path);
        return;
    }
    zinc_status status = append_row(&out, path, 1, "removed");
    if (status == ZINC_OK)
        status = zn_buf_puts(&out, "}\n");
    v->status = print_and_clear(&out, status);
}

static void count_only(void *ctx, const char *text)
{
    (void)ctx;
    fprintf(stderr, "zinc checkpoint: %s\n", text);
}

/* Nothing is deleted in favour of a checkpoint that could not be loaded. */
static zinc_status check_newest(const char *folder)
{
    zn_ckpt_entry *entries = NULL;
    int n = 0, newest = -1, n_problems = 0;
    zinc_status status = ZINC_OK;
    ZN_TRY(zn_ckpt_list(folder, &entries, &n));
    for (int i = 0; i < n; i++)
        newest = entries[i].trouble ? newest : i;
    if (newest >= 0)
        status = zn_ckpt_verify(entries[newest].path, count_only, NULL, &n_problems);
    if (status == ZINC_OK && n_problems > 0)
        status =
            zn_error_set(ZINC_E_FORMAT, __FILE__, __LINE__, __func__,
                         "%s, the newest, is damaged: nothing was removed", entries[newest].path);
    zn_ckpt_list_free(entries, n);
    return status;
}

static zinc_status prune(const zn_args *args, const char *folder, bool json)
{
    int64_t keep = 0;
    verdict v = {.path = folder, .json = json};
    ZN_TRY(zn_args_int(args, "keep", 1, INT64_MAX, &keep));
    if (keep == 0)
        ZN_FAIL(ZINC_E_INVALID, "prune needs --keep K, how many checkpoints stay");
    ZN_TRY(check_newest(folder));
    ZN_TRY(zn_ckpt_prune(folder, keep, 0, print_removed, &v));
    return v.status;
}

static int run_checkpoint(const zn_args *args)
{
    const char *verb = zn_args_positional(args, 0), *path = zn_args_positional(args, 1);
    const bool json = zn_args_flag(args, "json", false);
    int n_problems = 0;
    zinc_status status;
    if (strcmp(verb, "ls") == 0)
        status = list_all(path, json);
    else if (strcmp(verb, "verify") == 0)
        status = verify(path, json, &n_problems);
    else if (strcmp(verb, "prune") == 0)
        status = prune(args, path, json);
    else
        status = zn_error_set(ZINC_E_INVALID, __FILE__, __LINE__, __func__,
                              "\"%s\": ls, verify and prune are known", verb);
    return status != ZINC_OK ? zn_cli_fail("checkpoint", status) : n_problems > 0;
}

static const zn_option checkpoint_options[] = {
    {.name = "keep",
     .kind = ZN_OPTION_VALUE,
     .metavar = "K",
     .help = "prune: how many of the newest complete checkpoints stay"},
    {.name = "json", .kind = ZN_OPTION_FLAG, .help = "one JSON object a line on stdout"},
};

const zn_command zn_command_checkpoint = {
    .name = "checkpoint",
    .summary = "list, verify or prune the checkpoints of a run",
    .positional = "ls|verify|prune DIR",
    .min_positional = 2,
    .max_positional = 2,
    .options = checkpoint_options,
    .n_options = sizeof checkpoint_options / sizeof checkpoint_options[0],
    .epilog =
        "DIR is the output folder of a run; verify takes one checkpoint too. verify reads every "
        "byte and exits 1 if one is wrong.\n\n"
        "  zinc checkpoint ls run\n"
        "  zinc checkpoint verify run/checkpoint-500\n"
        "  zinc checkpoint prune run --keep 2\n",
    .run = run_checkpoint,
};
