/* SPDX-License-Identifier: Apache-2.0 */
/* rope.c — the angles of rotary positions.
 *
 * inv_freq[i] = theta^(-2i/rotary), scaled by the rope kind; angle = t * inv_freq[i]. Both are
 * rounded to fp32 as transformers does (modeling_rope_utils.py), because at position 10,000 that
 * rounding is visible in the logits. */
#include <math.h>

#include "model/model_internal.h"

/* Long wavelengths are stretched by `factor`, short ones kept, those between blended. */
static double llama3_scale(const zn_model_spec *spec, double inv_freq)
{
    const double pi = 3.14159265358979323846;
    const double old = (double)spec->rope_original_positions;
    const double turns = old * inv_freq / (2 * pi); /* rotations within the original context */
    if (turns < spec->rope_low_freq)
        return inv_freq / spec->rope_factor;
    if (turns > spec->rope_high_freq)
        return inv_freq;
    const double smooth =
        (turns - spec->rope_low_freq) / (spec->rope_high_freq - spec->rope_low_freq);
    return (1 - smooth) * inv_freq / spec->rope_factor + smooth * inv_freq;
}

void zn_rope_table(const zn_model_spec *spec, int64_t T, float *cos_out, float *sin_out)
{
    const int64_t half = spec->rotary / 2;
    for (int64_t i = 0; i < half; i++) {
        double inv_freq = pow(spec->rope_theta, -2.0 * (double)i / (double)spec->rotary);
        inv_freq = (double)(float)inv_freq;
        if (spec->rope == ZN_ROPE_LINEAR)
            inv_freq /= spec->rope_factor;
        else if (spec->rope == ZN_ROPE_LLAMA3)
            inv_freq = llama3_scale(spec, inv_freq);
        const float f = (float)inv_freq;
        for (int64_t t = 0; t < T; t++) {
            const float angle = (float)t * f;
            cos_out[t * half + i] = (float)cos((double)angle);
            sin_out[t * half + i] = (float)sin((double)angle);
        }
    }
}
