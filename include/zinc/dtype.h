/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h — element types. */
#ifndef ZINC_DTYPE_H
#define ZINC_DTYPE_H

#include <stddef.h>

#include "zinc/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values are pinned: they are part of the ABI. Parameters and gradients are F32, BF16 or F16; the
 * others appear in files only. */
typedef enum zinc_dtype {
    ZINC_F32 = 0,
    ZINC_BF16 = 1,
    ZINC_F16 = 2,
    ZINC_F64 = 3,
    ZINC_I32 = 4,
    ZINC_I64 = 5,
    ZINC_U8 = 6,
    ZINC_BOOL = 7
} zinc_dtype;

/** Bytes of one element; 0 if there is no such type. Not collective. */
ZINC_API size_t zinc_dtype_size(zinc_dtype dtype);

/** Name as people write it, "float32"; "unknown" if there is no such type. Not collective. Static
 *  storage. */
ZINC_API const char *zinc_dtype_name(zinc_dtype dtype);

#ifdef __cplusplus
}
#endif

#endif
