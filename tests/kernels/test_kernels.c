/* SPDX-License-Identifier: Apache-2.0 */
/* Every slot of every instruction set against the plain reference, over shapes around a vector. */
#include "kernels_test.h"

static const zn_kernels *ref(void)
{
    return zn_kernels_for(ZN_ISA_REF);
}

static const int64_t lengths[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 257, 1021, 4099};
#define N_LENGTHS ((int64_t)(sizeof lengths / sizeof lengths[0]))

/* A kernel rounds each step to fp32 where the reference does not. */
#define TOLERANCE 2e-6

static void every_table_has_every_slot(void **state)
{
    (void)state;
    for (int isa = 0; isa <= ZN_ISA_AMX; isa++) {
        const zn_kernels *k = zn_kernels_for((zn_isa)isa);
        if (!k)
            continue;
        assert_non_null(k->isa);
        void *const *slot = (void *const *)(const void *)k;
        for (size_t i = 0; i < sizeof *k / sizeof *slot; i++)
            assert_non_null(slot[i]);
    }
    assert_non_null(ref());
    assert_non_null(zn_kernels_get(NULL));
}

static void gemm_agrees_for_every_transposition(void **state)
{
    kt *t = *state;
    static const int64_t shape[][3] = {
        {1, 1, 1}, {5, 7, 3}, {17, 65, 33}, {64, 130, 140}, {6, 64, 1}};
    KT_FOR_EACH_ISA(k)
    for (int i = 0; i < 5; i++)
        for (int mode = 0; mode < 8; mode++) {
            const int64_t M = shape[i][0], N = shape[i][1], K = shape[i][2];
            const bool ta = mode & 1, tb = mode & 2;
            const int64_t lda = (ta ? M : K) + 3, ldb = (tb ? K : N) + 1, ldc = N + 2;
            const float beta = mode & 4 ? 0.5f : 0.0f;
            const float *A = kt_random(t, lda * (ta ? K : M), 1);
            const float *B = kt_random(t, ldb * (tb ? N : K), 1);
            float *want = kt_random(t, ldc * M, 1), *got = kt_copy(t, want, ldc * M);
            if (beta == 0) /* must not be read */
                got[0] = NAN;
            assert_ok(ref()->gemm(t->s, ta, tb, M, N, K, 0.7f, A, lda, B, ldb, beta, want, ldc));
            assert_ok(k->gemm(t->s, ta, tb, M, N, K, 0.7f, A, lda, B, ldb, beta, got, ldc));
            kt_near("gemm", k->isa, got, want, ldc * M, 1e-5);
            kt_clear(t);
        }
}

/* An operand of rows x columns of random numbers, stored transposed or not, as f32 or bf16. */
static zn_operand operand(kt *t, int64_t rows, int64_t cols, bool trans, bool bf16)
{
    const int64_t ld = (trans ? rows : cols) + 3, n = ld * (trans ? cols : rows);
    zn_operand x = {.p = kt_random(t, n, 1), .dtype = ZN_DTYPE_F32, .trans = trans, .ld = ld};
    if (bf16) {
        void *p = kt_bytes(t, n * 2);
        assert_ok(ref()->convert(t->s, p, ZN_DTYPE_BF16, x.p, ZN_DTYPE_F32, 1, n));
        x.p = p;
        x.dtype = ZN_DTYPE_BF16;
    }
    return x;
}

static float *gemm_scratch(kt *t, int64_t largest, int n_threads)
{
    void *scratch = NULL;
    const size_t n_bytes = (size_t)zn_gemm_bf16_scratch(largest, n_threads) * sizeof(float);
    assert_int_equal(posix_memalign(&scratch, 64, n_bytes + 64), 0);
    t->buffers[t->n_buffers++] = scratch;
    return scratch;
}

/* Sums of products of bf16 numbers differ from the reference by the rounding of fp32 sums alone. */
static void gemm_bf16_agrees_for_every_transposition_and_type(void **state)
{
    kt *t = *state;
    static const int64_t shape[][3] = {{1, 1, 1},      {5, 7, 3},    {17, 65, 33},
                                       {64, 130, 140}, {32, 32, 32}, {33, 31, 1090}};
    KT_FOR_EACH_ISA(k)
    for (int i = 0; i < 6; i++)
        for (int mode = 0; mode < 32; mode++) {
            const int64_t M = shape[i][0], N = shape[i][1], K = shape[i][2], ldc = N + 2;
            const zn_operand A = operand(t, M, K, mode & 1, mode & 2);
            const zn_operand B = operand(t, K, N, mode & 4, mode & 8);
            const bool add = mode & 16;
            float *want = kt_random(t, ldc * M, 1), *got = kt_copy(t, want, ldc * M);
            if (!add) /* must not be read */
                got[0] = NAN;
            assert_ok(ref()->gemm_bf16(t->s, M, N, K, &A, &B,
                                       &(zn_result){.p = want, .add = add, .ld = ldc}, NULL));
            assert_ok(k->gemm_bf16(t->s, M, N, K, &A, &B,
                                   &(zn_result){.p = got, .add = add, .ld = ldc},
                                   gemm_scratch(t, 1090, 1)));
            kt_near("gemm_bf16", k->isa, got, want, ldc * M, 1e-5);
            kt_clear(t);
        }
}

/* An element is one sum over k, however many rows, columns and threads there are. */
static void gemm_bf16_gives_the_same_bits_for_any_part(void **state)
{
    kt *t = *state;
    const int64_t M = 300, N = 3200, K = 70;
    KT_FOR_EACH_ISA(k)
    {
        if (k->gemm_bf16 == ref()->gemm_bf16)
            continue;
        const zn_operand A = operand(t, M, K, false, false), B = operand(t, K, N, false, true);
        float *whole = kt_zeros(t, M * N), *part = kt_zeros(t, M * N);
        kt_use_threads(t, 1);
        assert_ok(k->gemm_bf16(t->s, M, N, K, &A, &B,
                               &(zn_result){.p = whole, .add = false, .ld = N},
                               gemm_scratch(t, N, 1)));
        kt_use_threads(t, 3);
        assert_ok(k->gemm_bf16(t->s, M, N, K, &A, &B,
                               &(zn_result){.p = part, .add = false, .ld = N},
                               gemm_scratch(t, N, 3)));
        kt_same_bits("gemm_bf16 on 3 threads", k->isa, part, whole, M * N * 4);
        for (int64_t m = 0; m < M; m += 299) { /* one row: shared out by columns */
            zn_operand row = A;
            row.p = (const float *)A.p + m * A.ld;
            assert_ok(k->gemm_bf16(t->s, 1, N, K, &row, &B,
                                   &(zn_result){.p = part, .add = false, .ld = N},
                                   gemm_scratch(t, N, 3)));
            kt_same_bits("gemm_bf16 of one row", k->isa, part, whole + m * N, N * 4);
        }
        kt_use_threads(t, 1);
        kt_clear(t);
    }
}

/* A bf16 result is the fp32 one, rounded once as convert does. */
static void gemm_bf16_rounds_its_result_as_convert_does(void **state)
{
    kt *t = *state;
    const int64_t M = 70, N = 133, K = ZN_GEMM_BF16_WHOLE_K, ld = N + 3;
    KT_FOR_EACH_ISA(k)
    {
        zn_operand A = operand(t, M, K, true, false), B = operand(t, K, N, false, false);
        float *sums = kt_zeros(t, M * ld), *scratch = gemm_scratch(t, K, 1);
        uint16_t *want = kt_bytes(t, M * ld * 2), *got = kt_bytes(t, M * ld * 2);
        memset(got, 0, (size_t)(M * ld) * 2);
        ((float *)(uintptr_t)A.p)[5] = NAN;
        zn_result C = {.p = sums, .ld = ld};
        assert_ok(k->gemm_bf16(t->s, M, N, K, &A, &B, &C, scratch));
        assert_ok(k->convert(t->s, want, ZN_DTYPE_BF16, sums, ZN_DTYPE_F32, 1, M * ld));
        C.p = got;
        C.dtype = ZN_DTYPE_BF16;
        assert_ok(k->gemm_bf16(t->s, M, N, K, &A, &B, &C, scratch));
        kt_same_bits("gemm_bf16 to bf16", k->isa, got, want, M * ld * 2);
        if (k->gemm_bf16 != ref()->gemm_bf16)
            assert_int_equal(k->gemm_bf16(t->s, M, N, K + 1, &A, &B, &C, scratch), ZINC_E_INVALID);
        kt_clear(t);
    }
}

/* What is not a number or not finite is not lost in the tiles. */
static void gemm_bf16_passes_on_what_is_not_finite(void **state)
{
    kt *t = *state;
    KT_FOR_EACH_ISA(k)
    {
        float a[2] = {INFINITY, NAN}, b[1] = {2}, c[2];
        const zn_operand A = {.p = a, .dtype = ZN_DTYPE_F32, .ld = 1};
        const zn_operand B = {.p = b, .dtype = ZN_DTYPE_F32, .ld = 1};
        assert_ok(k->gemm_bf16(t->s, 2, 1, 1, &A, &B, &(zn_result){.p = c, .add = false, .ld = 1},
                               gemm_scratch(t, 2, 1)));
        assert_true(isinf(c[0]) && c[0] > 0 && isnan(c[1]));
        kt_clear(t);
    }
}

static void element_wise_kernels_agree(void **state)
{
    kt *t = *state;
    KT_FOR_EACH_ISA(k)
    for (int64_t l = 0; l < N_LENGTHS; l++) {
        const int64_t n = lengths[l];
        const float *a = kt_random(t, n, 3), *b = kt_random(t, n, 1);
        float *want = kt_copy(t, b, n), *got = kt_copy(t, b, n);
        assert_ok(ref()->axpy(t->s, want, a, 0.3f, n));
        assert_ok(k->axpy(t->s, got, a, 0.3f, n));
        kt_same_bits("axpy", k->isa, got, want, n * 4);
        assert_ok(ref()->add(t->s, want, a, b, n));
        assert_ok(k->add(t->s, got, a, b, n));
        kt_same_bits("add", k->isa, got, want, n * 4);
        assert_ok(ref()->scale(t->s, want, 1.7f, n));
        assert_ok(k->scale(t->s, got, 1.7f, n));
        kt_same_bits("scale", k->isa, got, want, n * 4);
        assert_ok(ref()->softcap(t->s, want, 5.0f, n));
        assert_ok(k->softcap(t->s, got, 5.0f, n));
        kt_near("softcap", k->isa, got, want, n, TOLERANCE);
        assert_ok(ref()->fill(t->s, want, 2.5f, n));
        assert_ok(k->fill(t->s, got, 2.5f, n));
        kt_same_bits("fill", k->isa, got, want, n * 4);
        kt_clear(t);
    }
}

static void zero_clears_exactly_its_bytes(void **state)
{
    kt *t = *state;
    const int64_t room = 3 << 20;
    unsigned char *x = kt_bytes(t, room);
    KT_FOR_EACH_ISA(k)
    for (int64_t offset = 0; offset < 4; offset++) {
        static const int64_t sizes[] = {1, 63, 1000, (1 << 20) - 1, 1 << 20, (2 << 20) + 77};
        for (int i = 0; i < 6; i++) {
            memset(x, 0xAB, (size_t)room);
            assert_ok(k->zero(t->s, x + 1 + offset * 19, sizes[i]));
            assert_int_equal(x[offset * 19], 0xAB);
            assert_int_equal(x[1 + offset * 19 + sizes[i]], 0xAB);
            int64_t sum = 0;
            for (int64_t j = 0; j < sizes[i]; j++)
                sum += x[1 + offset * 19 + j];
            assert_int_equal(sum, 0);
        }
    }
}

static void conversions_are_bit_for_bit_the_scalar_definition(void **state)
{
    kt *t = *state;
    static const zn_dtype types[] = {ZN_DTYPE_F32, ZN_DTYPE_BF16, ZN_DTYPE_F16};
    const int64_t n = 3001;
    float *x = kt_zeros(t, n);
    for (int64_t i = 0; i < n; i++) /* all exponents, ties, infinities and NaN among them */
        x[i] = zn_f32_from_bits((uint32_t)zn_hash_mix((uint64_t)i) & (i % 3 ? ~0u : 0xFFFF8000u));
    static const uint32_t special[] = {0x7F800000u, 0xFF800000u, 0x7FFFFFFFu, 0xFF800001u,
                                       0x80000000u, 0x3F808000u, 0x477FF000u, 0x33000000u};
    for (int i = 0; i < 8; i++)
        x[i * 5] = zn_f32_from_bits(special[i]);
    uint16_t *h = kt_bytes(t, n * 2);
    float *want = kt_zeros(t, n), *got = kt_zeros(t, n);
    KT_FOR_EACH_ISA(k)
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++)
            for (int scaled = 0; scaled < 2; scaled++) {
                const float scale = scaled ? 0.37f : 1.0f;
                const void *src = x;
                if (types[from] != ZN_DTYPE_F32) {
                    assert_ok(ref()->convert(t->s, h, types[from], x, ZN_DTYPE_F32, 1, n));
                    src = h;
                }
                memset(want, 0, (size_t)n * 4);
                memset(got, 0, (size_t)n * 4);
                assert_ok(ref()->convert(t->s, want, types[to], src, types[from], scale, n));
                assert_ok(k->convert(t->s, got, types[to], src, types[from], scale, n));
                if (types[to] != ZN_DTYPE_F32) {
                    kt_same_bits("convert", k->isa, got, want, n * 4);
                    continue;
                }
                kt_near("convert", k->isa, got, want, n, 0);
            }
}

static void narrowing_works_in_place(void **state)
{
    kt *t = *state;
    const int64_t n = 100003;
    const float *x = kt_random(t, n, 1);
    uint16_t *want = kt_bytes(t, n * 2);
    assert_ok(ref()->convert(t->s, want, ZN_DTYPE_BF16, x, ZN_DTYPE_F32, 1, n));
    kt_use_threads(t, 2);
    KT_FOR_EACH_ISA(k)
    {
        float *y = kt_copy(t, x, n);
        assert_ok(k->convert(t->s, y, ZN_DTYPE_BF16, y, ZN_DTYPE_F32, 1, n));
        kt_same_bits("convert in place", k->isa, y, want, n * 2);
    }
}

static void activations_agree_also_far_from_zero(void **state)
{
    kt *t = *state;
    const int64_t n = 2048 + 5;
    float *x = kt_random(t, n, 3);
    for (int64_t i = 0; i < 1024; i++)
        x[i] = (float)(i - 512) / 32;
    x[0] = -1e30f, x[1] = 1e30f, x[2] = 0.0f, x[3] = -88.0f;
    const float *dy = kt_random(t, n, 1), *up = kt_random(t, n, 1);
    float *want = kt_zeros(t, n), *got = kt_zeros(t, n), *want2 = kt_zeros(t, n);
    KT_FOR_EACH_ISA(k)
    for (int i = 0; i < 4; i++) {
        const zn_act kind = (zn_act)i;
        for (int64_t j = 4; j < n; j += n - 5) { /* the huge ones apart: they drown the rest */
            const int64_t from = j == 4 ? 0 : 4, m = j == 4 ? 4 : n - 4;
            assert_ok(ref()->act(t->s, kind, want, x + from, m));
            assert_ok(k->act(t->s, kind, got, x + from, m));
            kt_near("act", k->isa, got, want, m, 3e-7);
            assert_ok(ref()->act_backward(t->s, kind, want, dy + from, x + from, m));
            assert_ok(k->act_backward(t->s, kind, got, dy + from, x + from, m));
            kt_near("act_backward", k->isa, got, want, m, 1e-6);
        }
        assert_ok(ref()->glu(t->s, kind, want, x + 4, up + 4, n - 4));
        assert_ok(k->glu(t->s, kind, got, x + 4, up + 4, n - 4));
        kt_near("glu", k->isa, got, want, n - 4, 3e-7);
        assert_ok(ref()->glu_backward(t->s, kind, want, want2, dy + 4, x + 4, up + 4, n - 4));
        float *gate = kt_copy(t, x, n), *dup = kt_copy(t, up, n); /* results over the inputs */
        assert_ok(k->glu_backward(t->s, kind, gate + 4, dup + 4, dy + 4, gate + 4, dup + 4, n - 4));
        kt_near("glu_backward dgate", k->isa, gate + 4, want, n - 4, 1e-6);
        kt_near("glu_backward dup", k->isa, dup + 4, want2, n - 4, 3e-7);
    }
}

static void dropout_keeps_the_same_elements(void **state)
{
    kt *t = *state;
    const int64_t N = 6, T = 3, C = 1003, sample[] = {41, 7};
    const float *x = kt_random(t, N * C, 1);
    float *want = kt_zeros(t, N * C), *got = kt_zeros(t, N * C);
    assert_ok(ref()->dropout(t->s, want, x, N, T, C, sample, 99, 0.3f));
    int64_t n_dropped = 0;
    for (int64_t i = 0; i < N * C; i++)
        n_dropped += want[i] == 0;
    assert_in_range(n_dropped, N * C / 4, N * C * 7 / 20);
    KT_FOR_EACH_ISA(k)
    {
        assert_ok(k->dropout(t->s, got, x, N, T, C, sample, 99, 0.3f));
        kt_same_bits("dropout", k->isa, got, want, N * C * 4);
        assert_ok(k->dropout(t->s, got, x, N, T, C, sample, 99, 0.0f));
        kt_same_bits("dropout of 0", k->isa, got, x, N * C * 4);
    }
    /* the other half of the batch alone, with the sample named, drops the same elements */
    assert_ok(ref()->dropout(t->s, got, x + T * C, T, T, C, sample + 1, 99, 0.3f));
    kt_same_bits("dropout of a part", "ref", got, want + T * C, T * C * 4);
}

static void biases_and_their_gradients_agree(void **state)
{
    kt *t = *state;
    KT_FOR_EACH_ISA(k)
    for (int64_t l = 0; l < N_LENGTHS - 1; l++) {
        const int64_t N = 1 + l * 3, C = lengths[l];
        const float *bias = kt_random(t, C, 1), *dy = kt_random(t, N * C, 1);
        float *want = kt_copy(t, dy, N * C), *got = kt_copy(t, dy, N * C);
        assert_ok(ref()->add_bias(t->s, want, bias, N, C));
        assert_ok(k->add_bias(t->s, got, bias, N, C));
        kt_same_bits("add_bias", k->isa, got, want, N * C * 4);
        float *db_want = kt_copy(t, bias, C), *db = kt_copy(t, bias, C);
        assert_ok(ref()->bias_grad(t->s, db_want, dy, N, C));
        assert_ok(k->bias_grad(t->s, db, dy, N, C));
        kt_near("bias_grad", k->isa, db, db_want, C, TOLERANCE);
        kt_clear(t);
    }
}

static void layernorm_agrees(void **state)
{
    kt *t = *state;
    KT_FOR_EACH_ISA(k)
    for (int64_t l = 2; l < N_LENGTHS - 1; l++) {
        const int64_t N = l == 5 ? 2300 : 1 + 7 * l, C = lengths[l];
        const float *x = kt_random(t, N * C, 2), *w = kt_random(t, C, 1), *b = kt_random(t, C, 1);
        const float *dy = kt_random(t, N * C, 1);
        float *want = kt_zeros(t, N * C), *mean = kt_zeros(t, N), *rstd = kt_zeros(t, N);
        float *got = kt_zeros(t, N * C), *mean2 = kt_zeros(t, N), *rstd2 = kt_zeros(t, N);
        const float *bias = l % 2 ? b : NULL;
        assert_ok(ref()->layernorm(t->s, want, mean, rstd, x, w, bias, N, C, 1e-5f));
        assert_ok(k->layernorm(t->s, got, mean2, rstd2, x, w, bias, N, C, 1e-5f));
        kt_near("layernorm", k->isa, got, want, N * C, 5e-6);
        kt_near("layernorm mean", k->isa, mean2, mean, N, TOLERANCE);
        kt_near("layernorm rstd", k->isa, rstd2, rstd, N, TOLERANCE);
        float *scratch = kt_zeros(t, zn_norm_scratch(C));
        float *dx = kt_copy(t, x, N * C), *dx2 = kt_copy(t, x, N * C);
        float *dw = kt_copy(t, w, C), *dw2 = kt_copy(t, w, C);
        float *db = kt_copy(t, b, C), *db2 = kt_copy(t, b, C);
        const bool accumulate = l % 3 == 0;
        assert_ok(ref()->layernorm_backward(t->s, dx, accumulate, dw, bias ? db : NULL, dy, x, w,
                                            mean, rstd, N, C, scratch));
        assert_ok(k->layernorm_backward(t->s, dx2, accumulate, dw2, bias ? db2 : NULL, dy, x, w,
                                        mean, rstd, N, C, scratch));
        kt_near("layernorm dx", k->isa, dx2, dx, N * C, 5e-6);
        kt_near("layernorm dw", k->isa, dw2, dw, C, 5e-6);
        kt_near("layernorm db", k->isa, db2, db, C, 5e-6);
        kt_clear(t);
    }
}

static void rmsnorm_agrees_inside_a_wider_buffer_and_in_place(void **state)
{
    kt *t = *state;
    KT_FOR_EACH_ISA(k)
    for (int64_t l = 0; l < N_LENGTHS - 1; l++) {
        const int64_t N = 1 + 9 * l, C = lengths[l], ld = C + 5;
        const float offset = l % 2 ? 1.0f : 0.0f;
        const float *x = kt_random(t, N * ld, 2), *w = kt_random(t, C, 1);
        const float *dy = kt_random(t, N * ld, 1);
        float *want = kt_copy(t, x, N * ld), *got = kt_copy(t, x, N * ld);
        float *rstd = kt_zeros(t, N), *rstd2 = kt_zeros(t, N);
        assert_ok(ref()->rmsnorm(t->s, want, ld, rstd, x, ld, w, offset, N, C, 1e-6f));
        assert_ok(k->rmsnorm(t->s, got, ld, rstd2, x, ld, w, offset, N, C, 1e-6f));
        kt_near("rmsnorm", k->isa, got, want, N * ld, 5e-6);
        kt_near("rmsnorm rstd", k->isa, rstd2, rstd, N, TOLERANCE);
        float *scratch = kt_zeros(t, zn_norm_scratch(C));
        float *dx = kt_copy(t, dy, N * ld), *dx2 = kt_copy(t, dy, N * ld); /* over dy */
        float *dw = kt_copy(t, w, C), *dw2 = kt_copy(t, w, C);
        assert_ok(ref()->rmsnorm_backward(t->s, dx, ld, false, dw, dx, ld, x, ld, w, offset, rstd,
                                          N, C, scratch));
        assert_ok(k->rmsnorm_backward(t->s, dx2, ld, false, l % 3 ? dw2 : NULL, dx2, ld, x, ld, w,
                                      offset, rstd, N, C, scratch));
        kt_near("rmsnorm dx", k->isa, dx2, dx, N * ld, 5e-6);
        if (l % 3)
            kt_near("rmsnorm dw", k->isa, dw2, dw, C, 5e-6);
        kt_clear(t);
    }
}

static void rope_agrees_and_turns_back(void **state)
{
    kt *t = *state;
    const int64_t N = 10, T = 5, H = 3;
    KT_FOR_EACH_ISA(k)
    for (int64_t D = 4; D <= 80; D += 12)
        for (int64_t rotary = D; rotary >= D / 2; rotary -= D / 2) {
            const int64_t half = rotary / 2, stride = H * D + 7;
            float *angle = kt_random(t, T * half, 3), *c = kt_zeros(t, T * half),
                  *z = kt_zeros(t, T * half);
            for (int64_t i = 0; i < T * half; i++) {
                c[i] = cosf(angle[i]);
                z[i] = sinf(angle[i]);
            }
            const float *x = kt_random(t, N * stride, 1);
            float *want = kt_copy(t, x, N * stride), *got = kt_copy(t, x, N * stride);
            assert_ok(ref()->rope(t->s, want, stride, N, T, H, D, rotary, c, z, 1));
            assert_ok(k->rope(t->s, got, stride, N, T, H, D, rotary, c, z, 1));
            kt_near("rope", k->isa, got, want, N * stride, TOLERANCE);
            assert_ok(k->rope(t->s, got, stride, N, T, H, D, rotary, c, z, -1));
            kt_near("rope back", k->isa, got, x, N * stride, TOLERANCE);
            kt_clear(t);
        }
}

static void embedding_agrees_and_refuses_foreign_ids(void **state)
{
    kt *t = *state;
    const int64_t V = 11, N = 9;
    const int32_t ids[] = {3, 0, 10, 3, 3, 7, 0, 1, 10};
    KT_FOR_EACH_ISA(k)
    for (int64_t l = 0; l < N_LENGTHS - 1; l++) {
        const int64_t C = lengths[l];
        const float *table = kt_random(t, V * C, 1), *dy = kt_random(t, N * C, 1);
        uint16_t *table16 = kt_bytes(t, V * C * 2);
        assert_ok(ref()->convert(t->s, table16, ZN_DTYPE_BF16, table, ZN_DTYPE_F32, 1, V * C));
        float *want = kt_copy(t, dy, N * C), *got = kt_copy(t, dy, N * C);
        assert_ok(ref()->embed(t->s, want, table, ZN_DTYPE_F32, ids, N, C, 1.5f, false));
        assert_ok(ref()->embed(t->s, want, table16, ZN_DTYPE_BF16, ids, N, C, 0.5f, true));
        assert_ok(k->embed(t->s, got, table, ZN_DTYPE_F32, ids, N, C, 1.5f, false));
        assert_ok(k->embed(t->s, got, table16, ZN_DTYPE_BF16, ids, N, C, 0.5f, true));
        kt_same_bits("embed", k->isa, got, want, N * C * 4);
        float *dt = kt_copy(t, table, V * C), *dt2 = kt_copy(t, table, V * C);
        assert_ok(ref()->embed_backward(t->s, dt, dy, ids, N, C, V, 0.5f));
        assert_ok(k->embed_backward(t->s, dt2, dy, ids, N, C, V, 0.5f));
        kt_same_bits("embed_backward", k->isa, dt2, dt, V * C * 4);
        assert_fails(k->embed_backward(t->s, dt2, dy, ids, N, C, 10, 1), ZINC_E_INVALID,
                     "token id 10 at row 2");
        kt_clear(t);
    }
}

static void cross_entropy_case(kt *t, const zn_kernels *k, int64_t N, int64_t V, float cap)
{
    const int64_t ld = V + 3;
    const float *x = kt_random(t, N * ld, 4);
    int32_t *targets = kt_bytes(t, N * 4);
    for (int64_t n = 0; n < N; n++)
        targets[n] = n == 1 ? -100 : (int32_t)(V - 1 - n % V);
    float *want = kt_copy(t, x, N * ld), *got = kt_copy(t, x, N * ld);
    float *loss = kt_zeros(t, N), *loss2 = kt_zeros(t, N);
    assert_ok(k->cross_entropy(t->s, got, ld, targets, loss2, N, V, cap, 0.1f, false));
    memcpy(got, x, (size_t)(N * ld) * 4);
    assert_ok(ref()->cross_entropy(t->s, want, ld, targets, loss, N, V, cap, 0.1f, true));
    kt_near("loss without backward", k->isa, loss2, loss, N, TOLERANCE);
    assert_ok(k->cross_entropy(t->s, got, ld, targets, loss2, N, V, cap, 0.1f, true));
    kt_near("loss", k->isa, loss2, loss, N, TOLERANCE);
    /* row by row, each on its own scale; p - 1 of the target cancels where few share the mass */
    for (int64_t n = 0; n < N; n++)
        kt_near("gradient of the logits", k->isa, got + n * ld, want + n * ld, V,
                V < 100 ? 2e-5 : TOLERANCE);
    targets[0] = (int32_t)V;
    assert_fails(k->cross_entropy(t->s, got, ld, targets, loss2, N, V, cap, 0.1f, true),
                 ZINC_E_INVALID, "outside the vocabulary");
    kt_clear(t);
}

static void cross_entropy_agrees_up_to_wide_vocabularies(void **state)
{
    KT_FOR_EACH_ISA(k)
    {
        ((kt *)*state)->seed = 0; /* a loss near 0 is a small difference: the same numbers always */
        for (int64_t l = 1; l < N_LENGTHS; l++)
            cross_entropy_case(*state, k, 3, lengths[l], l % 2 ? 0 : 10.0f);
        cross_entropy_case(*state, k, 2, 50257, 0);
        cross_entropy_case(*state, k, 2, 50257, 30.0f);
    }
}

static void sums_of_squares_agree(void **state)
{
    kt *t = *state;
    KT_FOR_EACH_ISA(k)
    for (int64_t l = 0; l < N_LENGTHS; l++) {
        const int64_t n = lengths[l] * 13;
        const float *x = kt_random(t, n, 1);
        uint16_t *h = kt_bytes(t, n * 2);
        double want, got;
        assert_ok(ref()->sum_squares(t->s, x, ZN_DTYPE_F32, n, &want));
        assert_ok(k->sum_squares(t->s, x, ZN_DTYPE_F32, n, &got));
        assert_true(fabs(got - want) <= 1e-13 * want);
        assert_ok(ref()->convert(t->s, h, ZN_DTYPE_F16, x, ZN_DTYPE_F32, 1, n));
        assert_ok(ref()->sum_squares(t->s, h, ZN_DTYPE_F16, n, &want));
        assert_ok(k->sum_squares(t->s, h, ZN_DTYPE_F16, n, &got));
        assert_true(fabs(got - want) <= 1e-13 * want);
        kt_clear(t);
    }
    double overflow;
    float inf[] = {1, INFINITY, 2};
    assert_ok(zn_kernels_get(t->dev)->sum_squares(t->s, inf, ZN_DTYPE_F32, 3, &overflow));
    assert_true(overflow == (double)INFINITY);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_table_has_every_slot),
    cmocka_unit_test(gemm_agrees_for_every_transposition),
    cmocka_unit_test(gemm_bf16_agrees_for_every_transposition_and_type),
    cmocka_unit_test(gemm_bf16_gives_the_same_bits_for_any_part),
    cmocka_unit_test(gemm_bf16_passes_on_what_is_not_finite),
    cmocka_unit_test(gemm_bf16_rounds_its_result_as_convert_does),
    cmocka_unit_test(element_wise_kernels_agree),
    cmocka_unit_test(zero_clears_exactly_its_bytes),
    cmocka_unit_test(conversions_are_bit_for_bit_the_scalar_definition),
    cmocka_unit_test(narrowing_works_in_place),
    cmocka_unit_test(activations_agree_also_far_from_zero),
    cmocka_unit_test(dropout_keeps_the_same_elements),
    cmocka_unit_test(biases_and_their_gradients_agree),
    cmocka_unit_test(layernorm_agrees),
    cmocka_unit_test(rmsnorm_agrees_inside_a_wider_buffer_and_in_place),
    cmocka_unit_test(rope_agrees_and_turns_back),
    cmocka_unit_test(embedding_agrees_and_refuses_foreign_ids),
    cmocka_unit_test(cross_entropy_agrees_up_to_wide_vocabularies),
    cmocka_unit_test(sums_of_squares_agree),
};

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
