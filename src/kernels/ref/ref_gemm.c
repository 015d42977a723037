/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

zinc_status zn_ref_gemm(zn_stream *s, bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K,
                        float alpha, const float *A, int64_t lda, const float *B, int64_t ldb,
                        float beta, float *C, int64_t ldc)
{
    (void)s;
    for (int64_t m = 0; m < M; m++) {
        for (int64_t n = 0; n < N; n++) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++) {
                const float a = trans_a ? A[k * lda + m] : A[m * lda + k];
                const float b = trans_b ? B[n * ldb + k] : B[k * ldb + n];
                sum += (double)a * b;
            }
            /* beta 0 must not read C, which may hold anything */
            const double old = beta == 0 ? 0 : (double)beta * C[m * ldc + n];
            C[m * ldc + n] = (float)((double)alpha * sum + old);
        }
    }
    return ZINC_OK;
}

/* X[r, c] rounded to bf16 as the instructions round: ties to even. */
static double element(const zn_operand *x, int64_t r, int64_t c)
{
    const float value = zn_load(x->p, x->dtype, x->trans ? c * x->ld + r : r * x->ld + c);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (!isfinite(value))
        return (double)value;
    return (double)zn_bf16_to_f32((uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16));
}

zinc_status zn_ref_gemm_bf16(zn_stream *s, int64_t M, int64_t N, int64_t K, const zn_operand *A,
                             const zn_operand *B, const zn_result *C, float *scratch)
{
    (void)s;
    (void)scratch;
    for (int64_t m = 0; m < M; m++) {
        for (int64_t n = 0; n < N; n++) {
            double sum = C->add ? (double)zn_load(C->p, C->dtype, m * C->ld + n) : 0;
            for (int64_t k = 0; k < K; k++)
                sum += element(A, m, k) * element(B, k, n);
            zn_store(C->p, C->dtype, m * C->ld + n, (float)sum);
        }
    }
    return ZINC_OK;
}
