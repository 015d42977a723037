/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kernels.h"

int64_t zn_norm_scratch(int64_t C)
{
    return 64 * 2 * C;
}
