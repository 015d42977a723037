/* SPDX-License-Identifier: Apache-2.0 */
#include "train/banner.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"

static const char *origin(const zn_train_setup *s, const char *key)
{
    const char *text = zn_config_origin(s->config, key);
    return text ? text : "default";
}

static void print_batch(const zn_train_setup *s)
{
    fprintf(stderr,
            "  batch      %" PRId64 " rows a rank (%s) x %" PRId64 " accumulated (%s) x %d ranks = "
            "%" PRId64 " rows a step\n",
            s->micro_batch, origin(s, "train_micro_batch_size_per_gpu"), s->accumulation,
            origin(s, "gradient_accumulation_steps"), s->n_ranks,
            s->micro_batch * s->accumulation * s->n_ranks);
}

static void print_optimizer(const zn_train_setup *s)
{
    const bool adam = strncmp(s->optim->name, "adam", 4) == 0;
    const char *rule = !adam                      ? "weight decay"
                       : s->hyper.decoupled_decay ? "AdamW rule, weight decay beside the gradient"
                                                  : "Adam rule, weight decay in the gradient (L2)";
    fprintf(stderr, "  optimizer  %s: %s, %g%s\n", s->optim->name, rule, s->hyper.weight_decay,
            s->decay_all ? "" : ", not for biases and norms");
    fprintf(stderr, "  rate       %g (%s), schedule %s (%s), %" PRId64 " steps\n", s->hyper.lr,
            origin(s, "optimizer.params.lr"),
            s->values->scheduler_type ? s->values->scheduler_type : s->o->lr_scheduler_type,
            s->values->scheduler_type ? origin(s, "scheduler.type") : "--lr_scheduler_type",
            s->max_steps);
    if (s->values->gradient_clipping > 0)
        fprintf(stderr, "  clipping   to norm %g (%s); grad_norm is the norm before it\n",
                s->values->gradient_clipping, origin(s, "gradient_clipping"));
    else
        fprintf(stderr, "  clipping   off (%s)\n", origin(s, "gradient_clipping"));
}

static void print_precision(const zn_train_setup *s)
{
    zn_zero_params zero;
    const zn_engine_params engine = zn_train_engine_params(s, NULL, NULL);
    zn_engine_zero_params(&engine, &zero);
    const char *key = zero.param_dtype == ZN_DTYPE_F16 ? "fp16.enabled" : "bf16.enabled";
    fprintf(stderr,
            "  precision  parameters %s (%s), gradients travel in %s (%s) and add up in %s (%s)\n",
            zn_dtype_name(zero.param_dtype), origin(s, key), zn_dtype_name(zero.wire_dtype),
            origin(s, "communication_data_type"), zn_dtype_name(zero.grad_accum_dtype),
            origin(s, "data_types.grad_accum_dtype"));
}

/* The rows of the first optimizer step tell two orders apart at a glance. */
static void print_order(const zn_train_setup *s)
{
    const int64_t n = s->micro_batch * s->accumulation * s->n_ranks;
    const int64_t n_rows = zn_dataset_n_rows(s->train);
    uint64_t hash = 0;
    for (int64_t i = 0; i < n; i++)
        hash = zn_hash_fold(hash, (uint64_t)zn_sampler_row(n_rows, s->o->seed, s->o->shuffle, i));
    fprintf(stderr,
            "  order      %s, seed %" PRIu64 "; %" PRId64
            " rows; those of step 1 hash to %08" PRIx32 "\n",
            s->o->shuffle ? "shuffled" : "as in the file", s->o->seed, n_rows, (uint32_t)hash);
}

void zn_train_print_settings(const zn_train_setup *setup)
{
    fprintf(stderr, "settings of the run, ZeRO stage %d (%s):\n", setup->values->zero.stage,
            origin(setup, "zero_optimization.stage"));
    print_batch(setup);
    print_optimizer(setup);
    print_precision(setup);
    print_order(setup);
}
