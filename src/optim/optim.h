/* SPDX-License-Identifier: Apache-2.0 */
/* optim.h — optimizers over shards.
 *
 * An optimizer never sees a model: it gets segments, contiguous runs of one parameter (or of
 * padding never) inside a rank's shard, and the hyper-parameters of the segment's group. One file
 * an optimizer + one row in optim/registry.c. Element-wise ones give the same bits however a
 * parameter is cut into segments. State is fp32. Layer: optim (may use base, device, tensor,
 * kernels). */
#ifndef ZN_OPTIM_OPTIM_H
#define ZN_OPTIM_OPTIM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "kernels/kernels.h"

#define ZN_OPTIM_MAX_STATES 2

/* Hyper-parameters of one group. Fields that an optimizer does not name are ignored. Defaults are
 * those of DeepSpeed 0.19.8 (zn_optim_defaults). */
typedef struct zn_optim_hyper {
    double lr; /* of this step; the schedule writes it */
    double beta1, beta2, eps, weight_decay;
    bool bias_correction;       /* adam */
    bool decoupled_decay;       /* adam: AdamW mode */
    double momentum, dampening; /* sgd */
    bool nesterov;
    double min_coeff, max_coeff; /* lamb */
    bool eps_inside_sqrt;
} zn_optim_hyper;

typedef struct zn_optim_segment {
    int64_t n;                         /* elements */
    float *master;                     /* [n] updated in place; NULL: in halves, low and out16 */
    uint16_t *low;                     /* [n] of a split master (zn_update_args.low) */
    float *state[ZN_OPTIM_MAX_STATES]; /* [n] each */
    const void *grad;                  /* [n] of grad_dtype */
    zn_dtype grad_dtype;
    void *out16; /* [n] of out_dtype, the rounded master; NULL: none */
    zn_dtype out_dtype;
    int param; /* parameter id */
    int group; /* index of its hyper-parameters */
} zn_optim_segment;

typedef struct zn_optim_step {
    zn_stream *stream;
    const zn_kernels *kernels;
    const zn_optim_hyper *groups; /* [n_groups], live values */
    int64_t t;                    /* 1-based number of this applied step */
    const float *grad_scale;      /* device scalar: unscale * clip */
} zn_optim_step;

typedef struct zn_optim_ops {
    const char *name;    /* "adamw" */
    const char *aliases; /* space-separated, lower case: "adam fusedadam …" */
    int n_states;
    const char *state_names[ZN_OPTIM_MAX_STATES]; /* as torch calls them: "exp_avg", … */
    int n_sums; /* per-parameter fp64 scalars that pass 1 sums over all ranks (Lamb: 2), or 0 */

    /** Fill the fields this optimizer uses with their defaults. */
    void (*defaults)(zn_optim_hyper *hyper);
    /** Pass 1 (only if n_sums > 0): update states, add this segment's partial sums to
     *  sums[n_sums]. */
    zinc_status (*sums)(const zn_optim_step *step, const zn_optim_segment *segment, double *sums);
    /** Update one segment. `sums` [n_sums] are the parameter's totals, or NULL. */
    zinc_status (*update)(const zn_optim_step *step, const zn_optim_segment *segment,
                          const double *sums);
} zn_optim_ops;

/** Find an optimizer by any name a ds_config.json uses, case-insensitively. Errors: E_CONFIG lists
 *  the names; E_UNSUPPORTED names one that DeepSpeed has and Zinc refuses, with the reason. */
ZINC_MUST_CHECK zinc_status zn_optim_find(const char *name, const zn_optim_ops **out);

/** The variant of `ops` that keeps the fewest states with these hyper-parameters: SGD needs no
 *  buffer where no group has momentum (momentum must then stay 0). Otherwise `ops` itself. */
const zn_optim_ops *zn_optim_lean(const zn_optim_ops *ops, const zn_optim_hyper *groups,
                                  int n_groups);

/** Names for messages: "adam, adamw, …". */
const char *zn_optim_names(void);

#endif
