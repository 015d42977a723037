/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_dnnl.c — GEMM from oneDNN, whose sgemm is the fastest of the libraries tried and gives the
 * same bits on 1 and on 2 threads. The only file that knows the library. */
#include "kernels/kernels_internal.h"

#ifdef ZINC_HAVE_DNNL
#include <oneapi/dnnl/dnnl.h>
#ifdef _OPENMP
#include <omp.h>
#endif

zinc_status zn_gemm_dnnl(zn_stream *s, bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K,
                         float alpha, const float *A, int64_t lda, const float *B, int64_t ldb,
                         float beta, float *C, int64_t ldc)
{
#ifdef _OPENMP
    omp_set_num_threads(zn_stream_n_threads(s)); /* of the calling thread's parallel regions only */
#else
    (void)s;
#endif
    const dnnl_status_t status = dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', M, N, K,
                                            alpha, A, lda, B, ldb, beta, C, ldc);
    if (status != dnnl_success)
        ZN_FAIL(ZINC_E_INTERNAL, "oneDNN refused a GEMM of %lld x %lld x %lld (its status %d)",
                (long long)M, (long long)N, (long long)K, (int)status);
    return ZINC_OK;
}
#endif
