/* SPDX-License-Identifier: Apache-2.0 */
#define VEC_TABLE zn_kernels_avx2
#define VEC_ISA "avx2"
#include "kernels/simd/simd_table.inc"
