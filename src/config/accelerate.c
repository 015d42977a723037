/* SPDX-License-Identifier: Apache-2.0 */
/* What an accelerate YAML means for the keys of this table. Its rows (keys_accelerate.inc) are
 * bound like all others; here its words get their rows' types, a distributed_type and a strategy
 * become ZeRO's keys, and contradictions are found. Each value that moves keeps its place in the
 * file. Source: accelerate 1.15, commands/launch.py, utils/launch.py, utils/dataclasses.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/config_internal.h"

/* ---- words and numbers ---- */

static bool is_word_of(const char *text, const char *words)
{
    return zn_word_in(words, text, true);
}

/* Make the node a string; `text` is owned by it afterwards. */
static void become_string(zn_node *node, char *text)
{
    zn_free(node->text);
    node->text = text;
    node->kind = ZN_NODE_STRING;
}

/* A list of words for a key that takes them separated by commas. */
static zinc_status join_list(zn_node *node)
{
    zn_buf text = {0};
    zinc_status status;
    ZN_TRY_GOTO(zn_buf_puts(&text, ""));
    for (const zn_node *item = node->first; item; item = item->next) {
        if (item->kind != ZN_NODE_STRING) {
            zn_buf_fini(&text);
            return ZINC_OK; /* its row says what is wrong */
        }
        ZN_TRY_GOTO(zn_buf_printf(&text, "%s%s", item == node->first ? "" : ",", item->text));
    }
    zn_node_destroy(node->first);
    node->first = NULL;
    become_string(node, text.data);
    return ZINC_OK;
fail:
    zn_buf_fini(&text);
    return status;
}

static zinc_status soften_text(const zn_key *key, zn_node *node)
{
    char *text = NULL;
    if (node->kind == ZN_NODE_BOOL) { /* a bare no, or NO, is false to YAML */
        const bool answers = key->words ? is_word_of("no", key->words)
                                        : key->default_text && is_word_of("no", key->default_text);
        const bool upper = key->words && zn_word_in(key->words, "NO", false);
        ZN_TRY(zn_strdup(node->flag ? "true" : !answers ? "false" : upper ? "NO" : "no", &text));
    } else if (node->kind == ZN_NODE_NUMBER) {
        ZN_TRY(zn_strdup(node->text, &text));
    } else {
        return node->kind == ZN_NODE_ARRAY && key->type == ZN_KEY_TEXT ? join_list(node) : ZINC_OK;
    }
    become_string(node, text);
    return ZINC_OK;
}

static zinc_status soften_value(const zn_key *key, zn_node *node)
{
    const char *text = node->text;
    if (key->type == ZN_KEY_TEXT || key->type == ZN_KEY_CHOICE)
        return soften_text(key, node);
    if (node->kind != ZN_NODE_STRING)
        return ZINC_OK;
    if (key->type == ZN_KEY_BOOL && is_word_of(text, "true false yes no on off")) {
        node->kind = ZN_NODE_BOOL;
        node->flag = is_word_of(text, "true yes on");
        return ZINC_OK;
    }
    const size_t n = strlen(text);
    if ((key->type == ZN_KEY_INT || key->type == ZN_KEY_REAL) && n > 0 &&
        zn_number_length(text, text + n) == n) {
        char *word = node->text;
        node->text = NULL;
        const zinc_status status = zn_node_set_number(node, word, n);
        zn_free(word);
        return status;
    }
    return ZINC_OK;
}

zinc_status zn_accelerate_soften(zn_node *block, const char *parent)
{
    for (zn_node *member = block->first; member; member = member->next) {
        const int row = member->key ? zn_config_find_row(parent, member->key) : -1;
        if (row < 0)
            continue;
        const zn_key *key = &zn_keys[row];
        if (key->type == ZN_KEY_BLOCK && member->kind == ZN_NODE_OBJECT) {
            ZN_TRY(zn_accelerate_soften(member, key->path));
            continue;
        }
        if (key->status == ZN_KEY_ALIAS)
            key = &zn_keys[zn_key_find(key->reason)];
        ZN_TRY(soften_value(key, member));
    }
    return ZINC_OK;
}

/* ---- meaning ---- */

#define ROW(name) "accelerate." name

static zn_slot *slot_of(const zn_config *config, const char *path)
{
    return zn_slot_at(config->slots, path);
}

static bool is_given(const zn_slot *slot)
{
    return slot->state == ZN_SLOT_GIVEN;
}

static bool is_choice(const zn_slot *slot, const char *word)
{
    return is_given(slot) && strcasecmp(slot->text, word) == 0;
}

static int64_t number_or(const zn_slot *slot, int64_t fallback)
{
    return is_given(slot) ? slot->integer : fallback;
}

/* Set `path` to a value that comes from `from` (NULL: from accelerate's default, `why`). One that a
 * ds_config.json says otherwise is an error. */
static zinc_status set(zn_config *config, const char *path, const zn_slot *from, const char *why,
                       const zn_slot *value)
{
    const zn_key *key = &zn_keys[zn_key_find(path)];
    zn_slot *slot = slot_of(config, path);
    if (is_given(slot)) {
        if (!from || zn_slot_same(key, slot, value))
            return ZINC_OK;
        char *other = NULL;
        ZN_TRY(zn_slot_origin(slot, &other));
        const zinc_status status = zn_config_add_error(
            config, path, from->line, from->column, "keep one of them", "%s says otherwise", other);
        zn_free(other);
        return status;
    }
    ZN_TRY(zn_slot_copy(value, slot));
    slot->state = ZN_SLOT_GIVEN;
    slot->alias = -1;
    slot->source = from ? from->source : ZN_FROM_AUTO;
    slot->argument = from ? from->argument : NULL;
    slot->file = from ? from->file : NULL;
    slot->line = from ? from->line : 0;
    slot->column = from ? from->column : 0;
    slot->why = why;
    return ZINC_OK;
}

static zinc_status set_number(zn_config *config, const char *path, const zn_slot *from,
                              const char *why, int64_t x)
{
    const zn_slot value = {.integer = x, .number = (double)x, .flag = x != 0};
    return set(config, path, from, why, &value);
}

static zinc_status set_text(zn_config *config, const char *path, const zn_slot *from,
                            const char *why, const char *text)
{
    zn_slot value = {0};
    ZN_TRY(zn_strdup(text, &value.text));
    const zinc_status status = set(config, path, from, why, &value);
    zn_free(value.text);
    return status;
}

static zinc_status set_precision(zn_config *config)
{
    const zn_slot *slot = slot_of(config, ROW("mixed_precision"));
    if (is_choice(slot, "fp8"))
        return zn_config_add_error(config, ROW("mixed_precision"), slot->line, slot->column,
                                   "bf16 is the nearest", "not supported: there is no fp8 here");
    if (is_choice(slot, "fp16"))
        return set_number(config, "fp16.enabled", slot, NULL, 1);
    if (is_choice(slot, "bf16"))
        return set_number(config, "bf16.enabled", slot, NULL, 1);
    return ZINC_OK;
}

/* ---- DEEPSPEED ---- */

static zinc_status set_deepspeed(zn_config *config, bool has_file)
{
    const zn_slot *include = slot_of(config, ROW("deepspeed_config.deepspeed_inclusion_filter"));
    const zn_slot *exclude = slot_of(config, ROW("deepspeed_config.deepspeed_exclusion_filter"));
    if (is_given(include) && is_given(exclude))
        ZN_TRY(zn_config_add_error(config, ROW("deepspeed_config.deepspeed_exclusion_filter"),
                                   exclude->line, exclude->column, "keep one of them",
                                   "deepspeed_inclusion_filter is given too, on line %d",
                                   include->line));
    if (has_file)
        return ZINC_OK;
    return set_number(config, "zero_optimization.stage", NULL, "accelerate's default zero_stage",
                      2);
}

/* ---- FSDP ---- */

static const char *const strategies[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                         "HYBRID_SHARD_ZERO2"};
#define N_STRATEGIES ((int)(sizeof strategies / sizeof strategies[0]))

/* A strategy by name, with or without PyTorch's underscore, or by accelerate's number from 1. */
static const char *find_strategy(const char *text)
{
    for (int i = 0; i < N_STRATEGIES; i++)
        if (strcasecmp(text + (*text == '_'), strategies[i]) == 0 ||
            (text[0] == '1' + i && !text[1]))
            return strategies[i];
    return NULL;
}

static zinc_status no_strategy(zn_config *config, const char *path, const zn_slot *slot,
                               int64_t version)
{
    const char *hint =
        version == 2 ? "HYBRID_SHARD is dp_replicate_size in parallelism_config, NO_SHARD is "
                       "distributed_type MULTI_GPU"
                     : "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2";
    return zn_config_add_error(config, path, slot->line, slot->column, hint,
                               version == 2 ? "FSDP version 2 takes true or false, found \"%.60s\""
                                            : "no sharding strategy \"%.60s\"",
                               slot->text);
}

/* Version 1 has two names for it; accelerate 1.15 reads the older and writes the newer one. What
 * the user wrote counts. */
static zinc_status strategy_of_1(zn_config *config, const char **name, const zn_slot **from)
{
    static const char *const paths[] = {ROW("fsdp_config.fsdp_reshard_after_forward"),
                                        ROW("fsdp_config.fsdp_sharding_strategy")};
    for (int i = 0; i < 2; i++) {
        const zn_slot *slot = slot_of(config, paths[i]);
        const char *one = is_given(slot) ? find_strategy(slot->text) : NULL;
        if (is_given(slot) && !one && strcasecmp(slot->text, "true") != 0)
            return no_strategy(config, paths[i], slot, 1);
        if (!one)
            continue;
        if (*from && *name != one)
            return zn_config_add_error(
                config, paths[i], slot->line, slot->column, "keep one of them",
                "fsdp_reshard_after_forward says %s, on line %d", *name, (*from)->line);
        *from = slot;
        *name = one;
    }
    return ZINC_OK;
}

static zinc_status strategy_of_2(zn_config *config, const char **name, const zn_slot **from)
{
    const zn_slot *slot = slot_of(config, ROW("fsdp_config.fsdp_reshard_after_forward"));
    const zn_slot *copies =
        slot_of(config, ROW("parallelism_config.parallelism_config_dp_replicate_size"));
    const bool hybrid = number_or(copies, 1) > 1;
    const bool keeps = is_choice(slot, "false") || is_choice(slot, "SHARD_GRAD_OP");
    if (is_given(slot) && !keeps && strcasecmp(slot->text, "true") != 0 &&
        strcasecmp(slot->text, "FULL_SHARD") != 0)
        return no_strategy(config, ROW("fsdp_config.fsdp_reshard_after_forward"), slot, 2);
    *from = is_given(slot) ? slot : hybrid ? copies : NULL;
    *name = strategies[(hybrid ? 3 : 0) + keeps];
    if (!hybrid)
        return ZINC_OK;
    const zn_slot *share =
        slot_of(config, ROW("parallelism_config.parallelism_config_dp_shard_size"));
    return set_number(config, "fsdp.shard_size", is_given(share) ? share : copies, NULL,
                      number_or(share, 1));
}

/* The mesh must hold all ranks. */
static zinc_status check_mesh(zn_config *config)
{
    const zn_slot *copies =
        slot_of(config, ROW("parallelism_config.parallelism_config_dp_replicate_size"));
    const zn_slot *share =
        slot_of(config, ROW("parallelism_config.parallelism_config_dp_shard_size"));
    const zn_slot *ranks = slot_of(config, ROW("num_processes"));
    const int64_t product = number_or(copies, 1) * number_or(share, 1);
    if ((!is_given(copies) && !is_given(share)) || number_or(ranks, -1) < 1 ||
        ranks->integer == product)
        return ZINC_OK;
    const zn_slot *at = is_given(share) ? share : copies;
    return zn_config_add_error(config, ROW("parallelism_config"), at->line, at->column, NULL,
                               "dp_replicate_size %lld x dp_shard_size %lld is not num_processes "
                               "%lld (line %d)",
                               (long long)number_or(copies, 1), (long long)number_or(share, 1),
                               (long long)ranks->integer, ranks->line);
}

/* Keys that only version 1 has are obsolete in 2; accelerate says so and goes on. */
static zinc_status note_version(zn_config *config)
{
    static const char *const only_1[] = {"backward_prefetch", "forward_prefetch", "use_orig_params",
                                         "sync_module_states"};
    for (size_t i = 0; i < sizeof only_1 / sizeof only_1[0]; i++) {
        char path[80];
        snprintf(path, sizeof path, ROW("fsdp_config.fsdp_%s"), only_1[i]);
        const zn_slot *slot = slot_of(config, path);
        if (is_given(slot))
            ZN_TRY(zn_config_add_note(config,
                                      "%s:%d: fsdp_%s is of FSDP version 1; in version 2 "
                                      "accelerate ignores it",
                                      config->name, slot->line, only_1[i]));
    }
    return ZINC_OK;
}

zinc_status zn_accelerate_translate_fsdp(zn_config *config)
{
    const zn_slot *offload = slot_of(config, ROW("fsdp_config.fsdp_offload_params"));
    const int64_t version = number_or(slot_of(config, ROW("fsdp_config.fsdp_version")), 1);
    const char *name = "FULL_SHARD";
    const zn_slot *from = NULL;
    ZN_TRY(check_mesh(config));
    if (version == 2)
        ZN_TRY(note_version(config));
    ZN_TRY(version == 2 ? strategy_of_2(config, &name, &from)
                        : strategy_of_1(config, &name, &from));
    ZN_TRY(set_text(config, "fsdp.sharding_strategy", from,
                    from ? NULL : "accelerate's default strategy", name));
    if (!is_given(offload) || !offload->flag)
        return ZINC_OK;
    ZN_TRY(set_text(config, "zero_optimization.offload_optimizer.device", offload, NULL, "cpu"));
    if (strcmp(name, "NO_SHARD") == 0)
        return ZINC_OK; /* stage 0: parameters are whole on every rank */
    return set_text(config, "zero_optimization.offload_param.device", offload, NULL, "cpu");
}

/* ---- contradictions ---- */

/* A section that another distributed_type would read; accelerate drops it silently. */
static zinc_status refuse_section(zn_config *config, const char *path, const char *type)
{
    const zn_slot *section = slot_of(config, path),
                  *chosen = slot_of(config, ROW("distributed_type"));
    const size_t n = strlen(path);
    for (int i = 0; i < zn_n_keys; i++) {
        if (strncmp(zn_keys[i].path, path, n) != 0 || zn_keys[i].path[n] != '.' ||
            config->slots[i].state == ZN_SLOT_ABSENT)
            continue;
        return zn_config_add_error(config, path, section->line, section->column,
                                   "remove it, or choose the type it is for",
                                   "this is read with distributed_type %s only, and it is %s "
                                   "(line %d)",
                                   type, chosen->text, chosen->line);
    }
    return ZINC_OK;
}

static zinc_status check_machines(zn_config *config)
{
    const zn_slot *machines = slot_of(config, ROW("num_machines"));
    const zn_slot *ranks = slot_of(config, ROW("num_processes"));
    const zn_slot *rank = slot_of(config, ROW("machine_rank"));
    const zn_slot *ip = slot_of(config, ROW("main_process_ip"));
    const zn_slot *hostfile = slot_of(config, ROW("deepspeed_config.deepspeed_hostfile"));
    const int64_t n = number_or(machines, 1), all = number_or(ranks, -1);
    if (is_given(ranks) && all == 0)
        ZN_TRY(zn_config_add_error(config, ROW("num_processes"), ranks->line, ranks->column, NULL,
                                   "at least one rank is needed"));
    if (all > 0 && all % n != 0)
        ZN_TRY(zn_config_add_error(config, ROW("num_processes"), ranks->line, ranks->column,
                                   "num_processes is the number on all machines together",
                                   "%lld ranks cannot be divided evenly among num_machines %lld "
                                   "(line %d)",
                                   (long long)all, (long long)n, machines->line));
    if (number_or(rank, 0) >= n)
        ZN_TRY(zn_config_add_error(
            config, ROW("machine_rank"), rank->line, rank->column, "machines count from 0",
            "machine_rank %lld, but num_machines is %lld", (long long)rank->integer, (long long)n));
    if (n > 1 && !is_given(ip) && !is_given(hostfile))
        ZN_TRY(zn_config_add_error(config, ROW("main_process_ip"), machines->line, machines->column,
                                   "give the address of machine 0 here, on every machine",
                                   "num_machines is %lld, and nothing says where they meet",
                                   (long long)n));
    return ZINC_OK;
}

static zinc_status check_type(zn_config *config)
{
    const zn_slot *type = slot_of(config, ROW("distributed_type"));
    const zn_slot *ranks = slot_of(config, ROW("num_processes"));
    const zn_slot *old = slot_of(config, ROW("fp16"));
    const zn_slot *precision = slot_of(config, ROW("mixed_precision"));
    if (!is_given(type))
        return zn_config_add_error(config, ROW("distributed_type"), 0, 0,
                                   "DEEPSPEED, FSDP, MULTI_GPU, MULTI_CPU or NO",
                                   "it is missing, and accelerate needs it");
    if (is_choice(type, "NO") && number_or(ranks, 1) > 1)
        ZN_TRY(zn_config_add_error(config, ROW("distributed_type"), type->line, type->column,
                                   "MULTI_CPU or MULTI_GPU, or num_processes: 1",
                                   "NO is for one rank, and num_processes is %lld (line %d)",
                                   (long long)ranks->integer, ranks->line));
    if (is_given(old) && is_given(precision))
        ZN_TRY(zn_config_add_error(config, ROW("fp16"), old->line, old->column, "remove it",
                                   "mixed_precision is given too, on line %d", precision->line));
    if (!is_choice(type, "DEEPSPEED"))
        ZN_TRY(refuse_section(config, ROW("deepspeed_config"), "DEEPSPEED"));
    if (!is_choice(type, "FSDP")) {
        ZN_TRY(refuse_section(config, ROW("fsdp_config"), "FSDP"));
        ZN_TRY(refuse_section(config, ROW("parallelism_config"), "FSDP"));
    }
    return check_machines(config);
}

/* What the program that is started says itself, accelerate leaves to it. */
static void leave_to_program(zn_config *config)
{
    static const char *const paths[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                        "gradient_accumulation_steps", "gradient_clipping"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        zn_slot *slot = slot_of(config, paths[i]);
        if (slot->state == ZN_SLOT_ABSENT)
            slot->state = ZN_SLOT_AUTO;
    }
}

zinc_status zn_accelerate_translate(zn_config *config, bool has_file)
{
    const zn_slot *type = slot_of(config, ROW("distributed_type"));
    if (!has_file)
        leave_to_program(config);
    ZN_TRY(check_type(config));
    ZN_TRY(set_precision(config));
    if (is_choice(type, "DEEPSPEED"))
        return set_deepspeed(config, has_file);
    return is_choice(type, "FSDP") ? zn_accelerate_translate_fsdp(config) : ZINC_OK;
}

void zn_config_facts_from_accelerate(const zn_config *config, zn_config_facts *facts)
{
    const int64_t ranks = number_or(slot_of(config, ROW("num_processes")), 1);
    const int64_t machines = number_or(slot_of(config, ROW("num_machines")), 1);
    if (facts->world_size == 0)
        facts->world_size = ranks > 0 ? ranks : 1;
    if (facts->ranks_per_node == 0)
        facts->ranks_per_node = facts->world_size / machines;
}
