/* SPDX-License-Identifier: Apache-2.0 */
/* made_checkpoint.h — a small checkpoint of two ranks, written through the calls that a run uses.
 */
#ifndef ZN_TESTS_MADE_CHECKPOINT_H
#define ZN_TESTS_MADE_CHECKPOINT_H

#include "ckpt_test.h"

#include "ckpt/checkpoint.h"

/* a: 2 x 5 elements, trainable, cut between two ranks at element 3; b: 4 elements, frozen, on rank
 * 1. Values: 100 * (what + 2) + element, b from 1000,
 * and 10000 * salt more. */
static const char *const state_names[] = {"exp_avg", "exp_avg_sq"};

static inline void make_list(zn_param_list *list)
{
    char a[] = "block.a", b[] = "b";
    const zn_param_spec specs[] = {{.name = a, .n_dims = 2, .shape = {2, 5}, .trainable = true},
                                   {.name = b, .n_dims = 1, .shape = {4}}};
    assert_ok(zn_param_list_add_unit(list, "all", NULL));
    for (int i = 0; i < 2; i++)
        assert_ok(zn_param_list_add(list, &specs[i], NULL));
}

static inline zn_ckpt_meta make_meta(int64_t step)
{
    return (zn_ckpt_meta){.step = step,
                          .n_applied = step - 1,
                          .n_skipped = 1,
                          .epoch = 0.1 * (double)step,
                          .n_samples = 8 * step,
                          .seed = 42,
                          .shuffle = true,
                          .n_rows = 50,
                          .n_tokens = 5000,
                          .train_batch_size = 8,
                          .scaler = zn_loss_scaler_dynamic(10, 100, 2, false, 1),
                          .optimizer = "adamw",
                          .n_states = 2,
                          .state_names = {"exp_avg", "exp_avg_sq"},
                          .stage = 3,
                          .n_ranks = 2,
                          .dtype = "bfloat16",
                          .model_hash = 0xFEDCBA9876543210u,
                          .run_id = 7,
                          .created_ns = 1000 + step};
}

/* What rank `rank` keeps: its ranges and their values. */
typedef struct made_part {
    zn_ckpt_range ranges[4];
    int n_ranges;
    int64_t n_values;
    _Alignas(ZN_BULK_ALIGN) float values[ZN_BULK_ALIGN / sizeof(float)];
} made_part;

static inline float made_value(int param, int what, int64_t element, int salt)
{
    return (float)((param == 1 ? 1000 : 100 * (what + 2)) + element + 10000 * salt);
}

static inline void make_part(int rank, int salt, made_part *out)
{
    memset(out, 0, sizeof *out);
    for (int what = ZN_CKPT_MASTER; what < 2; what++)
        out->ranges[out->n_ranges++] =
            (zn_ckpt_range){.param = 0, .what = what, .first = rank ? 3 : 0, .count = rank ? 7 : 3};
    if (rank)
        out->ranges[out->n_ranges++] =
            (zn_ckpt_range){.param = 1, .what = ZN_CKPT_MASTER, .count = 4};
    for (int i = 0; i < out->n_ranges; i++) {
        const zn_ckpt_range *r = &out->ranges[i];
        for (int64_t k = 0; k < r->count; k++)
            out->values[out->n_values++] = made_value(r->param, r->what, r->first + k, salt);
    }
}

/* As one save does it: rank 0 streams, rank 1 writes from where the values lie. */
static inline zinc_status try_write_part(const char *dir, const zn_param_list *list, int rank,
                                         int salt, zn_ckpt_file files[2])
{
    zinc_status status;
    made_part made;
    zn_part *part = NULL;
    make_part(rank, salt, &made);
    const zn_part_params params = {.dir = dir,
                                   .rank = rank,
                                   .n_ranks = 2,
                                   .list = list,
                                   .state_names = state_names,
                                   .ranges = made.ranges,
                                   .n_ranges = made.n_ranges};
    ZN_TRY_GOTO(zn_part_create(&params, &part));
    if (rank)
        ZN_TRY_GOTO(zn_part_write_kept(part, made.values, made.n_values));
    for (int64_t k = 0, n = made.n_values; !rank && k < n; k += 2) /* cuts are anywhere */
        ZN_TRY_GOTO(zn_part_write(part, made.values + k, n - k < 2 ? n - k : 2));
    status = zn_part_finish(part, files);
fail:
    zn_part_destroy(part);
    return status;
}

/* OUT/checkpoint-STEP, with a config.json. */
static inline zinc_status try_make_checkpoint(const char *out, int64_t step, uint64_t run_id,
                                              int salt)
{
    zinc_status status;
    zn_param_list list = {0};
    zn_ckpt_file files[8];
    int n_files = 4;
    char *dir = NULL, *config = NULL;
    zn_ckpt_meta meta = make_meta(step);
    meta.run_id = run_id;
    make_list(&list);
    ZN_TRY_GOTO(zn_fs_mkdirs(out));
    ZN_TRY_GOTO(zn_ckpt_begin(out, step));
    ZN_TRY_GOTO(zn_ckpt_path(out, step, true, &dir));
    for (int rank = 0; rank < 2; rank++)
        ZN_TRY_GOTO(try_write_part(dir, &list, rank, salt, files + 2 * rank));
    ZN_TRY_GOTO(zn_fs_join(dir, "config.json", &config));
    ZN_TRY_GOTO(zn_fs_write_atomic(config, "{}\n", 3));
    ZN_TRY_GOTO(zn_ckpt_other_files(dir, files, 8, &n_files));
    const zn_publish_params params = {
        .output = out, .meta = &meta, .list = &list, .files = files, .n_files = n_files};
    status = zn_ckpt_publish(&params);
fail:
    zn_free(config);
    zn_free(dir);
    zn_param_list_fini(&list);
    return status;
}

/* checkpoint-STEP in the folder `out` of the test. */
static inline void make_checkpoint(void **state, int64_t step, uint64_t run_id)
{
    assert_ok(try_make_checkpoint(at(state, "out"), step, run_id, 0));
}

#endif
