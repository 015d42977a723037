/* SPDX-License-Identifier: Apache-2.0 */
/* peak.h — the most floating-point work this CPU does, measured: the limit of every matrix product.
 * Layer: kernels. */
#ifndef ZN_KERNELS_PEAK_H
#define ZN_KERNELS_PEAK_H

/** fp32 operations a second (an FMA is two) of n_threads threads that do nothing but fused
 *  multiply-adds between registers, in the widest vectors that zn_sys_isa allows. Each thread takes
 *  the best of its runs of a fraction of a millisecond within `seconds`; at least one run. Not
 * collective. */
double zn_peak_flops(int n_threads, double seconds);

/** The same of bf16 products as gemm_bf16 of zn_sys_isa sums them: on tiles or by dot products.
 *  zn_peak_flops where zn_kernels_bf16_pays says no. */
double zn_peak_bf16_flops(int n_threads, double seconds);

/** Flops of one thread by bf16 dot products over those by fp32 multiply-adds; takes about half a
 *  millisecond. Only on a CPU that has AVX-512 with bf16 (ZN_ISA_AVX512_BF16). */
double zn_peak_dot_ratio(void);

#endif
