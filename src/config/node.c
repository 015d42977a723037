/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of a file: release, look-up, and writing it as strict JSON. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "config/config_internal.h"

void zn_node_destroy(zn_node *node)
{
    while (node) {
        zn_node *next = node->next;
        zn_node_destroy(node->first);
        zn_free(node->key);
        zn_free(node->text);
        zn_free(node);
        node = next;
    }
}

const zn_node *zn_node_get(const zn_node *object, const char *key)
{
    for (const zn_node *child = object->first; child; child = child->next)
        if (child->key && strcmp(child->key, key) == 0)
            return child;
    return NULL;
}

static size_t count_digits(const char *p, const char *end)
{
    size_t n = 0;
    while (p + n < end && p[n] >= '0' && p[n] <= '9')
        n++;
    return n;
}

size_t zn_number_length(const char *p, const char *end)
{
    const char *q = p;
    if (q < end && *q == '-')
        q++;
    size_t n = count_digits(q, end);
    if (n == 0 || (n > 1 && *q == '0'))
        return 0;
    q += n;
    if (q < end && *q == '.') {
        n = count_digits(q + 1, end);
        if (n == 0)
            return 0;
        q += 1 + n;
    }
    if (q < end && (*q == 'e' || *q == 'E')) {
        q++;
        if (q < end && (*q == '+' || *q == '-'))
            q++;
        n = count_digits(q, end);
        if (n == 0)
            return 0;
        q += n;
    }
    return (size_t)(q - p);
}

zinc_status zn_node_set_number(zn_node *node, const char *text, size_t n)
{
    char *end;
    node->kind = ZN_NODE_NUMBER;
    ZN_TRY(zn_alloc(&node->text, n + 1, "a number"));
    memcpy(node->text, text, n);
    node->number = strtod(node->text, NULL);
    errno = 0;
    const long long whole = strtoll(node->text, &end, 10);
    if (*end == '\0') {
        node->integral = errno == 0;
        node->integer = whole;
    } else if (fabs(node->number) < 0x1p63 && node->number == rint(node->number)) {
        node->integral = true;
        node->integer = (int64_t)node->number;
    }
    return ZINC_OK;
}

static zinc_status append_indent(zn_buf *out, int depth)
{
    ZN_TRY(zn_buf_puts(out, "\n"));
    for (int i = 0; i < depth; i++)
        ZN_TRY(zn_buf_puts(out, "  "));
    return ZINC_OK;
}

zinc_status zn_node_append(const zn_node *node, int depth, zn_buf *out)
{
    const bool object = node->kind == ZN_NODE_OBJECT;
    switch (node->kind) {
    case ZN_NODE_NULL:
        return zn_buf_puts(out, "null");
    case ZN_NODE_BOOL:
        return zn_buf_puts(out, node->flag ? "true" : "false");
    case ZN_NODE_NUMBER: /* Infinity, "never", is no JSON; null says the same */
        return node->integral ? zn_buf_printf(out, "%lld", (long long)node->integer)
               : node->text[0] == 'I' || node->text[0] == 'N' || node->text[1] == 'I'
                   ? zn_buf_puts(out, "null")
                   : zn_buf_puts(out, node->text);
    case ZN_NODE_STRING:
        return zn_json_append_string(out, node->text, strlen(node->text));
    default:
        break;
    }
    ZN_TRY(zn_buf_puts(out, object ? "{" : "["));
    for (const zn_node *child = node->first; child; child = child->next) {
        ZN_TRY(append_indent(out, depth + 1));
        if (child->key) {
            ZN_TRY(zn_json_append_string(out, child->key, strlen(child->key)));
            ZN_TRY(zn_buf_puts(out, ": "));
        }
        ZN_TRY(zn_node_append(child, depth + 1, out));
        ZN_TRY(zn_buf_puts(out, child->next ? "," : ""));
    }
    if (node->first)
        ZN_TRY(append_indent(out, depth));
    return zn_buf_puts(out, object ? "}" : "]");
}
