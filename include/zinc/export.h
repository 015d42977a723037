/* SPDX-License-Identifier: Apache-2.0 */
/* export.h — symbol visibility of the public API. */
#ifndef ZINC_EXPORT_H
#define ZINC_EXPORT_H

#if defined(__GNUC__)
#define ZINC_API __attribute__((visibility("default")))
#define ZINC_MUST_CHECK __attribute__((warn_unused_result))
#else
#define ZINC_API
#define ZINC_MUST_CHECK
#endif

#endif
