/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <utf8proc.h>

#include "data/tokenizer_internal.h"

int32_t zn_utf8_next(const char *p, size_t n, size_t *len)
{
    const unsigned char *s = (const unsigned char *)p;
    *len = 1;
    if (s[0] < 0x80)
        return s[0];
    if (s[0] < 0xC2 || s[0] > 0xF4)
        return -1;
    const size_t want = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    /* The second byte's range depends on the first: no overlong forms, surrogates, > U+10FFFF. */
    const unsigned char low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    int32_t code = s[0] & (want == 4 ? 0x07 : want == 3 ? 0x0F : 0x1F);
    for (size_t i = 1; i < want; i++) {
        if (i >= n || s[i] < (i == 1 ? low : 0x80) || s[i] > (i == 1 ? high : 0xBF))
            return -1;
        code = code << 6 | (s[i] & 0x3F);
        *len = i + 1;
    }
    return code;
}

int32_t zn_utf8_get(const char *p, size_t *len)
{
    const unsigned char *s = (const unsigned char *)p;
    if (s[0] < 0x80) {
        *len = 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *len = 2;
        return (s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    }
    if (s[0] < 0xF0) {
        *len = 3;
        return (s[0] & 0x0F) << 12 | (s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    }
    *len = 4;
    return (s[0] & 0x07) << 18 | (s[1] & 0x3F) << 12 | (s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}

size_t zn_utf8_put(int32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

/* Length of the well-formed prefix. */
static size_t valid_prefix(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        while (n - i >= sizeof eight) { /* plain ASCII, eight bytes at a time */
            memcpy(&eight, text + i, sizeof eight);
            if (eight & 0x8080808080808080u)
                break;
            i += sizeof eight;
        }
        if (i >= n)
            break;
        size_t len;
        if (zn_utf8_next(text + i, n - i, &len) < 0)
            return i;
        i += len;
    }
    return n;
}

bool zn_utf8_valid(const char *text, size_t n)
{
    return valid_prefix(text, n) == n;
}

zinc_status zn_utf8_append_lossy(zn_buf *buf, const char *text, size_t n)
{
    while (n > 0) {
        const size_t good = valid_prefix(text, n);
        ZN_TRY(zn_buf_append(buf, text, good));
        text += good;
        n -= good;
        if (n == 0)
            break;
        size_t len;
        (void)zn_utf8_next(text, n, &len);
        ZN_TRY(zn_buf_append(buf, "\xEF\xBF\xBD", 3));
        text += len;
        n -= len;
    }
    return ZINC_OK;
}

bool zn_char_is_space(int32_t code)
{
    return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xA0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
           code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool zn_char_is_word(int32_t code)
{
    switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default: /* Join_Control and the circled letters (Other_Alphabetic) */
        return code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9);
    }
}

zinc_status zn_buf_reserve(zn_buf *buf, size_t n)
{
    const size_t need = buf->n + n + 1;
    if (need <= buf->capacity)
        return ZINC_OK;
    const size_t capacity = need + need / 2;
    ZN_TRY(zn_realloc_array(&buf->data, capacity, 1, "a text buffer"));
    buf->capacity = capacity;
    return ZINC_OK;
}

/* GPT-2's alphabet: bytes that print as themselves in Latin-1 stand for themselves, the other 68
 * are U+0100 and up, in byte order. */
static bool prints_as_itself(int byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

int32_t zn_byte_to_char(uint8_t byte)
{
    if (prints_as_itself(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100 + byte;
    if (byte <= 0xA0)
        return 0x100 + 0x21 + (byte - 0x7F);
    return 0x143; /* 0xAD */
}

int zn_char_to_byte(int32_t code)
{
    if (code < 0x100)
        return prints_as_itself(code) ? code : -1;
    if (code <= 0x120)
        return code - 0x100;
    if (code <= 0x142)
        return code - 0x121 + 0x7F;
    return code == 0x143 ? 0xAD : -1;
}

zinc_status zn_append_byte_level(zn_buf *buf, const char *bytes, size_t n)
{
    ZN_TRY(zn_buf_reserve(buf, 2 * n));
    char *out = buf->data + buf->n;
    for (size_t i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)bytes[i];
        if (byte >= 0x21 && byte <= 0x7E) {
            *out++ = (char)byte;
        } else {
            const int32_t code = zn_byte_to_char(byte);
            *out++ = (char)(0xC0 | code >> 6);
            *out++ = (char)(0x80 | (code & 0x3F));
        }
    }
    *out = '\0';
    buf->n = (size_t)(out - buf->data);
    return ZINC_OK;
}
