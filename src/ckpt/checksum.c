/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/checksum.h"

#include <string.h>

#include "base/hash.h"

#define BLOCK_BYTES ((size_t)4 * ZN_CHECKSUM_LANES)

void zn_checksum_init(zn_checksum *sum)
{
    memset(sum, 0, sizeof *sum);
    for (uint32_t i = 0; i < ZN_CHECKSUM_LANES; i++)
        sum->lanes[i] = 0x9E3779B9u * (i + 1);
}

typedef uint32_t eight_lanes __attribute__((vector_size(32)));

/* The lanes are independent, so they go into vectors; inlined, this is compiled for what calls it.
 */
static inline __attribute__((always_inline)) void mix(uint32_t *lanes, const unsigned char *bytes,
                                                      size_t n_blocks)
{
    eight_lanes x[2], w[2];
    memcpy(x, lanes, sizeof x);
    for (size_t b = 0; b < n_blocks; b++)
        for (int i = 0; i < 2; i++) {
            memcpy(&w[i], bytes + b * BLOCK_BYTES + (size_t)i * sizeof w[i], sizeof w[i]);
            x[i] ^= w[i];
            x[i] = ((x[i] << 13) | (x[i] >> 19)) * 0x85EBCA6Bu + 0x6B43A9B5u;
        }
    memcpy(lanes, x, sizeof x);
}

static void mix_plain(uint32_t *lanes, const unsigned char *bytes, size_t n_blocks)
{
    mix(lanes, bytes, n_blocks);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void mix_avx2(uint32_t *lanes, const unsigned char *bytes,
                                                     size_t n_blocks)
{
    mix(lanes, bytes, n_blocks);
}
#endif

static void mix_blocks(uint32_t *lanes, const unsigned char *bytes, size_t n_blocks)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        mix_avx2(lanes, bytes, n_blocks);
        return;
    }
#endif
    mix_plain(lanes, bytes, n_blocks);
}

void zn_checksum_update(zn_checksum *sum, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    sum->n_bytes += n;
    if (sum->n_rest > 0) {
        const size_t room = BLOCK_BYTES - sum->n_rest;
        const size_t m = n < room ? n : room;
        memcpy(sum->rest + sum->n_rest, p, m);
        sum->n_rest += m;
        p += m;
        n -= m;
        if (sum->n_rest < BLOCK_BYTES)
            return;
        mix_blocks(sum->lanes, sum->rest, 1);
        sum->n_rest = 0;
    }
    mix_blocks(sum->lanes, p, n / BLOCK_BYTES);
    sum->n_rest = n % BLOCK_BYTES;
    if (sum->n_rest > 0)
        memcpy(sum->rest, p + (n - sum->n_rest), sum->n_rest);
}

uint64_t zn_checksum_value(const zn_checksum *sum)
{
    uint32_t lanes[ZN_CHECKSUM_LANES];
    uint64_t h = 0;
    memcpy(lanes, sum->lanes, sizeof lanes);
    if (sum->n_rest > 0) {
        unsigned char block[BLOCK_BYTES] = {0};
        memcpy(block, sum->rest, sum->n_rest);
        mix_blocks(lanes, block, 1);
    }
    for (int i = 0; i < ZN_CHECKSUM_LANES; i++)
        h = zn_hash_fold(h, lanes[i]);
    return zn_hash_fold(h, sum->n_bytes);
}

uint64_t zn_checksum_of(const void *bytes, size_t n)
{
    zn_checksum sum;
    zn_checksum_init(&sum);
    zn_checksum_update(&sum, bytes, n);
    return zn_checksum_value(&sum);
}
