/* SPDX-License-Identifier: Apache-2.0 */
/* loss_scale.h — fp16 loss scaling, static and dynamic.
 *
 * Source: DynamicLossScaler of deepspeed/runtime/fp16/loss_scaler.py 0.19.8 (ZeRO 1-3; Zinc uses it
 * in every stage). Unlike DeepSpeed, a step unscales with the scale its loss was multiplied by,
 * also on the step that makes the scale grow, unless the caller asks for the other
 * (zinc_engine_params.unscale_grown; docs/deepspeed-differences.md). Layer: optim. */
#ifndef ZN_OPTIM_LOSS_SCALE_H
#define ZN_OPTIM_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct zn_loss_scaler {
    bool dynamic;
    double scale; /* what the next loss is multiplied by; 1 when not fp16 */
    double min_scale;
    int64_t window;
    int hysteresis;      /* configured */
    int hysteresis_left; /* state */
    bool consecutive_hysteresis;
    int64_t iteration, last_overflow; /* state */
} zn_loss_scaler;

/** No scaling (fp32, bf16). */
zn_loss_scaler zn_loss_scaler_none(void);
zn_loss_scaler zn_loss_scaler_static(double scale);
zn_loss_scaler zn_loss_scaler_dynamic(int initial_scale_power, int64_t window, int hysteresis,
                                      bool consecutive_hysteresis, double min_scale);

/** Account for one step. Errors: E_ABORTED when it overflows at the minimum scale with no
 *  hysteresis left (DeepSpeed raises there). */
ZINC_MUST_CHECK zinc_status zn_loss_scaler_update(zn_loss_scaler *scaler, bool overflow);

#endif
