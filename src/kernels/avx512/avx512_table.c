/* SPDX-License-Identifier: Apache-2.0 */
#define VEC_TABLE zn_kernels_avx512
#define VEC_ISA "avx512"
#include "kernels/simd/simd_table.inc"
