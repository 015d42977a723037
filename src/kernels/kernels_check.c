/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kernels_internal.h"

zinc_status zn_check_float(const char *name, zn_dtype dtype)
{
    if (dtype != ZN_DTYPE_F32 && dtype != ZN_DTYPE_BF16 && dtype != ZN_DTYPE_F16)
        ZN_FAIL(ZINC_E_INVALID, "%s works on float32, bfloat16 and float16, not on %s", name,
                zn_dtype_name(dtype));
    return ZINC_OK;
}

zinc_status zn_check_update(const char *name, const zn_update_args *args)
{
    ZN_TRY(zn_check_float(name, args->grad_dtype));
    if (args->out16)
        ZN_TRY(zn_check_float(name, args->out_dtype));
    if (!args->master && (!args->low || !args->out16 || args->out_dtype != ZN_DTYPE_BF16))
        ZN_FAIL(ZINC_E_INVALID, "%s: a master in halves needs both, the high one in bfloat16",
                name);
    return ZINC_OK;
}

zinc_status zn_check_ids(const char *name, const int32_t *ids, int64_t N, int32_t lowest, int64_t V)
{
    for (int64_t n = 0; n < N; n++)
        if (ids[n] < lowest || ids[n] >= V)
            ZN_FAIL(ZINC_E_INVALID,
                    "%s: token id %d at row %lld is outside the vocabulary of %lld tokens; the "
                    "tokenizer and the model do not belong together",
                    name, (int)ids[n], (long long)n, (long long)V);
    return ZINC_OK;
}
