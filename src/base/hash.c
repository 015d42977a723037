/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include <math.h>

double zn_hash_normal(uint64_t h)
{
    const double u = 1.0 - zn_hash_unit(zn_hash_mix(h)); /* (0, 1]: log is finite */
    const double v = zn_hash_unit(zn_hash_mix(h ^ 0xD1B54A32D192ED03u));
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

uint64_t zn_hash_bytes(uint64_t h, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}
