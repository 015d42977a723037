/* SPDX-License-Identifier: Apache-2.0 */
/* From the tree of a file to one slot per key: names, types, bounds, statuses, other spellings. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/config_internal.h"

static void describe(const zn_node *node, char *buf, size_t n)
{
    switch (node->kind) {
    case ZN_NODE_NULL:
        snprintf(buf, n, "null");
        break;
    case ZN_NODE_BOOL:
        snprintf(buf, n, "%s", node->flag ? "true" : "false");
        break;
    case ZN_NODE_NUMBER:
        snprintf(buf, n, "%.60s", node->text);
        break;
    case ZN_NODE_STRING:
        snprintf(buf, n, "the string \"%.60s\"", node->text);
        break;
    case ZN_NODE_ARRAY:
        if (node->first && node->first->next && !node->first->next->next &&
            node->first->kind == ZN_NODE_NUMBER && node->first->next->kind == ZN_NODE_NUMBER)
            snprintf(buf, n, "[%.30s, %.30s]", node->first->text, node->first->next->text);
        else
            snprintf(buf, n, "a list");
        break;
    case ZN_NODE_OBJECT:
        snprintf(buf, n, "an object");
        break;
    }
}

/* parent.name, cut if it is too long (the reader keeps names within 200 bytes). */
static void join_path(const char *parent, const char *name, char out[ZN_PATH_BYTES])
{
    snprintf(out, ZN_PATH_BYTES, "%.800s%s%.200s", parent, *parent && *name ? "." : "", name);
}

bool zn_key_allows(const zn_key *key, double x)
{
    const bool above = key->flags & ZN_KEY_POSITIVE ? x > key->min : x >= key->min;
    const bool below =
        key->max == 0 || (key->flags & ZN_KEY_BELOW_MAX ? x < key->max : x <= key->max);
    return isfinite(x) && above && below;
}

/* "expected …, found …", with a hint for the usual slips. */
static zinc_status wrong_type(zn_config *config, const zn_key *key, const zn_node *node,
                              const char *path)
{
    char wanted[400], found[100], hint[200];
    const bool is_number = key->type == ZN_KEY_INT || key->type == ZN_KEY_REAL;
    const char *say = NULL;
    zn_key_type_text(key, wanted, sizeof wanted);
    describe(node, found, sizeof found);
    if (node->kind == ZN_NODE_NULL) {
        say = "leave the key out for the default";
    } else if (node->kind == ZN_NODE_STRING && key->type == ZN_KEY_CHOICE) {
        char word[80];
        if (zn_nearest_word(node->text, key->words, word, sizeof word)) {
            snprintf(hint, sizeof hint, "did you mean \"%s\"?", word);
            say = hint;
        }
    } else if (node->kind == ZN_NODE_STRING && strcmp(node->text, "auto") == 0) {
        say = "\"auto\" is not allowed here; leave the key out for the default";
    } else if (node->kind == ZN_NODE_STRING &&
               (is_number ||
                (key->type == ZN_KEY_BOOL &&
                 (strcasecmp(node->text, "true") == 0 || strcasecmp(node->text, "false") == 0)))) {
        char *end;
        strtod(node->text, &end);
        if (!is_number || (end != node->text && *end == '\0'))
            say = "remove the quotes";
    } else if (node->kind == ZN_NODE_NUMBER && key->type == ZN_KEY_INT && !node->integral &&
               node->number >= key->min && fabs(node->number) < 1e18) {
        snprintf(hint, sizeof hint, "for example %.0f", fmax(floor(node->number), 1));
        say = hint;
    } else if (node->kind == ZN_NODE_NUMBER && key->type == ZN_KEY_INT && node->integral &&
               zn_key_allows(key, node->number)) { /* NO_POINT */
        snprintf(hint, sizeof hint, "write %lld", (long long)node->integer);
        say = hint;
    } else if (node->kind == ZN_NODE_BOOL && key->type == ZN_KEY_BLOCK &&
               strcmp(key->path, "zero_optimization") == 0) {
        say = node->flag ? "write {\"stage\": 1}" : "write {\"stage\": 0}";
    }
    if (!say && key->default_text && key->type < ZN_KEY_ANY) {
        snprintf(hint, sizeof hint, "the default is %s", key->default_text);
        say = hint;
    }
    return zn_config_add_error(config, path, node->line, node->column, say, "expected %s, found %s",
                               wanted, found);
}

static bool take_pair(const zn_key *key, const zn_node *node, zn_slot *slot)
{
    const zn_node *a = node->first, *b = a ? a->next : NULL;
    if (node->kind != ZN_NODE_ARRAY || !b || b->next || a->kind != ZN_NODE_NUMBER ||
        b->kind != ZN_NODE_NUMBER || !zn_key_allows(key, a->number) ||
        !zn_key_allows(key, b->number))
        return false;
    slot->pair[0] = a->number;
    slot->pair[1] = b->number;
    return true;
}

static bool take_number(const zn_key *key, const zn_node *node, zn_slot *slot)
{
    if (node->kind != ZN_NODE_NUMBER)
        return false;
    if ((key->flags & ZN_KEY_INFINITY) && strcmp(node->text, "Infinity") == 0) {
        slot->number = 0;
        slot->integer = 0;
        return true;
    }
    if (!zn_key_allows(key, node->number) || (key->type == ZN_KEY_INT && !node->integral) ||
        ((key->flags & ZN_KEY_NO_POINT) && strchr(node->text, '.')))
        return false;
    slot->number = node->number;
    slot->integer = node->integer;
    return true;
}

/* Value of a scalar into the slot; false if it is not of the row's type. Texts are copied by the
 * caller. */
static bool take_value(const zn_key *key, const zn_node *node, zn_slot *slot)
{
    switch (key->type) {
    case ZN_KEY_BOOL:
        slot->flag = node->flag;
        return node->kind == ZN_NODE_BOOL;
    case ZN_KEY_INT:
    case ZN_KEY_REAL:
        return take_number(key, node, slot);
    case ZN_KEY_PAIR:
        return take_pair(key, node, slot);
    case ZN_KEY_TEXT:
        return node->kind == ZN_NODE_STRING;
    case ZN_KEY_CHOICE:
        return node->kind == ZN_NODE_STRING &&
               zn_word_in(key->words, node->text, key->flags & ZN_KEY_NO_CASE);
    case ZN_KEY_ANY:
        return true;
    default:
        return node->kind == ZN_NODE_OBJECT;
    }
}

zinc_status zn_config_bind_value(zn_config *config, const zn_key *key, const zn_node *node,
                                 const char *path, zn_slot *slot)
{
    zn_slot value = {.line = node->line,
                     .column = node->column,
                     .source = ZN_FROM_FILE,
                     .file = config->name,
                     .alias = -1,
                     .state = ZN_SLOT_GIVEN};
    if (node->kind == ZN_NODE_NULL &&
        (key->flags & ZN_KEY_NULL || config->in_yaml || config->is_resolved))
        return ZINC_OK; /* accelerate leaves out what is null */
    if (node->kind == ZN_NODE_STRING && (key->flags & ZN_KEY_AUTO) &&
        strcmp(node->text, "auto") == 0) {
        value.state = ZN_SLOT_AUTO;
    } else if (!take_value(key, node, &value)) {
        return wrong_type(config, key, node, path);
    } else if (key->type == ZN_KEY_TEXT || key->type == ZN_KEY_CHOICE) {
        ZN_TRY(zn_strdup(node->text, &value.text));
    }
    zn_slot_fini(slot);
    *slot = value;
    return ZINC_OK;
}

/* A string under a name such as "_comment": people keep remarks there, and DeepSpeed ignores every
 * unknown name at the top. */
static bool is_remark(const char *parent, const zn_node *member)
{
    static const char *const ends[] = {"note", "notes", "comment", "comments", "description"};
    const char *name = member->key;
    const size_t n = strlen(name);
    if (*parent || member->kind != ZN_NODE_STRING)
        return false;
    if (name[0] == '_' || name[0] == '/' || name[0] == '#' || name[0] == '$')
        return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n_end = strlen(ends[i]);
        if (n >= n_end && strcasecmp(name + n - n_end, ends[i]) == 0 &&
            (n == n_end || name[n - n_end - 1] == '_' || name[n - n_end - 1] == '-'))
            return true;
    }
    return false;
}

/* Names of other tools for what DeepSpeed calls differently. */
static const char *synonym(const char *name)
{
    static const char *const pairs[][2] = {
        {"learning_rate", "lr"},
        {"adam_epsilon", "eps"},
        {"epsilon", "eps"},
        {"adam_betas", "betas"},
        {"beta1", "betas"},
        {"beta2", "betas"},
        {"max_grad_norm", "gradient_clipping"},
        {"warmup_steps", "warmup_num_steps"},
        {"num_warmup_steps", "warmup_num_steps"},
        {"total_steps", "total_num_steps"},
        {"num_training_steps", "total_num_steps"},
        {"batch_size", "train_batch_size"},
        {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (strcmp(name, pairs[i][0]) == 0)
            return pairs[i][1];
    return NULL;
}

/* Write what the writer of an unknown name may have meant; false if there is no idea. */
static bool suggest(const char *parent, const char *name, char *hint, size_t n)
{
    const char *names[64];
    int n_names = 0;
    const char *other = synonym(name);
    for (int i = 0; i < zn_n_keys && n_names < 64; i++) {
        const char *last;
        if (zn_key_is_in(i, parent, &last))
            names[n_names++] = last;
    }
    for (int i = 0; i < n_names && other; i++)
        if (strcmp(names[i], other) == 0) {
            snprintf(hint, n, "did you mean \"%s\"?", other);
            return true;
        }
    for (int i = 0; i < zn_n_keys; i++) { /* the right name in the wrong block */
        const char *last = strrchr(zn_keys[i].path, '.');
        if (strcmp(last ? last + 1 : zn_keys[i].path, other ? other : name) == 0 &&
            zn_keys[i].status != ZN_KEY_ALIAS) {
            snprintf(hint, n, "did you mean \"%s\"?", zn_keys[i].path);
            return true;
        }
    }
    const char *near = zn_nearest_name(name, names, n_names);
    if (near)
        snprintf(hint, n, "did you mean \"%s\"?", near);
    return near != NULL;
}

static zinc_status unknown_key(zn_config *config, const zn_node *member, const char *parent,
                               const char *path)
{
    char hint[300];
    if (is_remark(parent, member))
        return zn_config_add_note(config, "%s:%d: \"%.200s\" is taken as a remark", config->name,
                                  member->key_line, member->key);
    const bool have_hint = suggest(parent, member->key, hint, sizeof hint);
    return zn_config_add_error(config, path, member->key_line, member->key_column,
                               have_hint ? hint : "remove it; docs/config.md lists the keys",
                               "unknown key \"%s\"", member->key);
}

/* Whether a block that is only checked for names asks for anything. One without a key of its own
 * that switches it on does, unless it is empty or says "enabled": false. */
static bool is_switched_on(const zn_key *key, const zn_node *block)
{
    if (block->kind == ZN_NODE_BOOL)
        return block->flag;
    if (block->kind != ZN_NODE_OBJECT)
        return block->kind != ZN_NODE_NULL;
    const zn_node *on = zn_node_get(block, key->default_text ? key->default_text : "enabled");
    if (!on)
        return !key->default_text && block->first != NULL;
    if (on->kind == ZN_NODE_NULL)
        return false;
    return on->kind == ZN_NODE_BOOL ? on->flag : on->kind != ZN_NODE_NUMBER || on->number > 1;
}

static zinc_status check_names(zn_config *config, const zn_key *key, const zn_node *block,
                               const char *path)
{
    for (const zn_node *m = block->first; m && m->key && key->words; m = m->next) {
        char inner[ZN_PATH_BYTES], hint[120], word[80];
        if (zn_word_in(key->words, m->key, false))
            continue;
        join_path(path, m->key, inner);
        const char *near = zn_nearest_word(m->key, key->words, word, sizeof word);
        if (near)
            snprintf(hint, sizeof hint, "did you mean \"%s\"?", near);
        ZN_TRY(zn_config_add_error(config, inner, m->key_line, m->key_column, near ? hint : NULL,
                                   "unknown key \"%s\"", m->key));
    }
    return ZINC_OK;
}

/* What the row's status has to say about a value that is well-formed. */
static zinc_status apply_status(zn_config *config, const zn_key *key, const zn_node *node,
                                const zn_slot *slot, const char *path)
{
    const bool harmless =
        key->type == ZN_KEY_NAMES ? !is_switched_on(key, node) : zn_slot_is_default(key, slot);
    const bool removed = key->status == ZN_KEY_REMOVED;
    if (key->status == ZN_KEY_ACCEPTED)
        return node->kind == ZN_NODE_NULL || !key->reason /* said for its block */ || harmless ||
                       (key->flags & ZN_KEY_FULFILLED)
                   ? ZINC_OK
                   : zn_config_add_note(config, "%s:%d: %s has no effect: %s", config->name,
                                        node->line, path, key->reason);
    if (key->status == ZN_KEY_HONOURED || key->status == ZN_KEY_ALIAS)
        return ZINC_OK;
    if (!harmless) {
        char hint[300];
        snprintf(hint, sizeof hint, "remove it%s", key->type == ZN_KEY_NAMES ? "" : " or write ");
        if (key->type != ZN_KEY_NAMES)
            snprintf(hint + strlen(hint), sizeof hint - strlen(hint), "%s", key->default_text);
        return zn_config_add_error(config, path, node->line, node->column, hint,
                                   removed ? "DeepSpeed has removed this, and Zinc does not have "
                                             "it: %s"
                                           : "not supported: %s",
                                   key->reason);
    }
    return removed ? zn_config_add_note(config,
                                        "%s:%d: %s is switched off and ignored; DeepSpeed has "
                                        "removed it",
                                        config->name, node->line, path)
                   : ZINC_OK;
}

static zinc_status bind_object(zn_config *config, const zn_node *object, const char *parent,
                               const char *shown);

static zinc_status bind_block(zn_config *config, int row, const zn_node *node, const char *path)
{
    const zn_key *key = &zn_keys[row];
    zn_slot *slot = &config->slots[row];
    if (slot->line) /* under another spelling; duplicates are found before */
        return zn_config_add_error(config, path, node->key_line, node->key_column,
                                   "keep one of them", "\"%s\" is given too, on line %d", key->path,
                                   slot->line);
    ZN_TRY(zn_config_bind_value(config, key, node, path, slot));
    if (slot->state != ZN_SLOT_GIVEN)
        return ZINC_OK;
    slot->line = node->key_line;
    ZN_TRY(apply_status(config, key, node, slot, path));
    return bind_object(config, node, key->path, path);
}

int zn_config_find_row(const char *parent, const char *name)
{
    static const char fsdp[] = "accelerate.fsdp_config";
    char longer[ZN_PATH_BYTES];
    const int row = zn_key_find_in(parent, name, strlen(name));
    if (row >= 0 || strcmp(parent, fsdp) != 0)
        return row;
    snprintf(longer, sizeof longer, "fsdp_%.200s", name);
    return zn_key_find_in(parent, longer, strlen(longer));
}

static zinc_status bind_member(zn_config *config, const zn_node *member, const char *parent,
                               const char *shown)
{
    char path[ZN_PATH_BYTES];
    join_path(shown, member->key, path);
    const int row = zn_config_find_row(parent, member->key);
    if (row < 0)
        return unknown_key(config, member, parent, path);
    const zn_key *key = &zn_keys[row];
    const int target = key->status == ZN_KEY_ALIAS ? zn_key_find(key->reason) : row;
    ZN_ASSERT(target >= 0);
    if (zn_keys[target].type == ZN_KEY_BLOCK)
        return bind_block(config, target, member, path);
    const zn_key *typed = key->flags & ZN_KEY_BOOL_TO_CPU ? key : &zn_keys[target];
    zn_slot *slot = &config->slots[row];
    const bool off = key->type == ZN_KEY_NAMES &&
                     (key->status == ZN_KEY_REFUSED || key->status == ZN_KEY_REMOVED) &&
                     !is_switched_on(key, member);
    if (!off || member->kind == ZN_NODE_OBJECT)
        ZN_TRY(zn_config_bind_value(config, typed, member, path, slot));
    if (slot->state == ZN_SLOT_GIVEN && key->type == ZN_KEY_NAMES)
        ZN_TRY(check_names(config, key, member, path));
    return slot->state == ZN_SLOT_GIVEN || off ? apply_status(config, key, member, slot, path)
                                               : ZINC_OK;
}

static zinc_status bind_object(zn_config *config, const zn_node *object, const char *parent,
                               const char *shown)
{
    for (const zn_node *member = object->first; member; member = member->next)
        ZN_TRY(bind_member(config, member, parent, shown));
    return ZINC_OK;
}

/* Names that an object has twice, at any depth. */
static zinc_status find_duplicates(zn_config *config, const zn_node *node, const char *path)
{
    for (const zn_node *m = node->first; m; m = m->next) {
        char inner[ZN_PATH_BYTES];
        join_path(path, m->key ? m->key : "", inner);
        for (const zn_node *before = node->first; before != m && m->key; before = before->next)
            if (strcmp(before->key, m->key) == 0) {
                ZN_TRY(zn_config_add_error(config, inner, m->key_line, m->key_column,
                                           "keep one of them",
                                           "\"%s\" is given twice, on line %d and on line %d",
                                           m->key, before->key_line, m->key_line));
                break;
            }
        ZN_TRY(find_duplicates(config, m, inner));
    }
    return ZINC_OK;
}

static bool is_of_yaml(const zn_key *key)
{
    return strncmp(key->path, "accelerate.", 11) == 0;
}

/* What a YAML says is set where a ds_config.json beside it leaves it open. */
static zinc_status apply_yaml_alias(zn_config *config, int row, zn_slot *to)
{
    const zn_key *key = &zn_keys[row];
    const zn_slot *slot = &config->slots[row];
    char *other = NULL;
    if (!config->in_yaml)
        return zn_config_add_error(config, key->path, slot->line, slot->column, NULL,
                                   "in a ds_config.json this is \"%s\"", key->reason);
    if (to->state == ZN_SLOT_GIVEN) {
        if (zn_slot_same(&zn_keys[zn_key_find(key->reason)], to, slot))
            return ZINC_OK;
        ZN_TRY(zn_slot_origin(to, &other));
        const zinc_status status =
            zn_config_add_error(config, key->path, slot->line, slot->column,
                                "keep one of them, or write \"auto\" in the ds_config.json",
                                "%s says otherwise (%s)", other, key->reason);
        zn_free(other);
        return status;
    }
    ZN_TRY(zn_slot_copy(slot, to));
    to->alias = row;
    return ZINC_OK;
}

/* Move the value of another spelling to its key, unless both are given. */
static zinc_status apply_alias(zn_config *config, int row)
{
    const zn_key *key = &zn_keys[row];
    const zn_slot *slot = &config->slots[row];
    const int target = zn_key_find(key->reason);
    zn_slot *to = &config->slots[target];
    int other = target;
    if (key->flags & ZN_KEY_BOOL_TO_CPU) { /* DeepSpeed counts the whole block */
        char block[ZN_PATH_BYTES];
        snprintf(block, sizeof block, "%s", key->reason);
        *strrchr(block, '.') = '\0';
        other = zn_key_find(block);
    }
    if (is_of_yaml(key))
        return apply_yaml_alias(config, row, to);
    if (config->slots[other].line || to->line) {
        const bool refused_twice = strcmp(key->path, "optimizer.params.max_grad_norm") == 0 &&
                                   to->state == ZN_SLOT_GIVEN && to->number == slot->number;
        if (refused_twice)
            return ZINC_OK;
        return zn_config_add_error(config, key->path, slot->line, slot->column, "keep one of them",
                                   "\"%s\" is given too, on line %d", zn_keys[other].path,
                                   to->line ? to->line : config->slots[other].line);
    }
    ZN_TRY(zn_config_add_note(config, "%s:%d: %s is taken as %s (%s)", config->name, slot->line,
                              key->path, key->reason, key->doc));
    ZN_TRY(zn_slot_copy(slot, to));
    to->alias = row;
    if (key->flags & ZN_KEY_BOOL_TO_CPU)
        ZN_TRY(zn_strdup(slot->flag ? "cpu" : "none", &to->text));
    return ZINC_OK;
}

/* Parameters that the optimizer or scheduler of the file does not have. */
static zinc_status check_only(zn_config *config, const char *block)
{
    char path[40];
    snprintf(path, sizeof path, "%s.type", block);
    const zn_slot *type = zn_slot_at(config->slots, path);
    const zn_slot *outer = zn_slot_at(config->slots, block);
    if (outer->state == ZN_SLOT_GIVEN && type->state != ZN_SLOT_GIVEN &&
        !zn_node_get(zn_node_get(config->root, block), "type"))
        return zn_config_add_error(config, path, outer->line, outer->column,
                                   strcmp(block, "optimizer") == 0
                                       ? "for example \"type\": \"AdamW\""
                                       : "for example \"type\": \"WarmupLR\"",
                                   "the block has no type");
    if (type->state != ZN_SLOT_GIVEN)
        return ZINC_OK;
    for (int i = 0; i < zn_n_keys; i++) {
        const zn_key *key = &zn_keys[i];
        const zn_slot *slot = &config->slots[i];
        if (slot->state == ZN_SLOT_ABSENT || !key->only ||
            strncmp(key->path, block, strlen(block)) != 0 ||
            zn_word_in(key->only, type->text, true))
            continue;
        ZN_TRY(zn_config_add_error(config, key->path, slot->line, slot->column, "remove it",
                                   "%s has no such parameter", type->text));
    }
    return ZINC_OK;
}

static zinc_status apply_aliases(zn_config *config)
{
    for (int i = 0; i < zn_n_keys; i++)
        if (zn_keys[i].status == ZN_KEY_ALIAS && config->slots[i].state != ZN_SLOT_ABSENT &&
            (is_of_yaml(&zn_keys[i]) || !config->in_yaml))
            ZN_TRY(apply_alias(config, i));
    return ZINC_OK;
}

static zinc_status bind_yaml(zn_config *config, const zn_node *root, const char *block)
{
    config->in_yaml = true;
    zinc_status status = bind_object(config, root, block, "");
    if (status == ZINC_OK)
        status = apply_aliases(config);
    config->in_yaml = false;
    return status;
}

zinc_status zn_config_bind_accelerate(zn_config *config, const zn_node *root)
{
    zn_slot *block = zn_slot_at(config->slots, "accelerate");
    if (block->line)
        return zn_config_add_error(config, "", 1, 1, "remove it there",
                                   "the ds_config.json has a block \"accelerate\" of its own");
    ZN_TRY(find_duplicates(config, root, ""));
    if (config->n_errors > 0)
        return ZINC_OK;
    block->state = ZN_SLOT_GIVEN;
    block->line = block->column = 1;
    return bind_yaml(config, root, "accelerate");
}

zinc_status zn_config_bind_fsdp(zn_config *config, const zn_node *root)
{
    ZN_TRY(find_duplicates(config, root, ""));
    return config->n_errors > 0 ? ZINC_OK : bind_yaml(config, root, "accelerate.fsdp_config");
}

zinc_status zn_config_bind(zn_config *config)
{
    ZN_TRY(find_duplicates(config, config->root, ""));
    if (config->n_errors > 0) /* which of two values is meant is not known */
        return ZINC_OK;
    ZN_TRY(bind_object(config, config->root, "", ""));
    ZN_TRY(apply_aliases(config));
    ZN_TRY(check_only(config, "optimizer"));
    return check_only(config, "scheduler");
}
