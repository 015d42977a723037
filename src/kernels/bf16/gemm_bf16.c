/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_bf16.c — GEMM with bf16 operands on tile registers (AMX) or bf16 dot products (AVX-512).
 *
 * Blocks of op(A) and op(B) are packed into bf16 tiles of 16 x 16 pairs, two neighbours in k to a
 * pair, zeros beyond the matrix; f32 operands are rounded on the way. A tile of A has a row of
 * pairs for each m, a tile of B a row of n for each pair. A panel is 32 rows (or columns), tile by
 * tile along k. Every element of C is summed over k in one order, cut at multiples of a depth that
 * hangs on K alone, so it does not depend on M, N or the number of threads. */
#include "kernels/kernels_internal.h"

#ifdef ZINC_HAVE_SIMD
#include <immintrin.h>
#include <string.h>

#define TILE 16                    /* rows of a tile; a row has TILE pairs: 64 bytes */
#define TILE_K (2 * TILE)          /* of k */
#define TILE_ELEMS (TILE * TILE_K) /* bf16 */
#define PANEL (2 * TILE)           /* rows of A, columns of B */
#define DEPTH ZN_GEMM_BF16_WHOLE_K /* most of k at a time */
#define CHUNK_M (64 * PANEL)       /* rows of A that are packed at a time */
#define CHUNK_N (16 * PANEL)       /* columns of B that a thread packs: they stay in its cache */

/* sum[PANEL, PANEL] (rows ldc apart) (+)= A panel times B panel over n_tiles tiles of k */
typedef void (*panel_fn)(float *C, int64_t ldc, const uint16_t *A, const uint16_t *B,
                         int64_t n_tiles, bool add);

/* ---- packing ----
 *
 * Most of its time is waiting for memory: a matrix that is contiguous in k is read 16 rows at a
 * time, with the next 16 on their way to the cache, and one that is contiguous across k is read a
 * run of panels at a time, so that each row's part is long. The kind of matrix is a constant
 * in each loop. */

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE void transpose16(__m512i x[TILE])
{
    __m512i t[TILE];
#pragma GCC unroll 4
    for (int i = 0; i < TILE; i += 4) {
        const __m512i a = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        const __m512i b = _mm512_unpackhi_epi32(x[i], x[i + 1]);
        const __m512i c = _mm512_unpacklo_epi32(x[i + 2], x[i + 3]);
        const __m512i d = _mm512_unpackhi_epi32(x[i + 2], x[i + 3]);
        t[i] = _mm512_unpacklo_epi64(a, c);
        t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d);
        t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88);
        const __m512i b = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xDD);
        const __m512i c = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
        const __m512i d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xDD);
        x[i] = _mm512_shuffle_i32x4(a, c, 0x88);
        x[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
        x[i + 8] = _mm512_shuffle_i32x4(a, c, 0xDD);
        x[i + 12] = _mm512_shuffle_i32x4(b, d, 0xDD);
    }
}

ALWAYS_INLINE __mmask16 first(int64_t n)
{
    return (__mmask16)(n >= TILE ? 0xFFFF : n <= 0 ? 0 : (1 << n) - 1);
}

typedef struct packing {
    bool bf16;    /* the matrix's type; else fp32 */
    bool along;   /* it is contiguous in k */
    bool by_pair; /* a row of a tile is a pair of k, not an n */
} packing;

/* TILE pairs of a row that is contiguous in k; n elements exist. */
ALWAYS_INLINE __m512i pairs_along(const void *row, bool bf16, int64_t n)
{
    if (bf16)
        return n >= TILE_K ? _mm512_loadu_si512(row)
                           : _mm512_maskz_loadu_epi16((1u << n) - 1u, row);
    const float *p = row;
    const __m512 lo = _mm512_maskz_loadu_ps(first(n), p);
    const __m512 hi = _mm512_maskz_loadu_ps(first(n - TILE), p + TILE);
    return (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
}

/* Pairs of two rows, ld apart, that are contiguous across k; n columns and two (or one) rows exist.
 */
ALWAYS_INLINE __m512i pairs_across(const void *row, int64_t ld, bool bf16, int64_t n, bool both)
{
    const __mmask16 columns = first(n), second = both ? columns : 0;
    if (bf16) {
        const uint16_t *p = row;
        const __m512i lo = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(columns, p));
        const __m512i hi = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(second, p + ld));
        return _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16));
    }
    const float *p = row;
    const __m512i interleave =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512 lo = _mm512_maskz_loadu_ps(columns, p);
    const __m512 hi = _mm512_maskz_loadu_ps(second, p + ld);
    return _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
}

/* One tile of a matrix seen as [n, k]; n_left and k_left elements exist from (n, k) on. */
ALWAYS_INLINE void pack_tile(uint16_t *dst, const zn_operand *x, packing how, int64_t n, int64_t k,
                             int64_t n_left, int64_t k_left)
{
    const int64_t row_bytes = x->ld * (how.bf16 ? 2 : 4);
    const int64_t at = how.along ? n * x->ld + k : k * x->ld + n;
    const char *row = (const char *)x->p + at * (how.bf16 ? 2 : 4);
    __m512i v[TILE];
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++, row += how.along ? row_bytes : 2 * row_bytes) {
        v[i] = _mm512_setzero_si512();
        if (how.along) {
            if (i < n_left)
                v[i] = pairs_along(row, how.bf16, k_left);
            _mm_prefetch(row + TILE * row_bytes, _MM_HINT_T1);
            if (!how.bf16)
                _mm_prefetch(row + TILE * row_bytes + 64, _MM_HINT_T1);
        } else if (2 * i < k_left) {
            v[i] = pairs_across(row, x->ld, how.bf16, n_left, 2 * i + 1 < k_left);
        }
    }
    if (how.along == how.by_pair)
        transpose16(v);
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++)
        _mm512_store_si512(dst + i * TILE_K, v[i]);
}

/* The same; no masks where the tile is whole. */
ALWAYS_INLINE void pack_tile_at(uint16_t *dst, const zn_operand *x, packing how, int64_t n,
                                int64_t k, int64_t n_left, int64_t k_left)
{
    if (n_left >= TILE && k_left >= TILE_K)
        pack_tile(dst, x, how, n, k, TILE, TILE_K);
    else
        pack_tile(dst, x, how, n, k, n_left, k_left);
}

/* A run of panels: rows [n0, n1) of N, over k in [k0, k1). */
typedef struct stretch {
    int64_t n0, n1, N, k0, k1;
} stretch;

ALWAYS_INLINE void pack_as(uint16_t *dst, const zn_operand *x, const stretch *r, packing how)
{
    const int64_t size = 2 * TILE_ELEMS * ((r->k1 - r->k0 + TILE_K - 1) / TILE_K);
    if (how.along) {
        for (int64_t n = r->n0; n < r->n1; n += PANEL, dst += size)
            for (int64_t half = 0; half < PANEL; half += TILE)
                for (int64_t k = r->k0; k < r->k1; k += TILE_K)
                    pack_tile_at(dst + (k - r->k0) / TILE_K * 2 * TILE_ELEMS + half * TILE_K, x,
                                 how, n + half, k, r->N - n - half, r->k1 - k);
        return;
    }
    for (int64_t k = r->k0; k < r->k1; k += TILE_K, dst += 2 * TILE_ELEMS)
        for (int64_t n = r->n0; n < r->n1; n += PANEL)
            for (int64_t half = 0; half < PANEL; half += TILE)
                pack_tile_at(dst + (n - r->n0) / PANEL * size + half * TILE_K, x, how, n + half, k,
                             r->N - n - half, r->k1 - k);
}

/* Panels of A: a row of pairs for each m. */
static void pack_a(uint16_t *dst, const zn_operand *A, const stretch *r)
{
    const bool bf16 = A->dtype == ZN_DTYPE_BF16;
    if (A->trans && bf16)
        pack_as(dst, A, r, (packing){.bf16 = true});
    else if (A->trans)
        pack_as(dst, A, r, (packing){0});
    else if (bf16)
        pack_as(dst, A, r, (packing){.bf16 = true, .along = true});
    else
        pack_as(dst, A, r, (packing){.along = true});
}

/* Panels of B: a row of n for each pair. */
static void pack_b(uint16_t *dst, const zn_operand *B, const stretch *r)
{
    const bool bf16 = B->dtype == ZN_DTYPE_BF16;
    if (B->trans && bf16)
        pack_as(dst, B, r, (packing){.bf16 = true, .along = true, .by_pair = true});
    else if (B->trans)
        pack_as(dst, B, r, (packing){.along = true, .by_pair = true});
    else if (bf16)
        pack_as(dst, B, r, (packing){.bf16 = true, .by_pair = true});
    else
        pack_as(dst, B, r, (packing){.by_pair = true});
}

/* ---- panels ---- */

__attribute__((target("amx-tile,amx-bf16"))) static void
panel_amx(float *C, int64_t ldc, const uint16_t *A, const uint16_t *B, int64_t n_tiles, bool add)
{
    const float *next = C + PANEL; /* the panel beside this one comes next */
    const size_t stride = (size_t)ldc * sizeof *C;
    if (add) {
        _tile_loadd(0, C, stride);
        _tile_loadd(1, C + TILE, stride);
        _tile_loadd(2, C + TILE * ldc, stride);
        _tile_loadd(3, C + TILE * ldc + TILE, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < n_tiles; k++, A += 2 * TILE_ELEMS, B += 2 * TILE_ELEMS) {
        for (int64_t r = 2 * k; k < TILE && r < 2 * k + 2; r++) { /* its rows are far apart */
            __builtin_prefetch(next + r * ldc, 1);
            __builtin_prefetch(next + r * ldc + TILE, 1);
        }
        _tile_loadd(6, B, 64);
        _tile_loadd(4, A, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, B + TILE_ELEMS, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, A + TILE_ELEMS, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, C, stride);
    _tile_stored(1, C + TILE, stride);
    _tile_stored(2, C + TILE * ldc, stride);
    _tile_stored(3, C + TILE * ldc + TILE, stride);
}

/* Eight rows of a panel at a time: 16 sums, two vectors of B and a broadcast pair of A. */
#define DOT_ROWS 8

static void panel_dot(float *C, int64_t ldc, const uint16_t *A, const uint16_t *B, int64_t n_tiles,
                      bool add)
{
    for (int64_t m = 0; m < PANEL; m += DOT_ROWS, C += DOT_ROWS * ldc) {
        const uint16_t *a = A + m / TILE * TILE_ELEMS + m % TILE * TILE_K, *b = B;
        __m512 sum[DOT_ROWS][2];
#pragma GCC unroll 8
        for (int r = 0; r < DOT_ROWS; r++)
            for (int v = 0; v < 2; v++)
                sum[r][v] = add ? _mm512_loadu_ps(C + r * ldc + v * TILE) : _mm512_setzero_ps();
        for (int64_t k = 0; k < n_tiles; k++, a += 2 * TILE_ELEMS, b += 2 * TILE_ELEMS)
            for (int pair = 0; pair < TILE; pair++) {
                const __m512bh b0 = (__m512bh)_mm512_load_si512(b + pair * TILE_K);
                const __m512bh b1 = (__m512bh)_mm512_load_si512(b + TILE_ELEMS + pair * TILE_K);
#pragma GCC unroll 8
                for (int r = 0; r < DOT_ROWS; r++) {
                    int both;
                    memcpy(&both, a + r * TILE_K + 2 * pair, sizeof both);
                    const __m512bh x = (__m512bh)_mm512_set1_epi32(both);
                    sum[r][0] = _mm512_dpbf16_ps(sum[r][0], x, b0);
                    sum[r][1] = _mm512_dpbf16_ps(sum[r][1], x, b1);
                }
            }
#pragma GCC unroll 8
        for (int r = 0; r < DOT_ROWS; r++)
            for (int v = 0; v < 2; v++)
                _mm512_storeu_ps(C + r * ldc + v * TILE, sum[r][v]);
    }
}

/* ---- the product ---- */

typedef struct product {
    panel_fn panel;
    int64_t M, N;
    const zn_operand *A, *B;
    const zn_result *C;
} product;

static int64_t panels(int64_t n)
{
    return (n + PANEL - 1) / PANEL;
}

/* Rows of a panel rounded to bf16. */
static void narrow_rows(uint16_t *C, int64_t ldc, const float *sums, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < cols; n += TILE) {
            const __m512 x = _mm512_load_ps(sums + r * PANEL + n);
            const __m512i bits = _mm512_castps_si512(x);
            const __m512i near = _mm512_add_epi32(bits, _mm512_set1_epi32(0x8000));
            const __m512i nan = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
            const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
            const __m512i high = _mm512_mask_blend_epi32(is_nan, near, nan);
            _mm256_mask_storeu_epi16(C + r * ldc + n, first(cols - n),
                                     _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16)));
        }
}

/* A panel of C that may reach over the edge of the matrix, or be rounded. */
static void panel_of(const product *p, const uint16_t *A, const uint16_t *B, int64_t m, int64_t n,
                     int64_t n_tiles, bool add)
{
    const zn_result *to = p->C;
    const int64_t ldc = to->ld, rows = zn_min64(PANEL, p->M - m), cols = zn_min64(PANEL, p->N - n);
    const bool narrow = to->dtype == ZN_DTYPE_BF16;
    float *C = narrow ? NULL : (float *)to->p + m * ldc + n;
    if (!narrow && rows == PANEL && cols == PANEL) {
        p->panel(C, ldc, A, B, n_tiles, add);
        return;
    }
    _Alignas(64) float edge[PANEL * PANEL];
    for (int64_t r = 0; add && r < rows; r++)
        memcpy(edge + r * PANEL, C + r * ldc, (size_t)cols * sizeof *C);
    p->panel(edge, PANEL, A, B, n_tiles, add);
    if (narrow)
        narrow_rows((uint16_t *)to->p + m * ldc + n, ldc, edge, rows, cols);
    for (int64_t r = 0; !narrow && r < rows; r++)
        memcpy(C + r * ldc, edge + r * PANEL, (size_t)cols * sizeof *C);
}

/* Depths of equal size, in whole tiles. */
static int64_t depth_of(int64_t K)
{
    const int64_t cuts = (K + DEPTH - 1) / DEPTH, each = (K + cuts - 1) / cuts;
    return (each + TILE_K - 1) / TILE_K * TILE_K;
}

/* Eight tiles of 16 rows of 64 bytes. Static: the compiler believes that the instruction reads the
 * first eight bytes only, and would not write the others of a local one. */
static const struct __attribute__((aligned(64))) tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} eight_tiles = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE},
};

__attribute__((target("amx-tile"))) void zn_tiles_begin(void)
{
    _tile_loadconfig(&eight_tiles);
}

__attribute__((target("amx-tile"))) void zn_tiles_end(void)
{
    _tile_release();
}

/* What a thread does of C: rows m0 on, columns n0 on, over k in [k0, k1). */
typedef struct part {
    int64_t m0, m1, n0, n1, k0, k1;
} part;

static int64_t panel_elems(const part *r)
{
    return 2 * TILE_ELEMS * ((r->k1 - r->k0 + TILE_K - 1) / TILE_K);
}

/* A is packed from row m0 on; columns of B are packed here, as many as stay in the cache while all
 * rows of A pass by. */
static void multiply(const product *p, const uint16_t *a, uint16_t *b, const part *r)
{
    const int64_t size = panel_elems(r);
    for (int64_t n = r->n0; n < r->n1; n += CHUNK_N) {
        const int64_t end = zn_min64(r->n1, n + CHUNK_N);
        const stretch columns = {n, end, p->N, r->k0, r->k1};
        pack_b(b, p->B, &columns);
        for (int64_t i = r->m0; i < r->m1; i += PANEL)
            for (int64_t j = n; j < end; j += PANEL)
                panel_of(p, a + (i - r->m0) / PANEL * size, b + (j - n) / PANEL * size, i, j,
                         size / (2 * TILE_ELEMS), p->C->add || r->k0 > 0);
    }
}

/* Turn t of n over `all`: a grid of threads, as many beside one another as have a chunk of columns
 * each. Those below one another pack the same columns. */
static part part_of(const part *all, int t, int n)
{
    const int64_t rows = panels(all->m1 - all->m0), cols = panels(all->n1 - all->n0);
    int across = n;
    while (across > 1 && (n % across != 0 || cols < across * (CHUNK_N / PANEL)))
        across--;
    const int down = n / across, x = t % across, y = t / across;
    part r = *all;
    r.m0 = all->m0 + rows * y / down * PANEL;
    r.m1 = zn_min64(all->m1, all->m0 + rows * (y + 1) / down * PANEL);
    r.n0 = all->n0 + cols * x / across * PANEL;
    r.n1 = zn_min64(all->n1, all->n0 + cols * (x + 1) / across * PANEL);
    return r;
}

static zinc_status run(zn_stream *s, const product *p, int64_t K, uint16_t *scratch)
{
    const int n_threads = zn_stream_n_threads(s);
    const int64_t depth = depth_of(K), most_m = zn_min64(panels(p->M) * PANEL, CHUNK_M);
    const int64_t most_n = zn_min64(panels(p->N) * PANEL, CHUNK_N);
    uint16_t *const a = scratch, *const b = scratch + most_m * depth;
    if (p->C->dtype != ZN_DTYPE_F32 && (K > DEPTH || p->C->add))
        ZN_FAIL(ZINC_E_INVALID,
                "a product over %lld that is to be %s must be over %d at most, and "
                "not added",
                (long long)K, zn_dtype_name(p->C->dtype), DEPTH);
    for (int64_t k = 0; k < K; k += depth)
        for (int64_t m = 0; m < p->M; m += CHUNK_M) {
            const part all = {m, zn_min64(p->M, m + CHUNK_M), 0, p->N, k, zn_min64(K, k + depth)};
            const int64_t n_panels = panels(all.m1 - m), size = panel_elems(&all);
            ZN_PARALLEL_FOR(n_threads)
            for (int t = 0; t < n_threads; t++) {
                const int64_t from = n_panels * t / n_threads, to = n_panels * (t + 1) / n_threads;
                const stretch rows = {m + from * PANEL, m + to * PANEL, p->M, all.k0, all.k1};
                pack_a(a + from * size, p->A, &rows);
            }
            ZN_PARALLEL_FOR(n_threads)
            for (int t = 0; t < n_threads; t++) {
                const part r = part_of(&all, t, n_threads);
                if (p->panel == panel_amx)
                    zn_tiles_begin();
                multiply(p, a + (r.m0 - m) / PANEL * size, b + t * most_n * depth, &r);
                if (p->panel == panel_amx)
                    zn_tiles_end();
            }
        }
    return ZINC_OK;
}

zinc_status zn_gemm_bf16_amx(zn_stream *s, int64_t M, int64_t N, int64_t K, const zn_operand *A,
                             const zn_operand *B, const zn_result *C, float *scratch)
{
    const product p = {panel_amx, M, N, A, B, C};
    return run(s, &p, K, (uint16_t *)(void *)scratch);
}

zinc_status zn_gemm_bf16_dot(zn_stream *s, int64_t M, int64_t N, int64_t K, const zn_operand *A,
                             const zn_operand *B, const zn_result *C, float *scratch)
{
    const product p = {panel_dot, M, N, A, B, C};
    return run(s, &p, K, (uint16_t *)(void *)scratch);
}

int64_t zn_gemm_bf16_scratch(int64_t largest, int n_threads)
{
    const int64_t whole = panels(largest) * PANEL, depth = zn_min64(whole, DEPTH);
    return (zn_min64(whole, CHUNK_M) + n_threads * zn_min64(whole, CHUNK_N)) * depth / 2;
}
#else
int64_t zn_gemm_bf16_scratch(int64_t largest, int n_threads)
{
    (void)largest;
    (void)n_threads;
    return 0;
}
#endif
