/* SPDX-License-Identifier: Apache-2.0 */
/* chat.c — the chat template beside a tokenizer; ids and labels of a conversation. */
#include "data/chat.h"

#include <string.h>

#include "base/fs.h"
#include "base/json.h"
#include "data/chat_internal.h"
#include "data/dataset_internal.h"
#include "data/tokenizer_internal.h"

struct zn_chat {
    const zn_chat_family *family; /* NULL: none, or one that is not known */
    char *source;                 /* file of the template; NULL: there is none */
    char *folder;                 /* of the tokenizer, with a slash at its end, or "" */
    char *bos, *eos;              /* token texts; NULL: not given */
};

/* ---- reading ---- */

/* "bos_token": "<s>", or {"content": "<s>", …}. */
static zinc_status read_token(const json_t *config, const char *key, char **out)
{
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return json_is_string(value) ? zn_strdup(json_string_value(value), out) : ZINC_OK;
}

/* "chat_template": a text, or [{"name": "default", "template": a text}, …]. */
static const json_t *template_of(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_object_get(item, "template");
    }
    return value;
}

static zinc_status read_config(zn_chat *chat)
{
    zinc_status status = ZINC_OK;
    char *path = NULL;
    json_t *config = NULL;
    ZN_TRY_GOTO(zn_format(&path, "%stokenizer_config.json", chat->folder));
    if (!zn_fs_exists(path))
        goto fail;
    ZN_TRY_GOTO(zn_json_load_reals(path, &config));
    ZN_TRY_GOTO(read_token(config, "bos_token", &chat->bos));
    ZN_TRY_GOTO(read_token(config, "eos_token", &chat->eos));
    const json_t *text = template_of(config);
    if (json_is_string(text)) {
        chat->family = zn_chat_family_of(json_string_value(text), json_string_length(text));
        ZN_TRY_GOTO(zn_strdup(path, &chat->source));
    }
fail:
    zn_free(path);
    json_decref(config);
    return status;
}

static zinc_status read_jinja(zn_chat *chat)
{
    zinc_status status = ZINC_OK;
    char *path = NULL;
    zn_buf text = {0};
    ZN_TRY_GOTO(zn_format(&path, "%schat_template.jinja", chat->folder));
    if (!zn_fs_exists(path))
        goto fail;
    ZN_TRY_GOTO(zn_fs_read(path, 1 << 20, &text));
    chat->family = zn_chat_family_of(text.data ? text.data : "", text.n);
    zn_free(chat->source);
    chat->source = path;
    path = NULL;
fail:
    zn_free(path);
    zn_buf_fini(&text);
    return status;
}

zinc_status zn_chat_open(const char *tokenizer_path, zn_chat **out)
{
    zinc_status status;
    zn_chat *chat = NULL;
    const char *slash = strrchr(tokenizer_path, '/');
    const int n = slash ? (int)(slash + 1 - tokenizer_path) : 0;
    ZN_TRY(zn_alloc(&chat, sizeof *chat, "a chat template"));
    ZN_TRY_GOTO(zn_format(&chat->folder, "%.*s", n, tokenizer_path));
    ZN_TRY_GOTO(read_config(chat));
    ZN_TRY_GOTO(read_jinja(chat)); /* wins, as in transformers */
    *out = chat;
    return ZINC_OK;
fail:
    zn_chat_destroy(chat);
    return status;
}

void zn_chat_destroy(zn_chat *chat)
{
    if (!chat)
        return;
    zn_free(chat->source);
    zn_free(chat->folder);
    zn_free(chat->bos);
    zn_free(chat->eos);
    zn_free(chat);
}

const char *zn_chat_end(const zn_chat *chat)
{
    if (!chat->family)
        return NULL;
    return chat->family->kind == ZN_CHAT_TURNS ? chat->family->close : chat->eos;
}

/* ---- writing ---- */

/* The script keeps what each answer adds. A template that writes earlier answers in another way
 * than the last one (without its reasoning, say) leaves only the last one to learn. */
static zinc_status refuse(const zn_chat *chat)
{
    const char *folder = *chat->folder ? chat->folder : ".";
    if (!chat->source)
        ZN_FAIL(ZINC_E_UNSUPPORTED,
                "a row has \"messages\", but there is no chat template beside the tokenizer: %s "
                "has no chat_template.jinja, and no \"chat_template\" in tokenizer_config.json",
                folder);
    ZN_FAIL(ZINC_E_UNSUPPORTED,
            "%s: this chat template is not one that Zinc knows (known: " ZN_CHAT_FAMILY_NAMES
            "). Write the rows once with transformers, and train on rows.ids.jsonl:\n"
            "python3 - rows.jsonl rows.ids.jsonl <<'END'\n"
            "import json, sys\n"
            "from transformers import AutoTokenizer\n"
            "tok = AutoTokenizer.from_pretrained(\"%s\")\n"
            "def ids(m, more=False):\n"
            "    t = tok.apply_chat_template(m, tokenize=False, add_generation_prompt=more)\n"
            "    return tok(t, add_special_tokens=False)[\"input_ids\"]\n"
            "with open(sys.argv[2], \"w\") as out:\n"
            "    for line in open(sys.argv[1]):\n"
            "        m = json.loads(line)[\"messages\"]\n"
            "        row = ids(m)\n"
            "        labels = [-100] * len(row)\n"
            "        for i, turn in enumerate(m):\n"
            "            if turn[\"role\"] == \"assistant\":\n"
            "                a, b = ids(m[:i], True), ids(m[:i + 1])\n"
            "                if row[:len(a)] == a and row[:len(b)] == b:\n"
            "                    labels[len(a):len(b)] = row[len(a):len(b)]\n"
            "        out.write(json.dumps({\"input_ids\": row, \"labels\": labels}) + \"\\n\")\n"
            "END",
            chat->source, folder);
}

static zinc_status write_text(const zn_chat *chat, const zn_message *messages, int n,
                              bool generation_prompt, zn_chat_text *out)
{
    if (!chat->family)
        return refuse(chat);
    return zn_chat_write(chat->family, chat->bos, chat->eos, messages, n, generation_prompt, out);
}

zinc_status zn_chat_render(const zn_chat *chat, const zn_message *messages, int n,
                           bool generation_prompt, zn_buf *out)
{
    zinc_status status;
    zn_chat_text text = {0};
    ZN_TRY_GOTO(write_text(chat, messages, n, generation_prompt, &text));
    ZN_TRY_GOTO(zn_buf_append(out, text.text.data ? text.text.data : "", text.text.n));
fail:
    zn_chat_text_fini(&text);
    return status;
}

/* ---- ids and labels ---- */

/* Whether a piece is an added token that is found in the raw text whatever stands around it: then
 * a text may be cut in front of it, and the parts have the ids of the whole. */
static bool cuts(const zn_tokenizer *tokenizer, const char *text, size_t n)
{
    for (int i = 0; i < tokenizer->n_added; i++) {
        const zn_added_token *t = &tokenizer->added[i];
        if (t->n_text == n && memcmp(t->text, text, n) == 0)
            return !t->lstrip && !t->single_word && !t->normalized;
    }
    return false;
}

/* How many ids the prefix of n bytes has in common with the whole part: the ids before the one that
 * lies across the cut. */
static zinc_status common_ids(const zn_tokenizer *tokenizer, const char *text, size_t n,
                              const int32_t *whole, int64_t n_whole, int64_t *out)
{
    zn_ids ids = {0};
    const zinc_status status = zn_tokenizer_encode(tokenizer, text, n, false, &ids);
    int64_t k = 0;
    while (status == ZINC_OK && k < ids.n && k < n_whole && ids.ids[k] == whole[k])
        k++;
    zn_ids_fini(&ids);
    *out = k;
    return status;
}

/* Encode pieces [first, last), which hold together, and label their ids. */
static zinc_status encode_part(const zn_tokenizer *tokenizer, const zn_chat_text *text, int first,
                               int last, zn_ids *ids, zn_ids *labels)
{
    const int64_t at = ids->n;
    const size_t start = text->pieces[first].start;
    const zn_chat_piece *end = &text->pieces[last - 1];
    const char *p = text->text.data + start;
    ZN_TRY(zn_tokenizer_encode(tokenizer, p, end->start + end->n - start, false, ids));
    if (!labels)
        return ZINC_OK;
    int64_t done = at;
    for (int i = first; i < last; i++) {
        int64_t until = ids->n - at;
        if (i + 1 < last && text->pieces[i + 1].answer == text->pieces[i].answer)
            continue;
        if (i + 1 < last)
            ZN_TRY(common_ids(tokenizer, p, text->pieces[i + 1].start - start, ids->ids + at,
                              ids->n - at, &until));
        for (; done < at + until; done++)
            ZN_TRY(zn_ids_push(labels, text->pieces[i].answer ? ids->ids[done] : ZN_IGNORED_LABEL));
    }
    return ZINC_OK;
}

zinc_status zn_chat_encode(const zn_chat *chat, const zn_tokenizer *tokenizer,
                           const zn_message *messages, int n, bool generation_prompt, zn_ids *ids,
                           zn_ids *labels)
{
    zinc_status status;
    zn_chat_text text = {0};
    ZN_TRY_GOTO(write_text(chat, messages, n, generation_prompt, &text));
    for (int first = 0; first < text.n;) {
        int last = first + 1;
        while (last < text.n &&
               !cuts(tokenizer, text.text.data + text.pieces[last].start, text.pieces[last].n))
            last++;
        ZN_TRY_GOTO(encode_part(tokenizer, &text, first, last, ids, labels));
        first = last;
    }
fail:
    zn_chat_text_fini(&text);
    return status;
}
