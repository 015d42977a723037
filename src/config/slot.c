/* SPDX-License-Identifier: Apache-2.0 */
/* Values of keys: copying, printing, defaults, and their way into zn_config_values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "config/config_internal.h"

void zn_slot_fini(zn_slot *slot)
{
    zn_free(slot->text);
    zn_free(slot->origin);
    memset(slot, 0, sizeof *slot);
}

zinc_status zn_slot_copy(const zn_slot *from, zn_slot *to)
{
    char *text = NULL;
    if (from->text)
        ZN_TRY(zn_strdup(from->text, &text));
    zn_slot_fini(to);
    *to = *from;
    to->text = text;
    to->origin = NULL;
    return ZINC_OK;
}

zn_slot *zn_slot_at(zn_slot *slots, const char *path)
{
    const int i = zn_key_find(path);
    ZN_ASSERT(i >= 0);
    return &slots[i];
}

zinc_status zn_slot_set_default(const zn_key *key, zn_slot *slot)
{
    const char *text = key->default_text;
    if (!text || strcmp(text, "null") == 0 || key->type >= ZN_KEY_ANY)
        return ZINC_OK;
    if (key->type == ZN_KEY_TEXT || key->type == ZN_KEY_CHOICE)
        ZN_TRY(zn_strdup(text, &slot->text));
    slot->flag = strcmp(text, "true") == 0;
    slot->number = strtod(text, NULL);
    slot->integer = strtoll(text, NULL, 10);
    slot->state = ZN_SLOT_GIVEN;
    slot->source = ZN_FROM_DEFAULT;
    return ZINC_OK;
}

bool zn_slot_is_default(const zn_key *key, const zn_slot *slot)
{
    const char *text = key->default_text;
    if (slot->state == ZN_SLOT_ABSENT)
        return true;
    if (!text || slot->state == ZN_SLOT_AUTO)
        return false;
    switch (key->type) {
    case ZN_KEY_BOOL:
        return slot->flag == (strcmp(text, "true") == 0);
    case ZN_KEY_INT:
    case ZN_KEY_REAL:
        return slot->number == strtod(text, NULL);
    case ZN_KEY_TEXT:
    case ZN_KEY_CHOICE:
        return strcasecmp(slot->text, text) == 0;
    default:
        return false;
    }
}

bool zn_slot_same(const zn_key *key, const zn_slot *slot, const zn_slot *value)
{
    switch (key->type) {
    case ZN_KEY_BOOL:
        return slot->flag == value->flag;
    case ZN_KEY_PAIR:
        return (isnan(value->pair[0]) || slot->pair[0] == value->pair[0]) &&
               (isnan(value->pair[1]) || slot->pair[1] == value->pair[1]);
    case ZN_KEY_TEXT:
    case ZN_KEY_CHOICE:
        return strcasecmp(slot->text, value->text) == 0;
    default:
        return slot->number == value->number;
    }
}

zinc_status zn_slot_append(const zn_key *key, const zn_slot *slot, zn_buf *out)
{
    if (slot->state == ZN_SLOT_AUTO)
        return zn_buf_puts(out, "\"auto\"");
    if (slot->state == ZN_SLOT_ABSENT)
        return zn_buf_puts(out, "null");
    switch (key->type) {
    case ZN_KEY_BOOL:
        return zn_buf_puts(out, slot->flag ? "true" : "false");
    case ZN_KEY_INT:
        return zn_buf_printf(out, "%lld", (long long)slot->integer);
    case ZN_KEY_REAL:
        return zn_json_append_number(out, slot->number);
    case ZN_KEY_TEXT:
    case ZN_KEY_CHOICE:
        return zn_json_append_string(out, slot->text, strlen(slot->text));
    case ZN_KEY_PAIR:
        ZN_TRY(zn_buf_puts(out, "["));
        ZN_TRY(zn_json_append_number(out, slot->pair[0]));
        ZN_TRY(zn_buf_puts(out, ","));
        ZN_TRY(zn_json_append_number(out, slot->pair[1]));
        return zn_buf_puts(out, "]");
    default:
        return zn_buf_puts(out, "{}");
    }
}

zinc_status zn_slot_origin(const zn_slot *slot, char **out)
{
    switch (slot->source) {
    case ZN_FROM_FILE:
        return zn_format(out, "%s:%d", slot->file, slot->line);
    case ZN_FROM_ARGUMENT:
        return zn_format(out, "argument --%s", slot->argument);
    case ZN_FROM_AUTO:
        return zn_format(out, "auto: %s", slot->why);
    default:
        return zn_strdup("default", out);
    }
}

/* The place of a choice among the row's words; 0, the first, if there is none. */
static int choice_of(const zn_key *key, const zn_slot *slot)
{
    const char *word;
    size_t n;
    for (int i = 0; slot->state == ZN_SLOT_GIVEN && zn_word_at(key->words, i, &word, &n); i++)
        if (strlen(slot->text) == n && strncasecmp(slot->text, word, n) == 0)
            return i;
    return 0;
}

/* The types that a CHOICE row allows all parse. */
static bool dtype_of(const zn_slot *slot, zn_dtype *out)
{
    return slot->state == ZN_SLOT_GIVEN && zn_dtype_parse(slot->text, out) == 0;
}

static void store_number(const zn_key *key, const zn_slot *slot, void *field)
{
    const bool given = slot->state == ZN_SLOT_GIVEN;
    const bool nullable = key->default_text != NULL; /* null is a value of its own: 0 */
    if (key->store == ZN_STORE_I64) {
        const int64_t value = given ? slot->integer : nullable ? 0 : -1;
        memcpy(field, &value, sizeof value);
    } else if (key->store == ZN_STORE_INT) {
        const int value = given ? (int)slot->integer : 0;
        memcpy(field, &value, sizeof value);
    } else {
        const double value = given ? slot->number : (double)NAN;
        memcpy(field, &value, sizeof value);
    }
}

static void store_flag(const zn_key *key, const zn_slot *slot, void *field)
{
    const bool given = slot->state == ZN_SLOT_GIVEN;
    if (key->store == ZN_STORE_TRI) {
        const int value = given ? slot->flag : -1;
        memcpy(field, &value, sizeof value);
    } else {
        const bool value = given && slot->flag;
        memcpy(field, &value, sizeof value);
    }
}

void zn_config_store(const zn_slot *slots, zn_config_values *values)
{
    memset(values, 0, sizeof *values);
    values->accelerate.given = slots[zn_key_find("accelerate")].state == ZN_SLOT_GIVEN;
    for (int i = 0; i < zn_n_keys; i++) {
        const zn_key *key = &zn_keys[i];
        const zn_slot *slot = &slots[i];
        const bool given = slot->state == ZN_SLOT_GIVEN;
        void *field = (char *)values + key->offset;
        switch (key->store) {
        case ZN_STORE_NONE:
            break;
        case ZN_STORE_BOOL:
        case ZN_STORE_TRI:
            store_flag(key, slot, field);
            break;
        case ZN_STORE_INT:
        case ZN_STORE_I64:
        case ZN_STORE_F64:
            store_number(key, slot, field);
            break;
        case ZN_STORE_TEXT: {
            char *text = given ? slot->text : NULL;
            memcpy(field, &text, sizeof text);
            break;
        }
        case ZN_STORE_CHOICE: {
            const int choice = choice_of(key, slot);
            memcpy(field, &choice, sizeof choice);
            break;
        }
        case ZN_STORE_BETAS:
            values->beta1 = given ? slot->pair[0] : (double)NAN;
            values->beta2 = given ? slot->pair[1] : (double)NAN;
            break;
        case ZN_STORE_COMM_DTYPE:
            values->has_communication_data_type = dtype_of(slot, &values->communication_data_type);
            break;
        case ZN_STORE_ACCUM_DTYPE:
            values->has_grad_accum_dtype = dtype_of(slot, &values->grad_accum_dtype);
            break;
        }
    }
}
