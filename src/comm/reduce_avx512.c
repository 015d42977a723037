/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm_internal.h"

#ifdef ZINC_COMM_SIMD
#define ZN_REDUCE_SUM zn_reduce_sum_avx512
#include "comm/reduce_loops.inc"
#endif
