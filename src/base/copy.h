/* SPDX-License-Identifier: Apache-2.0 */
/* copy.h — copies of blocks that no cache will hold. Layer: base. */
#ifndef ZN_BASE_COPY_H
#define ZN_BASE_COPY_H

#include <stddef.h>

/** As memcpy; blocks of ZN_COPY_PAST_CACHES bytes and more are written past the caches, so that the
 *  lines of `dst` are not read first. Any alignment. */
void zn_copy(void *dst, const void *src, size_t n_bytes);

#define ZN_COPY_PAST_CACHES ((size_t)2 << 20)

#endif
