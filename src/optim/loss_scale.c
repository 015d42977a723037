/* SPDX-License-Identifier: Apache-2.0 */
#include "optim/loss_scale.h"

#include <math.h>

zn_loss_scaler zn_loss_scaler_none(void)
{
    return zn_loss_scaler_static(1.0);
}

zn_loss_scaler zn_loss_scaler_static(double scale)
{
    return (zn_loss_scaler){.scale = scale, .last_overflow = -1};
}

zn_loss_scaler zn_loss_scaler_dynamic(int initial_scale_power, int64_t window, int hysteresis,
                                      bool consecutive_hysteresis, double min_scale)
{
    return (zn_loss_scaler){
        .dynamic = true,
        .scale = ldexp(1.0, initial_scale_power),
        .min_scale = min_scale,
        .window = window,
        .hysteresis = hysteresis,
        .hysteresis_left = hysteresis,
        .consecutive_hysteresis = consecutive_hysteresis,
        .last_overflow = -1,
    };
}

static zinc_status overflowed(zn_loss_scaler *scaler)
{
    if (scaler->hysteresis_left > 1) {
        scaler->hysteresis_left--;
        return ZINC_OK;
    }
    if (scaler->scale <= scaler->min_scale)
        ZN_FAIL(ZINC_E_ABORTED,
                "gradients overflow at the minimum loss scale %g: the run is diverging or its "
                "numbers do not fit fp16; lower the learning rate, use bf16, or lower "
                "fp16.min_loss_scale",
                scaler->min_scale);
    scaler->scale = fmax(scaler->scale / 2.0, scaler->min_scale);
    return ZINC_OK;
}

zinc_status zn_loss_scaler_update(zn_loss_scaler *scaler, bool overflow)
{
    if (scaler->dynamic && overflow) {
        ZN_TRY(overflowed(scaler));
    } else if (scaler->dynamic) {
        /* The step right after an overflow does not count, so growth comes on clean step
         * window + 1. */
        const int64_t stable = scaler->iteration - scaler->last_overflow - 1;
        const bool grow = scaler->window > 0 && stable > 0 && stable % scaler->window == 0;
        if (grow)
            scaler->scale *= 2.0;
        if (grow || scaler->consecutive_hysteresis)
            scaler->hysteresis_left = scaler->hysteresis;
    }
    if (overflow)
        scaler->last_overflow = scaler->iteration;
    scaler->iteration++;
    return ZINC_OK;
}
