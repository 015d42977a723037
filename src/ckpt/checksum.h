/* SPDX-License-Identifier: Apache-2.0 */
/* checksum.h — the 64-bit checksum of Zinc's checkpoints; finds damage, not malice.
 *
 * The bytes, zero-padded to a multiple of 64, are little-endian words of 32 bits that go round
 * over 16 lanes. Lane i starts at 0x9E3779B9 * (i + 1); a word w turns its lane x into
 * rotl(x ^ w, 13) * 0x85EBCA6B + 0x6B43A9B5 (mod 2^32), a bijection of x, so that no single wrong
 * word goes unseen. At the end the lanes, then the number of bytes, are folded in order with
 * zn_hash_fold (base/hash.h) from 0. The lanes are independent: compilers turn the loop into
 * vectors. Layer: ckpt (may use base). */
#ifndef ZN_CKPT_CHECKSUM_H
#define ZN_CKPT_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#define ZN_CHECKSUM_LANES 16

typedef struct zn_checksum {
    uint32_t lanes[ZN_CHECKSUM_LANES];
    unsigned char rest[4 * ZN_CHECKSUM_LANES]; /* bytes of a block that is not full yet */
    size_t n_rest;
    uint64_t n_bytes;
} zn_checksum;

void zn_checksum_init(zn_checksum *sum);
void zn_checksum_update(zn_checksum *sum, const void *bytes, size_t n);
/** Value of all bytes so far; more may follow. */
uint64_t zn_checksum_value(const zn_checksum *sum);

/** All of it in one call. */
uint64_t zn_checksum_of(const void *bytes, size_t n);

#endif
