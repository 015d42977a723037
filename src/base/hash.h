/* SPDX-License-Identifier: Apache-2.0 */
/* hash.h — counter-based random numbers and a checksum.
 *
 * Every random choice in Zinc is a pure function of what it is for (seed, epoch, position, …), so
 * that rank count, micro-batch split and resume cannot change it. Layer: base. */
#ifndef ZN_BASE_HASH_H
#define ZN_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/** Mix one 64-bit value (the finaliser of SplitMix64; Steele, Lea, Flood 2014). A bijection. */
static inline uint64_t zn_hash_mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/** Fold `value` into the running hash `h`: zn_hash_fold(zn_hash_fold(seed, a), b) … */
static inline uint64_t zn_hash_fold(uint64_t h, uint64_t value)
{
    return zn_hash_mix(h ^ zn_hash_mix(value));
}

/** A double in [0, 1) from 53 bits of h. */
static inline double zn_hash_unit(uint64_t h)
{
    return (double)(h >> 11) * 0x1.0p-53;
}

/** A standard normal deviate from h (Box-Muller on two derived uniforms). */
double zn_hash_normal(uint64_t h);

/** FNV-1a over n bytes, continued from h (start with 0xcbf29ce484222325). */
uint64_t zn_hash_bytes(uint64_t h, const void *bytes, size_t n);

#endif
