/* SPDX-License-Identifier: Apache-2.0 */
/* api_struct.c — structs with a size, texts, types, messages and log lines. */
#include <string.h>

#include "api/api_internal.h"
#include "base/log.h"
#include "base/mem.h"
#include "zinc/dtype.h"
#include "zinc/log.h"
#include "zinc/version.h"

_Static_assert((int)ZINC_F32 == (int)ZN_DTYPE_F32 && (int)ZINC_BF16 == (int)ZN_DTYPE_BF16 &&
                   (int)ZINC_F16 == (int)ZN_DTYPE_F16 && (int)ZINC_F64 == (int)ZN_DTYPE_F64 &&
                   (int)ZINC_I32 == (int)ZN_DTYPE_I32 && (int)ZINC_I64 == (int)ZN_DTYPE_I64 &&
                   (int)ZINC_U8 == (int)ZN_DTYPE_U8 && (int)ZINC_BOOL == (int)ZN_DTYPE_BOOL,
               "public and internal types have the same numbers");
_Static_assert((int)ZINC_LOG_ERROR == (int)ZN_LOG_ERROR && (int)ZINC_LOG_TRACE == (int)ZN_LOG_TRACE,
               "public and internal levels have the same numbers");

/* ---- structs ---- */

static zinc_status given_size(const void *given, const char *name, size_t *out)
{
    size_t n = 0;
    if (!given)
        ZN_FAIL(ZINC_E_INVALID, "no %s was given", name);
    memcpy(&n, given, sizeof n);
    if (n < sizeof n || n > ((size_t)1 << 16))
        ZN_FAIL(ZINC_E_INVALID,
                "struct_size of the %s is %zu: start from its initialiser in the header", name, n);
    *out = n;
    return ZINC_OK;
}

zinc_status zn_api_take(void *known, size_t known_bytes, const void *given, const char *name)
{
    size_t n = 0;
    ZN_TRY(given_size(given, name, &n));
    for (size_t i = known_bytes; i < n; i++)
        if (((const char *)given)[i] != 0)
            ZN_FAIL(ZINC_E_UNSUPPORTED,
                    "the %s has a field at byte %zu that this library (version %s) does not know",
                    name, i, zinc_version());
    memcpy(known, given, n < known_bytes ? n : known_bytes);
    return ZINC_OK;
}

zinc_status zn_api_give(const void *known, size_t known_bytes, void *given, const char *name)
{
    size_t n = 0;
    ZN_TRY(given_size(given, name, &n));
    const size_t copied = n < known_bytes ? n : known_bytes;
    memcpy((char *)given + sizeof n, (const char *)known + sizeof n, copied - sizeof n);
    return ZINC_OK;
}

/* ---- texts and types ---- */

zinc_status zn_api_give_text(zn_buf *buf, char **out)
{
    ZN_TRY(zn_buf_append(buf, "", 0)); /* an empty text is a text */
    *out = buf->data;
    memset(buf, 0, sizeof *buf);
    return ZINC_OK;
}

void zinc_free(void *ptr)
{
    zn_free(ptr);
}

zinc_status zn_api_real_dtype(zinc_dtype dtype, zn_dtype *out)
{
    if (dtype != ZINC_F32 && dtype != ZINC_BF16 && dtype != ZINC_F16)
        ZN_FAIL(ZINC_E_INVALID, "type %d (%s) is not float32, bfloat16 or float16", (int)dtype,
                zinc_dtype_name(dtype));
    *out = (zn_dtype)dtype;
    return ZINC_OK;
}

size_t zinc_dtype_size(zinc_dtype dtype)
{
    return (int)dtype >= 0 && dtype <= ZINC_BOOL ? zn_dtype_size((zn_dtype)dtype) : 0;
}

const char *zinc_dtype_name(zinc_dtype dtype)
{
    return (int)dtype >= 0 && dtype <= ZINC_BOOL ? zn_dtype_name((zn_dtype)dtype) : "unknown";
}

/* ---- messages ---- */

zinc_status zinc_fail(zinc_status status, const char *message)
{
    ZN_FAIL(status, "%s", message ? message : "no reason given");
}

void zinc_log(zinc_log_level level, const char *module, const char *message)
{
    if ((int)level >= 0 && level <= ZINC_LOG_TRACE)
        zn_log((zn_log_level)level, module ? module : "user", "%s", message ? message : "");
}

int zinc_log_is_on(zinc_log_level level, const char *module)
{
    return (int)level >= 0 && level <= ZINC_LOG_TRACE &&
           zn_log_on((zn_log_level)level, module ? module : "user");
}

void zinc_log_set_rank(int rank)
{
    zn_log_set_rank(rank);
}
