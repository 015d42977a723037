/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/simd_table.inc"

const zn_kernels zn_kernels_avx2 = VEC_TABLE("avx2", zn_ref_gemm_bf16);
