/* SPDX-License-Identifier: Apache-2.0 */
/* --fsdp and --fsdp_config, and the choice among all that can say how a model is shared.
 * TrainingArguments' keys are those of an accelerate YAML's fsdp_config, so they are bound as such;
 * its words are two of them. Source: transformers 5.24, training_args.py. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "config/config_internal.h"

#define SECTION "accelerate.fsdp_config."
#define STRATEGIES "full_shard shard_grad_op no_shard hybrid_shard hybrid_shard_zero2"

/* Set a key that --fsdp means; fsdp_config may say the same. */
static zinc_status set_word(zn_config *config, const char *path, const char *text, bool flag)
{
    const zn_key *key = &zn_keys[zn_key_find(path)];
    zn_slot *slot = zn_slot_at(config->slots, path);
    zn_slot value = {.state = ZN_SLOT_GIVEN,
                     .source = ZN_FROM_ARGUMENT,
                     .argument = "fsdp",
                     .alias = -1,
                     .flag = flag};
    ZN_TRY(zn_strdup(text, &value.text));
    if (slot->state == ZN_SLOT_GIVEN && !zn_slot_same(key, slot, &value)) {
        zn_free(value.text);
        return zn_config_add_error(config, path, slot->line, slot->column, "keep one of them",
                                   "argument --fsdp says otherwise");
    }
    zn_slot_fini(slot);
    *slot = value;
    return ZINC_OK;
}

static zinc_status unknown_word(zn_config *config, const char *word)
{
    char near[80], hint[160];
    static const char words[] = STRATEGIES " offload auto_wrap";
    if (zn_nearest_word(word, words, near, sizeof near))
        snprintf(hint, sizeof hint, "did you mean \"%s\"?", near);
    else
        snprintf(hint, sizeof hint, "there are: %s", words);
    return zn_config_add_error(config, "--fsdp", 0, 0, hint, "unknown word \"%s\"", word);
}

/* A strategy: true or false in version 2, which has two of them only, else its name. */
static zinc_status take_strategy(zn_config *config, const char *word)
{
    static const char path[] = SECTION "fsdp_reshard_after_forward";
    const zn_slot *version = zn_slot_at(config->slots, SECTION "fsdp_version");
    const bool full = strcasecmp(word, "full_shard") == 0;
    if (version->state != ZN_SLOT_GIVEN || version->integer != 2)
        return set_word(config, path, word, false);
    if (!full && strcasecmp(word, "shard_grad_op") != 0)
        return zn_config_add_error(config, "--fsdp", 0, 0, "\"version\": 1 in fsdp_config has it",
                                   "FSDP version 2 has no %s", word);
    return set_word(config, path, full ? "true" : "false", false);
}

static zinc_status take_word(zn_config *config, const char *word)
{
    if (strcasecmp(word, "offload") == 0)
        return set_word(config, SECTION "fsdp_offload_params", "", true);
    if (strcasecmp(word, "auto_wrap") == 0 || strcasecmp(word, "true") == 0)
        return ZINC_OK; /* blocks are units anyway; "true" is the bare --fsdp */
    return zn_word_in(STRATEGIES, word, true) ? take_strategy(config, word)
                                              : unknown_word(config, word);
}

/* Words between spaces or commas. */
static zinc_status take_words(zn_config *config, const char *words)
{
    for (const char *p = words ? words : ""; *p;) {
        char word[40];
        size_t n = 0;
        while (*p && (isspace((unsigned char)*p) || *p == ','))
            p++;
        for (; *p && !isspace((unsigned char)*p) && *p != ','; p++)
            if (n + 1 < sizeof word)
                word[n++] = *p;
        word[n] = '\0';
        if (n > 0)
            ZN_TRY(take_word(config, word));
    }
    return ZINC_OK;
}

static zinc_status read_json(zn_config *config, const char *text, size_t n)
{
    zn_syntax_error error = {0};
    zn_node *root = NULL;
    zinc_status status = zn_reader_parse(text, n, &error, &root);
    if (status == ZINC_E_FORMAT)
        return zn_config_add_error(config, "", error.line, error.column, error.hint, "%s",
                                   error.message);
    ZN_TRY_GOTO(status);
    ZN_TRY_GOTO(zn_accelerate_soften(root, "accelerate.fsdp_config"));
    ZN_TRY_GOTO(zn_config_bind_fsdp(config, root));
fail:
    zn_node_destroy(root);
    return status;
}

/* Version 2 is TrainingArguments' default; the name of a strategy means version 1. */
static void choose_version(zn_config *config)
{
    const zn_slot *reshard = zn_slot_at(config->slots, SECTION "fsdp_reshard_after_forward");
    zn_slot *version = zn_slot_at(config->slots, SECTION "fsdp_version");
    const bool named =
        reshard->state == ZN_SLOT_GIVEN && !zn_word_in("true false", reshard->text, true);
    if (version->state != ZN_SLOT_ABSENT || named)
        return;
    version->state = ZN_SLOT_GIVEN;
    version->source = ZN_FROM_AUTO;
    version->integer = 2;
    version->number = 2;
    version->why = "TrainingArguments' default";
}

static zinc_status read_fsdp(zn_config *config, const char *words, const char *text, size_t n)
{
    if (text)
        ZN_TRY(read_json(config, text, n));
    if (config->n_errors == 0)
        ZN_TRY(take_words(config, words));
    if (config->n_errors > 0)
        return ZINC_OK;
    choose_version(config);
    return zn_accelerate_translate_fsdp(config);
}

zinc_status zn_config_load_fsdp(const char *words, const char *fsdp_config, zn_config **out)
{
    zinc_status status;
    zn_config *config = NULL;
    zn_buf text = {0};
    const bool inlined = fsdp_config && fsdp_config[strspn(fsdp_config, " \t\r\n")] == '{';
    const char *name = inlined ? "--fsdp_config" : fsdp_config ? fsdp_config : "";
    if (inlined)
        ZN_TRY_GOTO(zn_buf_puts(&text, fsdp_config));
    else if (fsdp_config)
        ZN_TRY_GOTO(zn_config_read_file(fsdp_config, "{} is the smallest one", &text));
    ZN_TRY_GOTO(zn_config_create(name, &config));
    config->is_yaml = true;
    ZN_TRY_GOTO(zn_config_finish(config, read_fsdp(config, words, text.data, text.n), out));
fail:
    zn_buf_fini(&text);
    return status;
}

zinc_status zn_config_open(const zn_config_sources *s, zn_config **out)
{
    const bool fsdp = s->fsdp && strcasecmp(s->fsdp, "false") != 0;
    if (s->fsdp_config && !fsdp)
        ZN_FAIL(ZINC_E_INVALID, "--fsdp_config is read with --fsdp only: add it");
    if (fsdp && (s->deepspeed || s->accelerate_config))
        ZN_FAIL(ZINC_E_INVALID, "--fsdp and %s both say how ranks share the model: give one",
                s->deepspeed ? "--deepspeed" : "--accelerate_config");
    if (fsdp)
        return zn_config_load_fsdp(s->fsdp, s->fsdp_config, out);
    if (s->accelerate_config)
        return zn_config_load_accelerate(s->accelerate_config, s->deepspeed, out);
    return zn_config_load(s->deepspeed, out);
}
