/* SPDX-License-Identifier: Apache-2.0 */
#include "train/overflow.h"

#include <stdio.h>

static const char *precision_of(const zn_train_setup *s)
{
    return s->values->bf16.enabled ? "bf16" : s->values->fp16.enabled ? "fp16" : "fp32";
}

/* "training rows 4, 17, 3" of a micro-batch; only the first few of many. */
static void put_rows(const zn_train_setup *s, int64_t step, const zn_bad_value *bad, char *out,
                     size_t n)
{
    const int64_t mb = s->micro_batch;
    const int64_t micro = step * s->accumulation + bad->micro;
    const int64_t first = (micro * s->n_ranks + bad->rank) * mb;
    int used = snprintf(out, n, "training row%s", mb == 1 ? "" : "s");
    for (int64_t i = 0; i < mb && used >= 0 && (size_t)used < n; i++) {
        const int64_t row =
            zn_sampler_row(zn_dataset_n_rows(s->train), s->o->seed, s->o->shuffle, first + i);
        if (i == 8) {
            snprintf(out + used, n - (size_t)used, " and %lld more", (long long)(mb - i));
            return;
        }
        used += snprintf(out + used, n - (size_t)used, "%s%lld", i ? ", " : " ", (long long)row);
    }
}

static void put_what(const zn_train_setup *s, const zn_bad_value *bad,
                     const zn_engine_step_result *result, char *out, size_t n)
{
    const char *precision = precision_of(s);
    switch (bad->kind) {
    case ZN_BAD_WEIGHT:
        snprintf(out, n, "the weight %s is not finite in %s (held by rank %d)", bad->name,
                 precision, bad->rank);
        return;
    case ZN_BAD_ACTIVATION:
        snprintf(out, n, "the output of %s is not finite", bad->name);
        return;
    case ZN_BAD_LOSS:
        snprintf(out, n, "the loss is not finite");
        return;
    case ZN_BAD_GRADIENT:
        snprintf(out, n, "the gradient of %s is not finite in %s at loss scale %g", bad->name,
                 precision, result->loss_scale);
        return;
    default:
        snprintf(out, n,
                 "the sum of the gradient of %s over micro-batches and ranks is not finite, though "
                 "each part is (slice of rank %d)",
                 result->bad_param ? result->bad_param : "?", result->bad_rank);
        return;
    }
}

zinc_status zn_train_explain_overflow(const zn_train_setup *setup, zn_engine *engine,
                                      const zn_train_overflow *overflow, char *out, size_t n)
{
    char what[256], rows[160];
    zn_bad_value bad;
    const long long step = (long long)overflow->step + 1;
    ZN_TRY(zn_engine_find_bad(engine, overflow->batches, overflow->weights, setup->accumulation,
                              overflow->result->loss_scale, &bad));
    put_what(setup, &bad, overflow->result, what, sizeof what);
    if (bad.micro < 0) {
        snprintf(out, n, "step %lld: %s", step, what);
        return ZINC_OK;
    }
    put_rows(setup, overflow->step, &bad, rows, sizeof rows);
    snprintf(out, n, "step %lld: %s (rank %d, micro-batch %lld: %s, counted from 0)", step, what,
             bad.rank, (long long)bad.micro, rows);
    return ZINC_OK;
}
