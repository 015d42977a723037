/* SPDX-License-Identifier: Apache-2.0 */
/* Components of tokenizer.json (normalizer, pre_tokenizer, decoder, post_processor) to steps. */
#include <string.h>

#include "data/tokenizer_internal.h"

/* ---- fields ---- */

zinc_status zn_strndup(const char *text, size_t n, char **out)
{
    char *copy = NULL;
    ZN_TRY(zn_alloc(&copy, n + 1, "a string"));
    memcpy(copy, text, n);
    *out = copy;
    return ZINC_OK;
}

zinc_status zn_field_bool(const json_t *json, const char *where, const char *key, bool fallback,
                          bool *out)
{
    const json_t *value = json_object_get(json, key);
    if (value && !json_is_null(value) && !json_is_boolean(value))
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%s\" must be true or false", where, key);
    *out = json_is_boolean(value) ? json_is_true(value) : fallback;
    return ZINC_OK;
}

zinc_status zn_field_int(const json_t *json, const char *where, const char *key, int64_t fallback,
                         int64_t *out)
{
    const json_t *value = json_object_get(json, key);
    if (value && !json_is_null(value) && !json_is_integer(value))
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%s\" must be an integer", where, key);
    *out = json_is_integer(value) ? (int64_t)json_integer_value(value) : fallback;
    return ZINC_OK;
}

zinc_status zn_field_string(const json_t *json, const char *where, const char *key,
                            const char **out, size_t *n)
{
    const json_t *value = json_object_get(json, key);
    if (value && !json_is_null(value) && !json_is_string(value))
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%s\" must be a string", where, key);
    *out = json_string_value(value);
    *n = *out ? json_string_length(value) : 0;
    return ZINC_OK;
}

zinc_status zn_field_array(const json_t *json, const char *where, const char *key,
                           const json_t **out)
{
    *out = json_object_get(json, key);
    if (!json_is_array(*out))
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%s\" must be an array", where, key);
    return ZINC_OK;
}

zinc_status zn_field_type(const json_t *json, const char *where, const char **out)
{
    size_t n;
    if (!json_is_object(json))
        ZN_FAIL(ZINC_E_FORMAT, "%s must be an object or null", where);
    ZN_TRY(zn_field_string(json, where, "type", out, &n));
    if (!*out)
        ZN_FAIL(ZINC_E_FORMAT, "%s has no \"type\"", where);
    return ZINC_OK;
}

static zinc_status need_string(const json_t *json, const char *where, const char *key,
                               const char **out, size_t *n)
{
    ZN_TRY(zn_field_string(json, where, key, out, n));
    if (!*out)
        ZN_FAIL(ZINC_E_FORMAT, "%s has no \"%s\"", where, key);
    return ZINC_OK;
}

/* ---- steps ---- */

void zn_steps_fini(zn_steps *steps)
{
    for (int i = 0; i < steps->n; i++) {
        zn_regex_fini(&steps->step[i].regex);
        zn_free(steps->step[i].text);
    }
    memset(steps, 0, sizeof *steps);
}

static zinc_status add_step(zn_steps *steps, zn_step_kind kind, zn_step **out)
{
    if (steps->n == ZN_TOK_MAX_STEPS)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "a sequence of more than %d components", ZN_TOK_MAX_STEPS);
    zn_step *step = &steps->step[steps->n++];
    step->kind = kind;
    if (out)
        *out = step;
    return ZINC_OK;
}

/* "pattern": {"String": s} or {"Regex": r}. */
static zinc_status load_pattern(const json_t *json, const char *where, zn_regex *out)
{
    const json_t *pattern = json_object_get(json, "pattern");
    const json_t *literal = json_object_get(pattern, "String");
    const json_t *regex = json_object_get(pattern, "Regex");
    if (json_is_string(literal))
        return zn_regex_compile_literal(json_string_value(literal), json_string_length(literal),
                                        where, out);
    if (json_is_string(regex))
        return zn_regex_compile(json_string_value(regex), json_string_length(regex), where, out);
    ZN_FAIL(ZINC_E_FORMAT, "%s: \"pattern\" must be {\"String\": …} or {\"Regex\": …}", where);
}

static zinc_status load_replace(const json_t *json, const char *where, zn_steps *steps)
{
    const char *content;
    size_t n;
    zn_step *step = NULL;
    ZN_TRY(need_string(json, where, "content", &content, &n));
    ZN_TRY(add_step(steps, ZN_STEP_REPLACE, &step));
    ZN_TRY(zn_strndup(content, n, &step->text));
    step->n_text = n;
    return load_pattern(json, where, &step->regex);
}

typedef zinc_status (*load_fn)(const json_t *json, zn_steps *steps);

static zinc_status load_sequence(const json_t *json, const char *where, const char *key,
                                 load_fn load, zn_steps *steps)
{
    const json_t *list;
    ZN_TRY(zn_field_array(json, where, key, &list));
    for (size_t i = 0; i < json_array_size(list); i++)
        ZN_TRY(load(json_array_get(list, i), steps));
    return ZINC_OK;
}

/* ---- normalizers ---- */

static zinc_status load_trim(const json_t *json, zn_steps *steps)
{
    bool left, right;
    zn_step *step = NULL;
    ZN_TRY(zn_field_bool(json, "normalizer Strip", "strip_left", true, &left));
    ZN_TRY(zn_field_bool(json, "normalizer Strip", "strip_right", true, &right));
    ZN_TRY(add_step(steps, ZN_STEP_TRIM, &step));
    step->start = left;
    step->stop = right;
    return ZINC_OK;
}

static zinc_status load_prepend(const json_t *json, zn_steps *steps)
{
    const char *text;
    size_t n;
    zn_step *step = NULL;
    ZN_TRY(need_string(json, "normalizer Prepend", "prepend", &text, &n));
    ZN_TRY(add_step(steps, ZN_STEP_PREPEND, &step));
    ZN_TRY(zn_strndup(text, n, &step->text));
    step->n_text = n;
    return ZINC_OK;
}

zinc_status zn_load_normalizer(const json_t *json, zn_steps *steps)
{
    static const struct {
        const char *name;
        zn_step_kind kind;
    } plain[] = {
        {"NFC", ZN_STEP_NFC},
        {"NFD", ZN_STEP_NFD},
        {"NFKC", ZN_STEP_NFKC},
        {"NFKD", ZN_STEP_NFKD},
        {"Lowercase", ZN_STEP_LOWERCASE},
        {"StripAccents", ZN_STEP_STRIP_ACCENTS},
        {"ByteLevel", ZN_STEP_BYTES},
    };
    const char *type;
    if (!json || json_is_null(json))
        return ZINC_OK;
    ZN_TRY(zn_field_type(json, "normalizer", &type));
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(type, plain[i].name) == 0)
            return add_step(steps, plain[i].kind, NULL);
    if (strcmp(type, "Sequence") == 0)
        return load_sequence(json, "normalizer Sequence", "normalizers", zn_load_normalizer, steps);
    if (strcmp(type, "Prepend") == 0)
        return load_prepend(json, steps);
    if (strcmp(type, "Strip") == 0)
        return load_trim(json, steps);
    if (strcmp(type, "Replace") == 0)
        return load_replace(json, "normalizer Replace", steps);
    ZN_FAIL(ZINC_E_UNSUPPORTED,
            "normalizer \"%s\" is not supported (supported: NFC NFD NFKC NFKD Lowercase "
            "StripAccents Strip Prepend Replace ByteLevel Sequence)",
            type);
}

/* ---- pre-tokenizers ---- */

static zinc_status add_split(zn_steps *steps, const char *pattern, zn_split_behavior behavior,
                             bool invert)
{
    zn_step *step = NULL;
    ZN_TRY(add_step(steps, ZN_STEP_SPLIT, &step));
    step->behavior = behavior;
    step->invert = invert;
    return zn_regex_compile(pattern, strlen(pattern), "pre_tokenizer", &step->regex);
}

static zinc_status load_byte_level(const json_t *json, zn_steps *steps)
{
    bool prefix, use_regex;
    ZN_TRY(zn_field_bool(json, "pre_tokenizer ByteLevel", "add_prefix_space", true, &prefix));
    ZN_TRY(zn_field_bool(json, "pre_tokenizer ByteLevel", "use_regex", true, &use_regex));
    if (prefix)
        ZN_TRY(add_step(steps, ZN_STEP_PREFIX, NULL));
    if (use_regex)
        ZN_TRY(add_split(steps, ZN_GPT2_PATTERN, ZN_SPLIT_ISOLATED, false));
    return add_step(steps, ZN_STEP_BYTES, NULL);
}

static zinc_status load_behavior(const json_t *json, const char *where, const char *fallback,
                                 zn_split_behavior *out)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name;
    size_t n;
    ZN_TRY(zn_field_string(json, where, "behavior", &name, &n));
    if (!name)
        name = fallback;
    for (int i = 0; name && i < 5; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (zn_split_behavior)i;
            return ZINC_OK;
        }
    ZN_FAIL(ZINC_E_FORMAT,
            "%s: \"behavior\" must be Removed, Isolated, MergedWithPrevious, MergedWithNext or "
            "Contiguous, not \"%s\"",
            where, name ? name : "");
}

static zinc_status load_split(const json_t *json, zn_steps *steps)
{
    zn_step *step = NULL;
    ZN_TRY(add_step(steps, ZN_STEP_SPLIT, &step));
    ZN_TRY(load_behavior(json, "pre_tokenizer Split", NULL, &step->behavior));
    ZN_TRY(zn_field_bool(json, "pre_tokenizer Split", "invert", false, &step->invert));
    return load_pattern(json, "pre_tokenizer Split", &step->regex);
}

static zinc_status load_punctuation(const json_t *json, zn_steps *steps)
{
    zn_split_behavior behavior;
    ZN_TRY(load_behavior(json, "pre_tokenizer Punctuation", "Isolated", &behavior));
    return add_split(steps, "[\\p{P}!-/:-@\\[-`{-~]", behavior, false);
}

static zinc_status load_digits(const json_t *json, zn_steps *steps)
{
    bool individual;
    ZN_TRY(zn_field_bool(json, "pre_tokenizer Digits", "individual_digits", false, &individual));
    return add_split(steps, "\\p{N}", individual ? ZN_SPLIT_ISOLATED : ZN_SPLIT_CONTIGUOUS, false);
}

static zinc_status load_delimiter(const json_t *json, zn_steps *steps)
{
    const char *text;
    size_t n;
    zn_step *step = NULL;
    ZN_TRY(need_string(json, "pre_tokenizer CharDelimiterSplit", "delimiter", &text, &n));
    ZN_TRY(add_step(steps, ZN_STEP_SPLIT, &step));
    step->behavior = ZN_SPLIT_REMOVED;
    return zn_regex_compile_literal(text, n, "pre_tokenizer CharDelimiterSplit", &step->regex);
}

/* Mark and scheme of Metaspace, as pre-tokenizer or decoder. Older files say add_prefix_space. */
static zinc_status load_mark(const json_t *json, const char *where, zn_step *step)
{
    const char *mark, *scheme;
    size_t n, n_scheme;
    bool add_prefix;
    ZN_TRY(need_string(json, where, "replacement", &mark, &n));
    ZN_TRY(zn_field_string(json, where, "prepend_scheme", &scheme, &n_scheme));
    ZN_TRY(zn_field_bool(json, where, "add_prefix_space", true, &add_prefix));
    size_t len = 0;
    if (n > 0)
        (void)zn_utf8_get(mark, &len);
    if (n == 0 || len != n)
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"replacement\" must be one character", where);
    if (scheme && strcmp(scheme, "always") != 0 && strcmp(scheme, "first") != 0 &&
        strcmp(scheme, "never") != 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"prepend_scheme\" must be always, first or never", where);
    step->scheme = scheme && strcmp(scheme, "first") == 0   ? ZN_PREPEND_FIRST
                   : scheme && strcmp(scheme, "never") == 0 ? ZN_PREPEND_NEVER
                   : scheme || add_prefix                   ? ZN_PREPEND_ALWAYS
                                                            : ZN_PREPEND_NEVER;
    step->n_text = n;
    return zn_strndup(mark, n, &step->text);
}

static zinc_status load_metaspace(const json_t *json, zn_steps *steps)
{
    static const char where[] = "pre_tokenizer Metaspace";
    bool split;
    zn_step *step = NULL, *cut = NULL;
    ZN_TRY(zn_field_bool(json, where, "split", true, &split));
    ZN_TRY(add_step(steps, ZN_STEP_METASPACE, &step));
    ZN_TRY(load_mark(json, where, step));
    if (!split)
        return ZINC_OK;
    ZN_TRY(add_step(steps, ZN_STEP_SPLIT, &cut));
    cut->behavior = ZN_SPLIT_MERGED_WITH_NEXT;
    return zn_regex_compile_literal(step->text, step->n_text, where, &cut->regex);
}

zinc_status zn_load_pre_tokenizer(const json_t *json, zn_steps *steps)
{
    static const struct {
        const char *name;
        load_fn load;
    } table[] = {
        {"ByteLevel", load_byte_level},    {"Split", load_split},
        {"Digits", load_digits},           {"Metaspace", load_metaspace},
        {"Punctuation", load_punctuation}, {"CharDelimiterSplit", load_delimiter},
    };
    const char *type;
    if (!json || json_is_null(json))
        return ZINC_OK;
    ZN_TRY(zn_field_type(json, "pre_tokenizer", &type));
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(type, table[i].name) == 0)
            return table[i].load(json, steps);
    if (strcmp(type, "Sequence") == 0)
        return load_sequence(json, "pre_tokenizer Sequence", "pretokenizers", zn_load_pre_tokenizer,
                             steps);
    if (strcmp(type, "Whitespace") == 0)
        return add_split(steps, "\\w+|[^\\w\\s]+", ZN_SPLIT_REMOVED, true);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_split(steps, "\\s", ZN_SPLIT_REMOVED, false);
    ZN_FAIL(ZINC_E_UNSUPPORTED,
            "pre_tokenizer \"%s\" is not supported (supported: ByteLevel Split Digits Metaspace "
            "Whitespace WhitespaceSplit Punctuation CharDelimiterSplit Sequence)",
            type);
}

/* ---- decoders ---- */

static zinc_status load_strip(const json_t *json, zn_steps *steps)
{
    static const char where[] = "decoder Strip";
    const char *text;
    size_t n;
    zn_step *step = NULL;
    ZN_TRY(need_string(json, where, "content", &text, &n));
    if (n == 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"content\" must be one character", where);
    ZN_TRY(add_step(steps, ZN_STEP_STRIP, &step));
    ZN_TRY(zn_field_int(json, where, "start", 0, &step->start));
    ZN_TRY(zn_field_int(json, where, "stop", 0, &step->stop));
    step->n_text = n;
    return zn_strndup(text, n, &step->text);
}

static zinc_status load_bpe_suffix(const json_t *json, zn_steps *steps)
{
    const char *suffix;
    size_t n;
    zn_step *step = NULL;
    ZN_TRY(zn_field_string(json, "decoder BPEDecoder", "suffix", &suffix, &n));
    ZN_TRY(add_step(steps, ZN_STEP_BPE_SUFFIX, &step));
    return zn_regex_compile_literal(suffix ? suffix : "</w>", suffix ? n : 4, "decoder BPEDecoder",
                                    &step->regex);
}

zinc_status zn_load_decoder(const json_t *json, zn_steps *steps)
{
    const char *type;
    zn_step *step = NULL;
    if (!json || json_is_null(json))
        return ZINC_OK;
    ZN_TRY(zn_field_type(json, "decoder", &type));
    if (strcmp(type, "Sequence") == 0)
        return load_sequence(json, "decoder Sequence", "decoders", zn_load_decoder, steps);
    if (strcmp(type, "ByteLevel") == 0)
        return add_step(steps, ZN_STEP_BYTES, NULL);
    if (strcmp(type, "ByteFallback") == 0)
        return add_step(steps, ZN_STEP_BYTE_FALLBACK, NULL);
    if (strcmp(type, "Fuse") == 0)
        return add_step(steps, ZN_STEP_FUSE, NULL);
    if (strcmp(type, "Strip") == 0)
        return load_strip(json, steps);
    if (strcmp(type, "Replace") == 0)
        return load_replace(json, "decoder Replace", steps);
    if (strcmp(type, "BPEDecoder") == 0)
        return load_bpe_suffix(json, steps);
    if (strcmp(type, "Metaspace") == 0) {
        ZN_TRY(add_step(steps, ZN_STEP_METASPACE, &step));
        return load_mark(json, "decoder Metaspace", step);
    }
    ZN_FAIL(ZINC_E_UNSUPPORTED,
            "decoder \"%s\" is not supported (supported: ByteLevel ByteFallback Fuse Strip Replace "
            "Metaspace BPEDecoder Sequence)",
            type);
}
