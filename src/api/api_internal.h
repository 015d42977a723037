/* SPDX-License-Identifier: Apache-2.0 */
/* api_internal.h — between the public headers (include/zinc) and the layers below.
 *
 * Functions here check what a caller outside the tree may get wrong (NULL, a number out of range, a
 * call out of order), turn public structs into internal ones and pass on. Public structs begin with
 * their size, so a program that was built with an older header still works: fields it does not know
 * keep their defaults, and are not written to.
 * Reading order: api_struct.c, api_comm.c, api_config.c, api_engine.c, api_engine_run.c,
 * api_engine_values.c, api_checkpoint.c, api_files.c. Layer: api (may use engine and everything it
 * stands on). */
#ifndef ZN_API_API_INTERNAL_H
#define ZN_API_API_INTERNAL_H

#include <stdbool.h>

#include "base/json.h"
#include "comm/comm.h"
#include "config/config.h"
#include "device/device.h"
#include "optim/loss_scale.h"
#include "optim/lr_schedule.h"
#include "optim/optim.h"
#include "zero/zero.h"
#include "zinc/comm.h"
#include "zinc/config.h"
#include "zinc/engine.h"

/* Refuse a NULL argument, by its name in the header. */
#define ZN_API_NEED(arg)                                                                           \
    do {                                                                                           \
        if (!(arg))                                                                                \
            ZN_FAIL(ZINC_E_INVALID, "%s: %s is NULL", __func__, #arg);                             \
    } while (0)

struct zinc_comm {
    zn_device *dev;
    zn_comm *comm;
};

struct zinc_thread_world {
    zn_thread_world *world;
    int n_ranks;
};

struct zinc_config {
    zn_config *config;
    int64_t world_size; /* of the last resolve that succeeded; 0: none has */
};

/* What the order of calls is checked by. */
typedef struct zn_api_unit {
    int n_users;  /* acquires minus releases */
    bool reduced; /* in this micro-batch */
    zn_pass pass; /* of the last acquire */
} zn_api_unit;

struct zinc_engine {
    zinc_comm *rank;
    zn_zero_params zero_params;
    char *disk_path, *param_disk_path;      /* of zero_params */
    const zn_optim_ops *optim_full, *optim; /* as found; what is used (zn_optim_lean); or NULL */
    zn_optim_hyper base;                    /* of the configuration */
    zn_lr_schedule schedule;
    zn_loss_scaler scaler;
    double clip, divisor;
    bool unchecked; /* as zn_zero_step_args */
    bool unscale_grown;
    zn_optim_hyper *groups; /* [n_groups] lr is written at every step */
    double *group_lr;       /* [n_groups] NaN: the schedule's */
    int n_groups;
    zn_param_list list;
    int *group_of_param;  /* [list.n_specs] */
    zn_api_unit *units;   /* [list.n_units] */
    zn_zero *zero;        /* NULL before build */
    int boundary;         /* of the next micro-batch: 0, 1; -1: counted */
    int64_t n_micro;      /* micro-batches of this step that are over */
    bool in_micro, ready; /* a micro-batch is open; the last one was a boundary */
    bool given;           /* a gradient of the open micro-batch is there, or reduced */
    int64_t n_applied, n_skipped;
    struct {
        json_t *config, *schedule, *hyper; /* as describe.h */
        const char *dtype;
        int64_t train_batch_size;
        uint64_t run; /* rank 0, from the first save on */
    } about;          /* what checkpoints say of the run */
    float *widened;   /* [ZN_API_BLOCK] */
};

#define ZN_API_BLOCK ((int64_t)1 << 16) /* elements that are converted or exchanged at once */

/** Copy the caller's struct over the defaults in `known` [known_bytes], as far as both go. The
 *  first field of both is size_t struct_size. Errors: E_INVALID if it is not set; E_UNSUPPORTED if
 *  the caller sets a field this library does not know. */
ZINC_MUST_CHECK zinc_status zn_api_take(void *known, size_t known_bytes, const void *given,
                                        const char *name);
/** Copy `known` to the caller's struct as far as that goes; its struct_size stays.
 *  Errors: E_INVALID if it is not set. */
ZINC_MUST_CHECK zinc_status zn_api_give(const void *known, size_t known_bytes, void *given,
                                        const char *name);

/** Hand a buffer's text to the caller (zinc_free). The buffer is empty then. */
ZINC_MUST_CHECK zinc_status zn_api_give_text(zn_buf *buf, char **out);

/** The internal type. Errors: E_INVALID unless it is F32, BF16 or F16. */
ZINC_MUST_CHECK zinc_status zn_api_real_dtype(zinc_dtype dtype, zn_dtype *out);

/* api_engine.c */
/** Values of the caller's groups over those of the configuration, checked, into engine->groups. */
ZINC_MUST_CHECK zinc_status zn_api_take_groups(zinc_engine *engine, const zinc_group *groups);
/** Errors: E_INVALID before build, or if there is no such parameter. */
ZINC_MUST_CHECK zinc_status zn_api_check_param(const zinc_engine *engine, int param);
ZINC_MUST_CHECK zinc_status zn_api_check_unit(const zinc_engine *engine, int unit);
ZINC_MUST_CHECK zinc_status zn_api_check_built(const zinc_engine *engine);
/* api_engine_values.c */
/** Errors: E_INVALID, beginning with `what`, before build or while gradients are accumulated or a
 *  unit is acquired. A micro-batch that was begun and has none yet is forgotten. */
ZINC_MUST_CHECK zinc_status zn_api_check_between(zinc_engine *engine, const char *what);
/** Go on from there; `progress` is checked. */
void zn_api_set_progress(zinc_engine *engine, const zinc_progress *progress);
/* api_files.c */
/** Whether elements [offset, offset + n) lie in `name`, which has n_elems, and there is a buffer.
 *  Errors: E_INVALID. */
ZINC_MUST_CHECK zinc_status zn_api_check_range(const char *name, int64_t n_elems, int64_t offset,
                                               int64_t n, const void *values);
/* api_checkpoint.c */
/** Fill engine->about from the configuration that the engine is made of. */
ZINC_MUST_CHECK zinc_status zn_api_describe(zinc_engine *engine, const zn_config *config);
/* api_engine_run.c */
/** Write the rates and momenta of the next applied step into engine->groups. */
void zn_api_set_hyper(zinc_engine *engine);

#endif
