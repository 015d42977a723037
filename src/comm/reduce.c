/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm_internal.h"

#include "base/sys.h"

#define ZN_REDUCE_SUM zn_reduce_sum_ref
#include "comm/reduce_loops.inc"

void zn_reduce_sum(const zn_reduce *reduce)
{
#ifdef ZINC_COMM_SIMD
    switch (zn_sys_isa()) {
    case ZN_ISA_AMX:
    case ZN_ISA_AVX512_BF16:
    case ZN_ISA_AVX512:
        zn_reduce_sum_avx512(reduce);
        return;
    case ZN_ISA_AVX2:
        zn_reduce_sum_avx2(reduce);
        return;
    case ZN_ISA_REF:
        break;
    }
#endif
    zn_reduce_sum_ref(reduce);
}
