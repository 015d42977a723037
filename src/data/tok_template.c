/* SPDX-License-Identifier: Apache-2.0 */
/* Post-processors. Several in a row wrap one another; they are folded into one template. */
#include <string.h>

#include "data/tokenizer_internal.h"

#define MAX_TEMPLATE 1024

/* Replace the row `inner` by `outer` with every -1 of it standing for `inner`. */
static zinc_status wrap(zn_template *inner, const zn_ids *outer)
{
    zinc_status status;
    zn_ids row = {0};
    for (int64_t i = 0; i < outer->n; i++) {
        if (outer->ids[i] >= 0) {
            ZN_TRY_GOTO(zn_ids_push(&row, outer->ids[i]));
            continue;
        }
        for (int k = 0; k < inner->n; k++)
            ZN_TRY_GOTO(zn_ids_push(&row, inner->items[k]));
        if (row.n > MAX_TEMPLATE)
            ZN_FAIL_GOTO(ZINC_E_UNSUPPORTED, "post_processor: a template of more than %d ids",
                         MAX_TEMPLATE);
    }
    zn_free(inner->items);
    inner->items = row.ids;
    inner->n = (int)row.n;
    return ZINC_OK;
fail:
    zn_ids_fini(&row);
    return status;
}

/* Append the ids of one special token of a TemplateProcessing. */
static zinc_status push_special(const json_t *json, const char *name, zn_ids *row)
{
    const json_t *token = json_object_get(json_object_get(json, "special_tokens"), name);
    const json_t *ids = json_object_get(token, "ids");
    if (!json_is_array(ids))
        ZN_FAIL(ZINC_E_FORMAT, "post_processor: \"special_tokens\" has no ids for \"%s\"", name);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        const json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value > ZN_TOK_MAX_ID)
            ZN_FAIL(ZINC_E_FORMAT, "post_processor: an id of \"%s\" is not a valid id", name);
        ZN_TRY(zn_ids_push(row, (int32_t)value));
    }
    return ZINC_OK;
}

static zinc_status load_template(const json_t *json, zn_template *template_)
{
    static const char where[] = "post_processor TemplateProcessing";
    zinc_status status;
    zn_ids row = {0};
    const json_t *single;
    ZN_TRY_GOTO(zn_field_array(json, where, "single", &single));
    if (json_array_size(single) > MAX_TEMPLATE)
        ZN_FAIL_GOTO(ZINC_E_UNSUPPORTED, "%s: more than %d items", where, MAX_TEMPLATE);
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const json_t *special = json_object_get(json_object_get(item, "SpecialToken"), "id");
        const json_t *sequence = json_object_get(json_object_get(item, "Sequence"), "id");
        if (json_is_string(special))
            ZN_TRY_GOTO(push_special(json, json_string_value(special), &row));
        else if (json_is_string(sequence) && strcmp(json_string_value(sequence), "A") == 0)
            ZN_TRY_GOTO(zn_ids_push(&row, -1));
        else
            ZN_FAIL_GOTO(ZINC_E_FORMAT,
                         "%s: item %zu of \"single\" is neither a special token nor sequence A",
                         where, i);
    }
    ZN_TRY_GOTO(wrap(template_, &row));
fail:
    zn_ids_fini(&row);
    return status;
}

/* ["</s>", 2] */
static zinc_status push_pair(const json_t *json, const char *where, const char *key, zn_ids *row)
{
    const json_t *id = json_array_get(json_object_get(json, key), 1);
    const json_int_t value = json_integer_value(id);
    if (!json_is_integer(id) || value < 0 || value > ZN_TOK_MAX_ID)
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%s\" must be [token, id]", where, key);
    return zn_ids_push(row, (int32_t)value);
}

/* BertProcessing and RobertaProcessing: cls A sep. */
static zinc_status load_cls_sep(const json_t *json, const char *where, zn_template *template_)
{
    zinc_status status;
    zn_ids row = {0};
    ZN_TRY_GOTO(push_pair(json, where, "cls", &row));
    ZN_TRY_GOTO(zn_ids_push(&row, -1));
    ZN_TRY_GOTO(push_pair(json, where, "sep", &row));
    ZN_TRY_GOTO(wrap(template_, &row));
fail:
    zn_ids_fini(&row);
    return status;
}

static zinc_status load_processor(const json_t *json, zn_template *template_)
{
    const char *type;
    const json_t *list;
    ZN_TRY(zn_field_type(json, "post_processor", &type));
    if (strcmp(type, "ByteLevel") == 0)
        return ZINC_OK; /* moves offsets only */
    if (strcmp(type, "TemplateProcessing") == 0)
        return load_template(json, template_);
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0)
        return load_cls_sep(json, type, template_);
    if (strcmp(type, "Sequence") != 0)
        ZN_FAIL(ZINC_E_UNSUPPORTED,
                "post_processor \"%s\" is not supported (supported: TemplateProcessing ByteLevel "
                "RobertaProcessing BertProcessing Sequence)",
                type);
    ZN_TRY(zn_field_array(json, "post_processor Sequence", "processors", &list));
    for (size_t i = 0; i < json_array_size(list); i++)
        ZN_TRY(load_processor(json_array_get(list, i), template_));
    return ZINC_OK;
}

zinc_status zn_load_template(const json_t *json, zn_template *template_)
{
    ZN_TRY(zn_alloc_array(&template_->items, 1, sizeof *template_->items, "a template"));
    template_->items[0] = -1;
    template_->n = 1;
    return !json || json_is_null(json) ? ZINC_OK : load_processor(json, template_);
}
