/* SPDX-License-Identifier: Apache-2.0 */
/* YAML to the tree that the reader of ds_config.json makes. libyaml parses; here its events become
 * nodes, and plain scalars get the types that PyYAML's safe_load, which accelerate reads with,
 * gives them (YAML 1.1: yes, no, on and off are booleans). Numbers are those of JSON, and 1e8,
 * which PyYAML takes for text, is one. Input is not trusted: depth and members are limited, and
 * what could blow a file up (aliases) or build anything (tags) is refused. */
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "config/config_internal.h"

#define MAX_DEPTH 16
#define MAX_MEMBERS 1000
#define MAX_NAME_BYTES 200

typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event;
    bool has_event;
    zn_syntax_error *error;
} reader;

static zinc_status refuse(const reader *r, const yaml_mark_t *mark, const char *message,
                          const char *hint)
{
    r->error->line = (int)mark->line + 1;
    r->error->column = (int)mark->column + 1;
    r->error->hint = hint;
    snprintf(r->error->message, sizeof r->error->message, "%s", message);
    ZN_FAIL(ZINC_E_FORMAT, "line %d column %d: %s", r->error->line, r->error->column, message);
}

/* What libyaml says, at the place where it stopped. */
static zinc_status refuse_syntax(const reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "not YAML";
    char message[200];
    if (p->error == YAML_MEMORY_ERROR)
        ZN_FAIL(ZINC_E_NOMEM, "out of memory while reading YAML");
    if (p->error == YAML_READER_ERROR) { /* it has no mark: bytes that are no text */
        const yaml_mark_t start = {0};
        return refuse(r, &start, problem, "save the file as UTF-8");
    }
    snprintf(message, sizeof message, "%s%s%s", problem, p->context ? ", " : "",
             p->context ? p->context : "");
    const bool tab = strstr(problem, "tab") || strstr(problem, "cannot start any token");
    return refuse(r, &p->problem_mark, message, tab ? "indent with spaces, not with tabs" : NULL);
}

static zinc_status next(reader *r)
{
    if (r->has_event)
        yaml_event_delete(&r->event);
    r->has_event = false;
    if (!yaml_parser_parse(&r->parser, &r->event))
        return refuse_syntax(r);
    r->has_event = true;
    return ZINC_OK;
}

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(text, *words) == 0)
            return true;
    return false;
}

/* Type of a scalar that stands without quotes. */
static zinc_status read_plain(zn_node *node, const char *text, size_t n)
{
    static const char *const yes[] = {"yes",  "Yes", "YES", "true", "True",
                                      "TRUE", "on",  "On",  "ON",   NULL};
    static const char *const no[] = {"no",    "No",  "NO",  "false", "False",
                                     "FALSE", "off", "Off", "OFF",   NULL};
    static const char *const none[] = {"", "~", "null", "Null", "NULL", NULL};
    if (is_one_of(text, none)) {
        node->kind = ZN_NODE_NULL;
    } else if (is_one_of(text, yes) || is_one_of(text, no)) {
        node->kind = ZN_NODE_BOOL;
        node->flag = is_one_of(text, yes);
    } else if (zn_number_length(text, text + n) == n) {
        return zn_node_set_number(node, text, n);
    } else {
        node->kind = ZN_NODE_STRING;
        return zn_strdup(text, &node->text);
    }
    return ZINC_OK;
}

static zinc_status check_plain(const reader *r, const void *anchor, const void *tag)
{
    if (anchor || tag)
        return refuse(r, &r->event.start_mark, "anchors (&) and tags (!) are not read here",
                      "write the plain value");
    return ZINC_OK;
}

static zinc_status check_scalar(const reader *r)
{
    const yaml_event_t *e = &r->event;
    if (memchr(e->data.scalar.value, '\0', e->data.scalar.length))
        return refuse(r, &e->start_mark, "a NUL character", NULL);
    return check_plain(r, e->data.scalar.anchor, e->data.scalar.tag);
}

static zinc_status read_value(reader *r, int depth, zn_node **out);

/* The key that the current event is, and the value behind it. */
static zinc_status read_member(reader *r, int depth, zn_node **out)
{
    const yaml_event_t *e = &r->event;
    const yaml_mark_t at = e->start_mark;
    zinc_status status;
    char *key = NULL;
    if (e->type == YAML_ALIAS_EVENT)
        return refuse(r, &at, "aliases (*) are not read here", "write the value out");
    if (e->type != YAML_SCALAR_EVENT)
        return refuse(r, &at, "a key must be a plain word", NULL);
    ZN_TRY(check_scalar(r));
    if (e->data.scalar.length > MAX_NAME_BYTES)
        return refuse(r, &at, "a key of more than 200 bytes", NULL);
    ZN_TRY(zn_strdup((const char *)e->data.scalar.value, &key));
    ZN_TRY_GOTO(next(r));
    ZN_TRY_GOTO(read_value(r, depth, out));
    (*out)->key = key;
    (*out)->key_line = (int)at.line + 1;
    (*out)->key_column = (int)at.column + 1;
    return ZINC_OK;
fail:
    zn_free(key);
    return status;
}

/* Children up to the end of the mapping or list that began with the current event. */
static zinc_status read_children(reader *r, zn_node *node, yaml_event_type_t end, int depth)
{
    zn_node **tail = &node->first;
    const yaml_mark_t start = r->event.start_mark;
    if (depth >= MAX_DEPTH)
        return refuse(r, &start, "nested too deeply", NULL);
    ZN_TRY(next(r));
    for (int n = 0; r->event.type != end; n++) {
        if (n == MAX_MEMBERS)
            return refuse(r, &start, "more than 1000 members", NULL);
        if (node->kind == ZN_NODE_OBJECT)
            ZN_TRY(read_member(r, depth + 1, tail));
        else
            ZN_TRY(read_value(r, depth + 1, tail));
        tail = &(*tail)->next;
        ZN_TRY(next(r));
    }
    return ZINC_OK;
}

/* The value that begins with the current event; its last event is current afterwards. */
static zinc_status read_value(reader *r, int depth, zn_node **out)
{
    const yaml_event_t *e = &r->event;
    zn_node *node = NULL;
    zinc_status status;
    ZN_TRY(zn_alloc(&node, sizeof *node, "a YAML value"));
    node->line = (int)e->start_mark.line + 1;
    node->column = (int)e->start_mark.column + 1;
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        ZN_TRY_GOTO(check_scalar(r));
        if (e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE) {
            ZN_TRY_GOTO(
                read_plain(node, (const char *)e->data.scalar.value, e->data.scalar.length));
        } else {
            node->kind = ZN_NODE_STRING;
            ZN_TRY_GOTO(zn_strdup((const char *)e->data.scalar.value, &node->text));
        }
        break;
    case YAML_MAPPING_START_EVENT:
        node->kind = ZN_NODE_OBJECT;
        ZN_TRY_GOTO(check_plain(r, e->data.mapping_start.anchor, e->data.mapping_start.tag));
        ZN_TRY_GOTO(read_children(r, node, YAML_MAPPING_END_EVENT, depth));
        break;
    case YAML_SEQUENCE_START_EVENT:
        node->kind = ZN_NODE_ARRAY;
        ZN_TRY_GOTO(check_plain(r, e->data.sequence_start.anchor, e->data.sequence_start.tag));
        ZN_TRY_GOTO(read_children(r, node, YAML_SEQUENCE_END_EVENT, depth));
        break;
    default:
        ZN_TRY_GOTO(
            refuse(r, &e->start_mark, "aliases (*) are not read here", "write the value out"));
    }
    *out = node;
    return ZINC_OK;
fail:
    zn_node_destroy(node);
    return status;
}

static zinc_status empty_object(zn_node **out)
{
    ZN_TRY(zn_alloc(out, sizeof **out, "a YAML value"));
    (*out)->kind = ZN_NODE_OBJECT;
    (*out)->line = (*out)->column = 1;
    return ZINC_OK;
}

static zinc_status read_document(reader *r, zn_node **out)
{
    ZN_TRY(next(r)); /* stream start */
    ZN_TRY(next(r));
    if (r->event.type == YAML_STREAM_END_EVENT)
        return empty_object(out);
    ZN_TRY(next(r)); /* document start */
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return refuse(r, &r->event.start_mark, "expected \"key: value\" lines",
                      "a configuration is one mapping");
    ZN_TRY(read_value(r, 0, out));
    ZN_TRY(next(r)); /* document end */
    ZN_TRY(next(r));
    if (r->event.type != YAML_STREAM_END_EVENT)
        return refuse(r, &r->event.start_mark, "a second document", "keep one");
    return ZINC_OK;
}

zinc_status zn_yaml_parse(const char *text, size_t n, zn_syntax_error *error, zn_node **out)
{
    reader r = {.error = error};
    zn_node *root = NULL;
    if (!yaml_parser_initialize(&r.parser))
        ZN_FAIL(ZINC_E_NOMEM, "out of memory for a YAML parser");
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, n);
    const zinc_status status = read_document(&r, &root);
    if (r.has_event)
        yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    if (status != ZINC_OK) {
        zn_node_destroy(root);
        return status;
    }
    *out = root;
    return ZINC_OK;
}
