/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/simd_table.inc"

const zn_kernels zn_kernels_avx512 = VEC_TABLE("avx512", zn_ref_gemm_bf16);
const zn_kernels zn_kernels_avx512_bf16 = VEC_TABLE("avx512_bf16", zn_gemm_bf16_dot);
const zn_kernels zn_kernels_amx = VEC_TABLE("amx", zn_gemm_bf16_amx);
