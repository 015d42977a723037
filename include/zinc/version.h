/* SPDX-License-Identifier: Apache-2.0 */
/* version.h — the version of this header and, through zinc_version(), of the library. */
#ifndef ZINC_VERSION_H
#define ZINC_VERSION_H

#include "zinc/export.h"

#define ZINC_VERSION_MAJOR 0
#define ZINC_VERSION_MINOR 1
#define ZINC_VERSION_PATCH 0
#define ZINC_VERSION_STRING "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/** Version of the library that is loaded, "major.minor.patch". Not collective. Static storage. */
ZINC_API const char *zinc_version(void);

#ifdef __cplusplus
}
#endif

#endif
