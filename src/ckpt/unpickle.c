/* SPDX-License-Identifier: Apache-2.0 */
/* unpickle.c — the stack machine. One opcode makes at most one value, and every length is checked
 * against the bytes that are left, so a pickle cannot ask for more than a multiple of its size. */
#include "ckpt/unpickle_internal.h"

#include <string.h>

#define MAX_PICKLE_BYTES ((size_t)64 << 20)
#define MAX_STACK ((size_t)1 << 20)
#define MAX_NESTING 1000

static zinc_status set_item(zn_pickle_value *dict, zn_pickle_value *key, zn_pickle_value *value)
{
    ZN_TRY(zn_pickle_append(dict, key));
    dict->u.seq.items[2 * dict->u.seq.n + 1] = value;
    dict->u.seq.n++;
    return ZINC_OK;
}

static zinc_status damaged(const pickle_machine *m, const char *what)
{
    ZN_FAIL(ZINC_E_FORMAT, "%s: the pickle is damaged at byte %zu: %s", m->where, m->op_at, what);
}

static zinc_status push(pickle_machine *m, zn_pickle_value *value)
{
    if (m->n_stack == m->stack_capacity) {
        if (m->n_stack >= MAX_STACK)
            ZN_FAIL(ZINC_E_FORMAT, "%s: the pickle stacks more than %zu values at byte %zu",
                    m->where, MAX_STACK, m->op_at);
        const size_t capacity = m->n_stack ? 2 * m->n_stack : 64;
        ZN_TRY(zn_realloc_array(&m->stack, capacity, sizeof *m->stack, "pickle stack"));
        m->stack_capacity = capacity;
    }
    m->stack[m->n_stack++] = value;
    return ZINC_OK;
}

static zinc_status push_new(pickle_machine *m, zn_pickle_kind kind, zn_pickle_value **out)
{
    ZN_TRY(zn_pickle_new(m, kind, out));
    return push(m, *out);
}

/* Values below the newest mark belong to an outer object. */
static size_t floor_of(const pickle_machine *m)
{
    return m->n_marks ? m->marks[m->n_marks - 1] : 0;
}

static zinc_status pop(pickle_machine *m, zn_pickle_value **out)
{
    if (m->n_stack <= floor_of(m))
        return damaged(m, "the stack is empty");
    *out = m->stack[--m->n_stack];
    return ZINC_OK;
}

static zinc_status top(const pickle_machine *m, zn_pickle_value **out)
{
    if (m->n_stack <= floor_of(m))
        return damaged(m, "the stack is empty");
    *out = m->stack[m->n_stack - 1];
    return ZINC_OK;
}

static zinc_status push_mark(pickle_machine *m)
{
    if (m->n_marks >= MAX_NESTING)
        ZN_FAIL(ZINC_E_FORMAT, "%s: the pickle nests deeper than %d at byte %zu", m->where,
                MAX_NESTING, m->op_at);
    if (m->n_marks == m->marks_capacity) {
        const size_t capacity = m->n_marks ? 2 * m->n_marks : 16;
        ZN_TRY(zn_realloc_array(&m->marks, capacity, sizeof *m->marks, "pickle marks"));
        m->marks_capacity = capacity;
    }
    m->marks[m->n_marks++] = m->n_stack;
    return ZINC_OK;
}

static zinc_status pop_mark(pickle_machine *m, size_t *out)
{
    if (m->n_marks == 0)
        return damaged(m, "there is no mark");
    *out = m->marks[--m->n_marks];
    return ZINC_OK;
}

static zinc_status take(pickle_machine *m, size_t n, const unsigned char **out)
{
    if (n > m->n - m->at)
        return damaged(m, "it ends too early");
    *out = m->bytes + m->at;
    m->at += n;
    return ZINC_OK;
}

static zinc_status take_uint(pickle_machine *m, int n, uint64_t *out)
{
    const unsigned char *p = NULL;
    ZN_TRY(take(m, (size_t)n, &p));
    *out = 0;
    while (n-- > 0)
        *out = *out << 8 | p[n];
    return ZINC_OK;
}

static zinc_status take_line(pickle_machine *m, const char **out, size_t *n)
{
    const unsigned char *start = m->bytes + m->at;
    const unsigned char *end = memchr(start, '\n', m->n - m->at);
    if (!end)
        return damaged(m, "it ends too early");
    *out = (const char *)start;
    *n = (size_t)(end - start);
    m->at += *n + 1;
    return ZINC_OK;
}

static zinc_status push_int(pickle_machine *m, zn_pickle_kind kind, int64_t x)
{
    zn_pickle_value *value = NULL;
    ZN_TRY(push_new(m, kind, &value));
    value->u.integer = x;
    return ZINC_OK;
}

static zinc_status op_integer(pickle_machine *m, int n_bytes)
{
    uint64_t x = 0;
    ZN_TRY(take_uint(m, n_bytes, &x));
    return push_int(m, ZN_PICKLE_INT, n_bytes == 4 ? (int32_t)(uint32_t)x : (int64_t)x);
}

/* LONG1, LONG4: a little-endian two's complement number of any length; over 64 bits it is opaque.
 */
static zinc_status op_long(pickle_machine *m, int n_length)
{
    uint64_t n = 0;
    const unsigned char *p = NULL;
    ZN_TRY(take_uint(m, n_length, &n));
    ZN_TRY(take(m, (size_t)n, &p));
    if (n > 8) {
        zn_pickle_value *value = NULL;
        return push_new(m, ZN_PICKLE_OPAQUE, &value);
    }
    uint64_t x = n > 0 && (p[n - 1] & 0x80) ? UINT64_MAX : 0;
    for (size_t i = (size_t)n; i-- > 0;)
        x = x << 8 | p[i];
    return push_int(m, ZN_PICKLE_INT, (int64_t)x);
}

/* BINFLOAT: big-endian. */
static zinc_status op_float(pickle_machine *m)
{
    const unsigned char *p = NULL;
    zn_pickle_value *value = NULL;
    uint64_t bits = 0;
    ZN_TRY(take(m, 8, &p));
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | p[i];
    ZN_TRY(push_new(m, ZN_PICKLE_FLOAT, &value));
    memcpy(&value->u.real, &bits, sizeof bits);
    return ZINC_OK;
}

static zinc_status op_string(pickle_machine *m, int n_length)
{
    uint64_t n = 0;
    const unsigned char *p = NULL;
    zn_pickle_value *value = NULL;
    ZN_TRY(take_uint(m, n_length, &n));
    ZN_TRY(take(m, (size_t)n, &p));
    ZN_TRY(push_new(m, ZN_PICKLE_STRING, &value));
    value->u.string.text = (const char *)p;
    value->u.string.n = (size_t)n;
    return ZINC_OK;
}

static zinc_status op_global(pickle_machine *m)
{
    zn_pickle_value *value = NULL;
    ZN_TRY(push_new(m, ZN_PICKLE_GLOBAL, &value));
    ZN_TRY(take_line(m, &value->u.global.module, &value->u.global.n_module));
    return take_line(m, &value->u.global.name, &value->u.global.n_name);
}

/* Collect the values above `height` into a new tuple. */
static zinc_status push_tuple(pickle_machine *m, size_t height)
{
    zn_pickle_value *tuple = NULL;
    if (m->n_stack < height || height < floor_of(m))
        return damaged(m, "the stack is empty");
    ZN_TRY(zn_pickle_new(m, ZN_PICKLE_TUPLE, &tuple));
    for (size_t i = height; i < m->n_stack; i++)
        ZN_TRY(zn_pickle_append(tuple, m->stack[i]));
    m->n_stack = height;
    return push(m, tuple);
}

static zinc_status op_tuple(pickle_machine *m, size_t n)
{
    if (m->n_stack < n)
        return damaged(m, "the stack is empty");
    return push_tuple(m, m->n_stack - n);
}

static zinc_status op_mark_tuple(pickle_machine *m)
{
    size_t height = 0;
    ZN_TRY(pop_mark(m, &height));
    return push_tuple(m, height);
}

/* Put the values above `height` into the list or dict below them; an opaque object ignores them. */
static zinc_status extend(pickle_machine *m, size_t height, bool pairs)
{
    const size_t n = m->n_stack - height;
    if (height == 0 || height <= floor_of(m))
        return damaged(m, "there is nothing to add to");
    zn_pickle_value *target = m->stack[height - 1];
    const zn_pickle_kind wanted = pairs ? ZN_PICKLE_DICT : ZN_PICKLE_LIST;
    if (target->kind != wanted && target->kind != ZN_PICKLE_OPAQUE)
        return damaged(m, pairs ? "items for something that is no dict"
                                : "items for something that is no list");
    if (pairs && n % 2 != 0)
        return damaged(m, "a key without a value");
    for (size_t i = height; target->kind == wanted && i < m->n_stack; i += pairs ? 2 : 1)
        ZN_TRY(pairs ? set_item(target, m->stack[i], m->stack[i + 1])
                     : zn_pickle_append(target, m->stack[i]));
    m->n_stack = height;
    return ZINC_OK;
}

static zinc_status op_extend_few(pickle_machine *m, bool pairs)
{
    const size_t n = pairs ? 2 : 1;
    if (m->n_stack < n)
        return damaged(m, "the stack is empty");
    return extend(m, m->n_stack - n, pairs);
}

static zinc_status op_extend_marked(pickle_machine *m, bool pairs)
{
    size_t height = 0;
    ZN_TRY(pop_mark(m, &height));
    return extend(m, height, pairs);
}

static zinc_status op_put(pickle_machine *m, int n_index)
{
    uint64_t index = 0;
    zn_pickle_value *value = NULL;
    ZN_TRY(take_uint(m, n_index, &index));
    ZN_TRY(top(m, &value));
    /* Picklers count up from 0, so a jump is a trick to make the memo large. */
    if (index > m->n_puts)
        return damaged(m, "a memo index out of order");
    if (index >= m->n_memo) {
        const size_t n = m->n_memo ? 2 * m->n_memo : 128;
        ZN_TRY(zn_realloc_array(&m->memo, n, sizeof *m->memo, "pickle memo"));
        memset(m->memo + m->n_memo, 0, (n - m->n_memo) * sizeof *m->memo);
        m->n_memo = n;
    }
    m->n_puts++;
    m->memo[index] = value;
    return ZINC_OK;
}

static zinc_status op_get(pickle_machine *m, int n_index)
{
    uint64_t index = 0;
    ZN_TRY(take_uint(m, n_index, &index));
    if (index >= m->n_memo || !m->memo[index])
        return damaged(m, "a memo index that was never set");
    return push(m, m->memo[index]);
}

static zinc_status op_reduce(pickle_machine *m)
{
    zn_pickle_value *args = NULL;
    zn_pickle_value *callable = NULL;
    zn_pickle_value *value = NULL;
    ZN_TRY(pop(m, &args));
    ZN_TRY(pop(m, &callable));
    if (args->kind != ZN_PICKLE_TUPLE)
        return damaged(m, "arguments that are no tuple");
    if (callable->kind != ZN_PICKLE_GLOBAL && callable->kind != ZN_PICKLE_OPAQUE)
        return damaged(m, "a call of something that is no class or function");
    ZN_TRY(zn_pickle_reduce(m, callable, args, &value));
    return push(m, value);
}

static zinc_status op_persistent(pickle_machine *m)
{
    zn_pickle_value *id = NULL;
    zn_pickle_value *value = NULL;
    ZN_TRY(pop(m, &id));
    ZN_TRY(zn_pickle_persistent(m, id, &value));
    return push(m, value);
}

static zinc_status op_proto(pickle_machine *m)
{
    uint64_t version = 0;
    ZN_TRY(take_uint(m, 1, &version));
    if (version > 2)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: pickle protocol %d; torch.save writes protocol 2",
                m->where, (int)version);
    return ZINC_OK;
}

static zinc_status op_pop(pickle_machine *m)
{
    zn_pickle_value *ignored = NULL;
    size_t height = 0;
    if (m->n_marks > 0 && m->n_stack == m->marks[m->n_marks - 1])
        return pop_mark(m, &height);
    return pop(m, &ignored);
}

static zinc_status op_pop_mark(pickle_machine *m)
{
    return pop_mark(m, &m->n_stack);
}

static zinc_status op_dup(pickle_machine *m)
{
    zn_pickle_value *value = NULL;
    ZN_TRY(top(m, &value));
    return push(m, value);
}

/* BUILD sets attributes from a state; only objects that we do not know have some that matter. */
static zinc_status op_build(pickle_machine *m)
{
    zn_pickle_value *state = NULL;
    zn_pickle_value *object = NULL;
    ZN_TRY(pop(m, &state));
    ZN_TRY(top(m, &object));
    if (object->kind == ZN_PICKLE_OPAQUE && state->kind == ZN_PICKLE_DICT)
        object->u.opaque.state = state;
    return ZINC_OK;
}

static zinc_status run_number_or_text(pickle_machine *m, unsigned char op)
{
    zn_pickle_value *value = NULL;
    switch (op) {
    case 'N':
        return push_new(m, ZN_PICKLE_NONE, &value);
    case 0x88: /* NEWTRUE */
    case 0x89: /* NEWFALSE */
        return push_int(m, ZN_PICKLE_BOOL, op == 0x88);
    case 'J': /* BININT */
        return op_integer(m, 4);
    case 'K': /* BININT1 */
        return op_integer(m, 1);
    case 'M': /* BININT2 */
        return op_integer(m, 2);
    case 0x8a: /* LONG1 */
        return op_long(m, 1);
    case 0x8b: /* LONG4 */
        return op_long(m, 4);
    case 'G': /* BINFLOAT */
        return op_float(m);
    case 'X': /* BINUNICODE */
    case 'T': /* BINSTRING */
        return op_string(m, 4);
    case 'U': /* SHORT_BINSTRING */
        return op_string(m, 1);
    default:
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: pickle opcode 0x%02x at byte %zu is not supported",
                m->where, op, m->op_at);
    }
}

static zinc_status run_object(pickle_machine *m, unsigned char op)
{
    zn_pickle_value *value = NULL;
    switch (op) {
    case ')': /* EMPTY_TUPLE */
        return push_new(m, ZN_PICKLE_TUPLE, &value);
    case ']': /* EMPTY_LIST */
        return push_new(m, ZN_PICKLE_LIST, &value);
    case '}': /* EMPTY_DICT */
        return push_new(m, ZN_PICKLE_DICT, &value);
    case 0x85: /* TUPLE1 */
    case 0x86:
    case 0x87:
        return op_tuple(m, (size_t)(op - 0x84));
    case 't': /* TUPLE */
        return op_mark_tuple(m);
    case 'a': /* APPEND */
        return op_extend_few(m, false);
    case 'e': /* APPENDS */
        return op_extend_marked(m, false);
    case 's': /* SETITEM */
        return op_extend_few(m, true);
    case 'u': /* SETITEMS */
        return op_extend_marked(m, true);
    case 'c': /* GLOBAL */
        return op_global(m);
    case 'R':  /* REDUCE */
    case 0x81: /* NEWOBJ */
        return op_reduce(m);
    case 'Q': /* BINPERSID */
        return op_persistent(m);
    case 'b': /* BUILD */
        return op_build(m);
    default:
        return run_number_or_text(m, op);
    }
}

static zinc_status run_one(pickle_machine *m, unsigned char op)
{
    switch (op) {
    case 0x80: /* PROTO */
        return op_proto(m);
    case '(': /* MARK */
        return push_mark(m);
    case '0': /* POP */
        return op_pop(m);
    case '1': /* POP_MARK */
        return op_pop_mark(m);
    case '2': /* DUP */
        return op_dup(m);
    case 'q': /* BINPUT */
        return op_put(m, 1);
    case 'r': /* LONG_BINPUT */
        return op_put(m, 4);
    case 'h': /* BINGET */
        return op_get(m, 1);
    case 'j': /* LONG_BINGET */
        return op_get(m, 4);
    default:
        return run_object(m, op);
    }
}

static zinc_status run(pickle_machine *m)
{
    for (;;) {
        const unsigned char *op = NULL;
        m->op_at = m->at;
        ZN_TRY(take(m, 1, &op));
        if (*op == '.') /* STOP */
            return pop(m, &m->pickle->root);
        ZN_TRY(run_one(m, *op));
    }
}

zinc_status zn_pickle_parse(const unsigned char *bytes, size_t n, const char *where,
                            zn_pickle_storage_fn storage, void *ctx, zn_pickle **out)
{
    pickle_machine m = {
        .bytes = bytes, .n = n, .where = where, .storage = storage, .storage_ctx = ctx};
    if (n > MAX_PICKLE_BYTES)
        ZN_FAIL(ZINC_E_FORMAT, "%s: a pickle of %zu bytes is over the limit of %zu", where, n,
                MAX_PICKLE_BYTES);
    ZN_TRY(zn_alloc(&m.pickle, sizeof *m.pickle, "pickle"));
    const zinc_status status = run(&m);
    zn_free(m.stack);
    zn_free(m.marks);
    zn_free(m.memo);
    if (status != ZINC_OK) {
        zn_pickle_destroy(m.pickle);
        return status;
    }
    *out = m.pickle;
    return ZINC_OK;
}
