/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of ds_config.json: JSON (RFC 8259) plus what people put into these files: //, # and
 * block comments, trailing commas, a byte order mark, a bare Infinity or NaN (refused later, by
 * key). Anything else is an error with line and column. Input is not trusted: depth, size of a name
 * and members of an object are limited, and UTF-8 is checked before anything else. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "config/config_internal.h"

#define MAX_DEPTH 64
#define MAX_NAME_BYTES 200
#define MAX_MEMBERS 1000
#define MAX_NUMBER_BYTES 400

typedef struct reader {
    const char *p, *end;
    int line, column; /* of p */
    zn_syntax_error *error;
} reader;

static zinc_status read_value(reader *r, int depth, zn_node **out);

static int peek(const reader *r)
{
    return r->p < r->end ? (unsigned char)*r->p : -1;
}

static void step(reader *r)
{
    const unsigned char c = (unsigned char)*r->p++;
    if (c == '\n') {
        r->line++;
        r->column = 1;
    } else if ((c & 0xC0) != 0x80) { /* continuation bytes take no column */
        r->column++;
    }
}

/* Decide an error at a place; `message` may be NULL when error->message is already written. */
static zinc_status refuse_at(const reader *r, int line, int column, const char *message,
                             const char *hint)
{
    r->error->line = line;
    r->error->column = column;
    r->error->hint = hint;
    if (message)
        snprintf(r->error->message, sizeof r->error->message, "%s", message);
    ZN_FAIL(ZINC_E_FORMAT, "line %d column %d: %s", line, column, r->error->message);
}

static zinc_status refuse(const reader *r, const char *message, const char *hint)
{
    return refuse_at(r, r->line, r->column, message, hint);
}

/* "found X" for what stands at p. */
static zinc_status refuse_found(const reader *r, const char *wanted, const char *hint)
{
    const int c = peek(r);
    char *message = r->error->message;
    const size_t n = sizeof r->error->message;
    if (c < 0)
        snprintf(message, n, "expected %s, but the file ends here", wanted);
    else if (c < 0x20 || c == 0x7F)
        snprintf(message, n, "expected %s, found the control character 0x%02X", wanted,
                 (unsigned)c);
    else if (c < 0x80)
        snprintf(message, n, "expected %s, found '%c'", wanted, c);
    else
        snprintf(message, n, "expected %s, found a character that is not ASCII", wanted);
    return refuse(r, NULL, hint);
}

static zinc_status skip_block_comment(reader *r)
{
    const int line = r->line, column = r->column;
    step(r);
    step(r);
    for (;;) {
        if (r->p >= r->end)
            return refuse_at(r, line, column, "this comment is never closed", "end it with */");
        if (*r->p == '*' && r->p + 1 < r->end && r->p[1] == '/')
            break;
        step(r);
    }
    step(r);
    step(r);
    return ZINC_OK;
}

static zinc_status skip_space(reader *r)
{
    for (;;) {
        const int c = peek(r);
        const int after = r->p + 1 < r->end ? r->p[1] : -1;
        if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
            step(r);
        } else if (c == '#' || (c == '/' && after == '/')) {
            while (r->p < r->end && *r->p != '\n')
                step(r);
        } else if (c == '/' && after == '*') {
            ZN_TRY(skip_block_comment(r));
        } else {
            return ZINC_OK;
        }
    }
}

static zinc_status append_code_point(zn_buf *buf, uint32_t c)
{
    char utf8[4];
    size_t n = 1;
    if (c < 0x80) {
        utf8[0] = (char)c;
    } else if (c < 0x800) {
        utf8[0] = (char)(0xC0 | (c >> 6));
        n = 2;
    } else if (c < 0x10000) {
        utf8[0] = (char)(0xE0 | (c >> 12));
        n = 3;
    } else {
        utf8[0] = (char)(0xF0 | (c >> 18));
        n = 4;
    }
    for (size_t i = 1; i < n; i++)
        utf8[i] = (char)(0x80 | ((c >> (6 * (n - 1 - i))) & 0x3F));
    return zn_buf_append(buf, utf8, n);
}

/* Four hex digits at p. */
static zinc_status read_hex4(reader *r, uint32_t *out)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        const int c = peek(r);
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            digit = (uint32_t)(c - 'A' + 10);
        else
            return refuse(r, "\\u takes four hexadecimal digits", NULL);
        value = value * 16 + digit;
        step(r);
    }
    *out = value;
    return ZINC_OK;
}

/* After "\u". */
static zinc_status read_unicode_escape(reader *r, zn_buf *buf)
{
    const int line = r->line, column = r->column;
    uint32_t c, low;
    ZN_TRY(read_hex4(r, &c));
    if (c >= 0xD800 && c < 0xDC00) {
        if (r->end - r->p < 2 || r->p[0] != '\\' || r->p[1] != 'u')
            return refuse_at(r, line, column, "half of a surrogate pair", NULL);
        step(r);
        step(r);
        ZN_TRY(read_hex4(r, &low));
        if (low < 0xDC00 || low > 0xDFFF)
            return refuse_at(r, line, column, "half of a surrogate pair", NULL);
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    } else if (c >= 0xDC00 && c <= 0xDFFF) {
        return refuse_at(r, line, column, "half of a surrogate pair", NULL);
    } else if (c == 0) {
        return refuse_at(r, line, column, "U+0000 is not allowed in a string", NULL);
    }
    return append_code_point(buf, c);
}

static zinc_status read_escape(reader *r, zn_buf *buf)
{
    static const char letters[] = "\"\\/bfnrt", meaning[] = "\"\\/\b\f\n\r\t";
    step(r);
    const int c = peek(r);
    if (c == 'u') {
        step(r);
        return read_unicode_escape(r, buf);
    }
    const char *at = c > 0 ? strchr(letters, c) : NULL;
    if (!at)
        return refuse(r, "unknown escape in a string", "a backslash itself is written \\\\");
    step(r);
    return zn_buf_append(buf, &meaning[at - letters], 1);
}

/* The string at p, which is a double quote. */
static zinc_status read_string(reader *r, char **out)
{
    const int line = r->line, column = r->column;
    zn_buf buf = {0};
    zinc_status status;
    step(r);
    ZN_TRY_GOTO(zn_buf_append(&buf, "", 0));
    for (;;) {
        const char *run = r->p;
        int c;
        while ((c = peek(r)) >= 0x20 && c != '"' && c != '\\')
            step(r);
        ZN_TRY_GOTO(zn_buf_append(&buf, run, (size_t)(r->p - run)));
        if (c == '"')
            break;
        if (c == '\\')
            ZN_TRY_GOTO(read_escape(r, &buf));
        else if (c < 0 || c == '\n')
            ZN_TRY_GOTO(refuse_at(r, line, column, "this string is never closed",
                                  "it must end with a double quote on the same line"));
        else
            ZN_TRY_GOTO(refuse(r, "a control character inside a string", "write it as an escape"));
    }
    step(r);
    *out = buf.data;
    return ZINC_OK;
fail:
    zn_buf_fini(&buf);
    return status;
}

static bool ends_word(const reader *r, size_t n)
{
    if (r->p + n >= r->end)
        return true;
    const unsigned char c = (unsigned char)r->p[n];
    return !(c == '_' || c == '.' || c == '+' || c == '-' || c >= 0x80 || (c >= '0' && c <= '9') ||
             (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'));
}

static zinc_status read_number(reader *r, zn_node *node)
{
    const size_t n = zn_number_length(r->p, r->end);
    if (n == 0 || n > MAX_NUMBER_BYTES || !ends_word(r, n))
        return refuse(r, "not a number as JSON writes it",
                      "digits, then optionally .digits and e10; no leading zero or plus sign");
    ZN_TRY(zn_node_set_number(node, r->p, n));
    for (size_t i = 0; i < n; i++)
        step(r);
    return ZINC_OK;
}

typedef struct literal {
    const char *word;
    zn_node_kind kind;
    bool flag;
    double number;
} literal;

static zinc_status read_literal(reader *r, zn_node *node)
{
    static const literal literals[] = {
        {"true", ZN_NODE_BOOL, true, 0},
        {"false", ZN_NODE_BOOL, false, 0},
        {"null", ZN_NODE_NULL, false, 0},
        {"Infinity", ZN_NODE_NUMBER, false, (double)INFINITY},
        {"-Infinity", ZN_NODE_NUMBER, false, (double)-INFINITY},
        {"NaN", ZN_NODE_NUMBER, false, (double)NAN},
    };
    for (size_t i = 0; i < sizeof literals / sizeof *literals; i++) {
        const literal *l = &literals[i];
        const size_t n = strlen(l->word);
        if ((size_t)(r->end - r->p) < n || memcmp(r->p, l->word, n) != 0 || !ends_word(r, n))
            continue;
        node->kind = l->kind;
        node->flag = l->flag;
        node->number = l->number;
        for (size_t k = 0; k < n; k++)
            step(r);
        return l->kind == ZN_NODE_NUMBER ? zn_strdup(l->word, &node->text) : ZINC_OK;
    }
    const int c = peek(r);
    if (c == '-' || (c >= '0' && c <= '9'))
        return read_number(r, node);
    if (c == '\'')
        return refuse(r, "strings take double quotes", "write \"…\" instead of '…'");
    if (c == 'T' || c == 'F' || c == 'N')
        return refuse_found(r, "a value", "JSON writes true, false and null in lower case");
    return refuse_found(
        r, "a value",
        c > 0 && c < 0x80 && c != '}' && c != ']' && c != ',' ? "text needs double quotes" : NULL);
}

/* The end of the container that began at `open`, or a comma; *done at the end. */
static zinc_status read_separator(reader *r, const zn_node *open, char close, bool *done)
{
    ZN_TRY(skip_space(r));
    const int c = peek(r);
    *done = c == close;
    if (c == ',' || c == close) {
        step(r);
        return ZINC_OK;
    }
    if (c >= 0) {
        char wanted[40];
        snprintf(wanted, sizeof wanted, "\",\" or \"%c\"", close);
        return refuse_found(r, wanted, c == '"' ? "a comma is missing before this" : NULL);
    }
    snprintf(r->error->message, sizeof r->error->message,
             "the file ends inside the %s that begins at line %d column %d",
             close == '}' ? "object" : "list", open->line, open->column);
    return refuse(r, NULL,
                  close == '}' ? "is the file complete? a \"}\" is missing"
                               : "is the file complete? a \"]\" is missing");
}

/* The name and colon of a member. */
static zinc_status read_name(reader *r, char **out)
{
    const int line = r->line, column = r->column;
    if (peek(r) != '"')
        return refuse_found(r, "a name in double quotes", "names are written \"like_this\"");
    char *name;
    ZN_TRY(read_string(r, &name));
    zinc_status status = ZINC_OK;
    if (strlen(name) > MAX_NAME_BYTES)
        status = refuse_at(r, line, column, "this name is too long", NULL);
    else if ((status = skip_space(r)) == ZINC_OK) {
        if (peek(r) == ':')
            step(r);
        else
            status = refuse_found(r, "\":\" after the name", NULL);
    }
    if (status != ZINC_OK) {
        zn_free(name);
        return status;
    }
    *out = name;
    return ZINC_OK;
}

/* Children of a list or object whose opening bracket is at p. */
static zinc_status read_children(reader *r, zn_node *parent, char close, int depth)
{
    zn_node **last = &parent->first;
    if (depth >= MAX_DEPTH)
        return refuse(r, "nested too deeply (more than 64 levels)", NULL);
    step(r);
    ZN_TRY(skip_space(r));
    bool done = peek(r) == close;
    if (done)
        step(r);
    for (int n = 0; !done; n++) {
        char *key = NULL;
        const int line = r->line, column = r->column;
        if (n >= MAX_MEMBERS && close == '}')
            return refuse(r, "more than 1000 names in one object", NULL);
        if (peek(r) < 0) /* said better there */
            return read_separator(r, parent, close, &done);
        if (close == '}')
            ZN_TRY(read_name(r, &key));
        zn_node *child = NULL;
        zinc_status status = skip_space(r);
        if (status == ZINC_OK)
            status = read_value(r, depth + 1, &child);
        if (status != ZINC_OK) {
            zn_free(key);
            return status;
        }
        child->key = key;
        child->key_line = line;
        child->key_column = column;
        *last = child;
        last = &child->next;
        ZN_TRY(read_separator(r, parent, close, &done));
        ZN_TRY(skip_space(r));
        if (!done && peek(r) == close) { /* a trailing comma */
            step(r);
            done = true;
        }
    }
    return ZINC_OK;
}

static zinc_status read_value(reader *r, int depth, zn_node **out)
{
    zn_node *node;
    zinc_status status;
    ZN_TRY(zn_alloc(&node, sizeof *node, "a JSON value"));
    node->line = r->line;
    node->column = r->column;
    switch (peek(r)) {
    case '{':
        node->kind = ZN_NODE_OBJECT;
        ZN_TRY_GOTO(read_children(r, node, '}', depth));
        break;
    case '[':
        node->kind = ZN_NODE_ARRAY;
        ZN_TRY_GOTO(read_children(r, node, ']', depth));
        break;
    case '"':
        node->kind = ZN_NODE_STRING;
        ZN_TRY_GOTO(read_string(r, &node->text));
        break;
    default:
        ZN_TRY_GOTO(read_literal(r, node));
    }
    *out = node;
    return ZINC_OK;
fail:
    zn_node_destroy(node);
    return status;
}

static zinc_status check_utf8(const reader *start)
{
    reader r = *start;
    if (r.end - r.p >= 2 && (memcmp(r.p, "\xFF\xFE", 2) == 0 || memcmp(r.p, "\xFE\xFF", 2) == 0))
        return refuse(&r, "the file is UTF-16", "save it as UTF-8");
    while (r.p < r.end) {
        const size_t n = zn_utf8_length((const unsigned char *)r.p, (size_t)(r.end - r.p));
        if (n == 0)
            return refuse(&r, "a byte that is not UTF-8", "save the file as UTF-8");
        for (size_t i = 0; i < n; i++)
            step(&r);
    }
    return ZINC_OK;
}

zinc_status zn_reader_parse(const char *text, size_t n, zn_syntax_error *error, zn_node **out)
{
    reader r = {.p = text, .end = text + n, .line = 1, .column = 1, .error = error};
    zn_node *root = NULL;
    zinc_status status;
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        r.p += 3;
    ZN_TRY_GOTO(check_utf8(&r));
    ZN_TRY_GOTO(skip_space(&r));
    if (peek(&r) < 0) {
        ZN_TRY_GOTO(zn_alloc(&root, sizeof *root, "a JSON value"));
        root->kind = ZN_NODE_OBJECT;
        root->line = root->column = 1;
    } else if (peek(&r) != '{') {
        ZN_TRY_GOTO(refuse_found(&r, "\"{\" at the start of the file",
                                 "a configuration is one JSON object"));
    } else {
        ZN_TRY_GOTO(read_value(&r, 0, &root));
    }
    ZN_TRY_GOTO(skip_space(&r));
    if (peek(&r) >= 0)
        ZN_TRY_GOTO(refuse_found(&r, "nothing after the closing \"}\"", NULL));
    *out = root;
    return ZINC_OK;
fail:
    zn_node_destroy(root);
    return status;
}
