/* SPDX-License-Identifier: Apache-2.0 */
/* chat_families.c — the chat templates Zinc knows, and what they write. */
#include <string.h>

#include "base/hash.h"
#include "data/chat_internal.h"
#include "data/tokenizer_internal.h"

#define CHATML                                                                                     \
    .kind = ZN_CHAT_TURNS, .open = "<|im_start|>", .middle = "\n", .close = "<|im_end|>",          \
    .after = "\n", .assistant = "assistant"
#define LLAMA3                                                                                     \
    .kind = ZN_CHAT_TURNS, .bos = true, .trim = true, .open = "<|start_header_id|>",               \
    .header_end = "<|end_header_id|>", .middle = "\n\n", .close = "<|eot_id|>",                    \
    .assistant = "assistant"

static const zn_chat_family chatml = {.name = "ChatML", CHATML};
static const zn_chat_family smollm2 = {
    .name = "SmolLM2",
    CHATML,
    .default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
};
static const zn_chat_family qwen1_5 = {
    .name = "Qwen 1.5",
    CHATML,
    .default_system = "You are a helpful assistant",
};
static const zn_chat_family qwen2 = {
    .name = "Qwen 2",
    CHATML,
    .default_system = "You are a helpful assistant.",
};
static const zn_chat_family qwen2_5 = {
    .name = "Qwen 2.5",
    CHATML,
    .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
};
static const zn_chat_family llama3 = {.name = "Llama 3", LLAMA3};
static const zn_chat_family llama3_prompted = {.name = "Llama 3", LLAMA3, .always_prompt = true};
/* The date is the template's own constant, not today's. */
static const zn_chat_family llama3_1 = {
    .name = "Llama 3.1",
    LLAMA3,
    .system_preamble = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
};
static const zn_chat_family gemma = {
    .name = "Gemma",
    .kind = ZN_CHAT_TURNS,
    .bos = true,
    .trim = true,
    .alternate = true,
    .no_system = true,
    .open = "<start_of_turn>",
    .middle = "\n",
    .close = "<end_of_turn>",
    .after = "\n",
    .assistant = "model",
};
static const zn_chat_family llama2 = {
    .name = "Llama 2",
    .kind = ZN_CHAT_INST,
    .bos = true,
    .bos_each = true,
    .trim = true,
    .alternate = true,
    .user_open = "[INST] ",
    .user_close = " [/INST]",
    .answer_open = " ",
    .answer_close = " ",
    .system_open = "<<SYS>>\n",
    .system_close = "\n<</SYS>>\n\n",
};
#define MISTRAL                                                                                    \
    .name = "Mistral", .kind = ZN_CHAT_INST, .bos = true, .alternate = true,                       \
    .user_close = " [/INST]"
static const zn_chat_family mistral_v1 = {
    MISTRAL,
    .no_system = true,
    .user_open = "[INST] ",
    .after_eos = " ",
};
static const zn_chat_family mistral_v2 = {MISTRAL, .no_system = true, .user_open = "[INST] "};
static const zn_chat_family mistral_spaced = {
    MISTRAL,
    .user_open = " [INST] ",
    .answer_open = " ",
    .system_close = "\n\n",
};

/* Length and FNV-1a of the published texts, without a newline at the end. Where a text has line
 * breaks inside string literals there are two rows: with the break itself, and with \n. */
static const struct {
    size_t n;
    uint64_t hash;
    const zn_chat_family *family;
} known[] = {
    {196, 0x88BF4138D5C826F0u, &chatml},          {199, 0xA41D6BAE9B9141BCu, &chatml},
    {291, 0x773D13E188AFC917u, &chatml},          {294, 0x17FDE6ECDA9C7C01u, &chatml},
    {368, 0x45EC583D4D25BC3Au, &smollm2},         {373, 0x09B5156A5CF6ABFCu, &smollm2},
    {328, 0x8A87094E0E1E24C5u, &qwen2},           {333, 0x75E88977B2787CD7u, &qwen2},
    {327, 0xC867DA37C989D41Fu, &qwen1_5},         {332, 0xAF82EB57E8662E59u, &qwen1_5},
    {2426, 0x16BC91FC7006A16Du, &qwen2},          {2506, 0xE642CE246D7F2E3Du, &qwen2_5},
    {815, 0xF344EECF1BD3A427u, &llama2},          {814, 0x3E8B632DF301BF05u, &llama2},
    {389, 0x0E60067A5537498Eu, &llama3},          {393, 0x32844FD43EAB01D2u, &llama3},
    {348, 0x74891E390E614AE2u, &llama3_prompted}, {352, 0x60B6F54CAAFC7E66u, &llama3_prompted},
    {4613, 0xCC0368E1FFB6B958u, &llama3_1},       {477, 0xC730ACC029CE6EE0u, &mistral_v1},
    {470, 0x8C734B90B4F8D84Du, &mistral_v2},      {471, 0x44349DC7FE75377Bu, &mistral_v2},
    {1057, 0x46EAC0BF5C765C47u, &mistral_spaced}, {591, 0x5C10EE65212D93B3u, &gemma},
    {594, 0x70F3CDED3FB90051u, &gemma},
};

const zn_chat_family *zn_chat_family_of_hash(size_t n, uint64_t hash)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].n == n && known[i].hash == hash)
            return known[i].family;
    return NULL;
}

const zn_chat_family *zn_chat_family_of(const char *text, size_t n)
{
    if (n > 0 && text[n - 1] == '\n') /* Jinja drops it */
        n--;
    return zn_chat_family_of_hash(n, zn_hash_bytes(0xcbf29ce484222325u, text, n));
}

/* ---- writing ---- */

void zn_chat_text_fini(zn_chat_text *text)
{
    zn_buf_fini(&text->text);
    zn_free(text->pieces);
    memset(text, 0, sizeof *text);
}

static zinc_status put_n(zn_chat_text *out, const char *text, size_t n, bool answer)
{
    if (n == 0)
        return ZINC_OK;
    if (out->n == out->capacity) {
        const int capacity = out->capacity ? 2 * out->capacity : 32;
        ZN_TRY(zn_realloc_array(&out->pieces, (size_t)capacity, sizeof *out->pieces,
                                "a conversation"));
        out->capacity = capacity;
    }
    out->pieces[out->n++] = (zn_chat_piece){.start = out->text.n, .n = n, .answer = answer};
    return zn_buf_append(&out->text, text, n);
}

static zinc_status put(zn_chat_text *out, const char *text, bool answer)
{
    return text ? put_n(out, text, strlen(text), answer) : ZINC_OK;
}

/* What Python's str.strip takes away: Unicode white space and four separators of ASCII. */
static bool is_strippable(int32_t code)
{
    return zn_char_is_space(code) || (code >= 0x1C && code <= 0x1F);
}

static void strip(const char **text, size_t *n)
{
    size_t len, end = 0, i = 0;
    const char *p = *text;
    while (i < *n && is_strippable(zn_utf8_next(p + i, *n - i, &len)))
        i += len;
    const size_t start = i;
    for (; i < *n; i += len)
        if (!is_strippable(zn_utf8_next(p + i, *n - i, &len)))
            end = i + len;
    *text = p + start;
    *n = end > start ? end - start : 0;
}

static zinc_status put_content(const zn_chat_family *f, const zn_message *message, bool answer,
                               zn_chat_text *out)
{
    const char *text = message->content;
    size_t n = message->n_content;
    if (f->trim)
        strip(&text, &n);
    return put_n(out, text, n, answer);
}

static bool is_role(const zn_message *message, const char *role)
{
    return strcmp(message->role, role) == 0;
}

static zinc_status check_roles(const zn_chat_family *f, const zn_message *messages, int n)
{
    if (n == 0)
        ZN_FAIL(ZINC_E_FORMAT, "\"messages\" is empty");
    const int first = is_role(&messages[0], "system");
    if (first && f->no_system)
        ZN_FAIL(ZINC_E_FORMAT,
                "message 1 has the role \"system\", which the %s chat template has no place for; "
                "put its text into the first user message",
                f->name);
    for (int i = 0; i < n; i++) {
        const char *role = messages[i].role;
        if (!is_role(&messages[i], "system") && !is_role(&messages[i], "user") &&
            !is_role(&messages[i], "assistant"))
            ZN_FAIL(ZINC_E_FORMAT,
                    "message %d has the role \"%s\"; system, user and assistant are known", i + 1,
                    role);
        const char *turn = (i - first) % 2 == 0 ? "user" : "assistant";
        if (f->alternate && i >= first && !is_role(&messages[i], turn))
            ZN_FAIL(ZINC_E_FORMAT,
                    "message %d has the role \"%s\" where the %s chat template wants \"%s\": user "
                    "and assistant take turns, and user begins",
                    i + 1, role, f->name, turn);
    }
    if (f->alternate && n == first)
        ZN_FAIL(ZINC_E_FORMAT,
                "a system message stands alone; the %s chat template writes it into "
                "the first user message",
                f->name);
    return ZINC_OK;
}

static zinc_status put_header(const zn_chat_family *f, const char *role, zn_chat_text *out)
{
    ZN_TRY(put(out, f->open, false));
    ZN_TRY(put(out, role, false));
    ZN_TRY(put(out, f->header_end, false));
    return put(out, f->middle, false);
}

static zinc_status put_turn(const zn_chat_family *f, const char *preamble,
                            const zn_message *message, zn_chat_text *out)
{
    const bool answer = is_role(message, "assistant");
    ZN_TRY(put_header(f, answer ? f->assistant : message->role, out));
    ZN_TRY(put(out, preamble, false));
    ZN_TRY(put_content(f, message, answer, out));
    ZN_TRY(put(out, f->close, answer));
    return put(out, f->after, false);
}

static zinc_status write_turns(const zn_chat_family *f, const char *bos, const zn_message *messages,
                               int n, bool generation_prompt, zn_chat_text *out)
{
    const char *system = f->default_system ? f->default_system : f->system_preamble ? "" : NULL;
    if (f->bos)
        ZN_TRY(put(out, bos, false));
    if (system && !is_role(&messages[0], "system")) {
        const zn_message first = {"system", system, strlen(system)};
        ZN_TRY(put_turn(f, f->system_preamble, &first, out));
    }
    for (int i = 0; i < n; i++) {
        const bool first_system = i == 0 && is_role(&messages[0], "system");
        ZN_TRY(put_turn(f, first_system ? f->system_preamble : NULL, &messages[i], out));
    }
    return generation_prompt || f->always_prompt ? put_header(f, f->assistant, out) : ZINC_OK;
}

/* The user's text, with the system message in it where it is the first one. */
static zinc_status put_user(const zn_chat_family *f, const zn_message *system,
                            const zn_message *user, zn_chat_text *out)
{
    zinc_status status = ZINC_OK;
    zn_buf text = {0};
    if (!system)
        return put_content(f, user, false, out);
    if (f->system_open)
        ZN_TRY_GOTO(zn_buf_puts(&text, f->system_open));
    ZN_TRY_GOTO(zn_buf_append(&text, system->content, system->n_content));
    ZN_TRY_GOTO(zn_buf_puts(&text, f->system_close));
    ZN_TRY_GOTO(zn_buf_append(&text, user->content, user->n_content));
    const zn_message whole = {"user", text.data, text.n};
    ZN_TRY_GOTO(put_content(f, &whole, false, out));
fail:
    zn_buf_fini(&text);
    return status;
}

static zinc_status write_inst(const zn_chat_family *f, const char *bos, const char *eos,
                              const zn_message *messages, int n, zn_chat_text *out)
{
    const zn_message *system = is_role(&messages[0], "system") ? &messages[0] : NULL;
    const int first = system ? 1 : 0;
    for (int i = first; i < n; i++) {
        if (i == first || (f->bos_each && is_role(&messages[i], "user")))
            ZN_TRY(put(out, bos, false));
        if (is_role(&messages[i], "user")) {
            ZN_TRY(put(out, f->user_open, false));
            ZN_TRY(put_user(f, i == first ? system : NULL, &messages[i], out));
            ZN_TRY(put(out, f->user_close, false));
        } else {
            ZN_TRY(put(out, f->answer_open, true));
            ZN_TRY(put_content(f, &messages[i], true, out));
            ZN_TRY(put(out, f->answer_close, true));
            ZN_TRY(put(out, eos, true));
            ZN_TRY(put(out, f->after_eos, false));
        }
    }
    return ZINC_OK;
}

zinc_status zn_chat_write(const zn_chat_family *family, const char *bos, const char *eos,
                          const zn_message *messages, int n, bool generation_prompt,
                          zn_chat_text *out)
{
    if ((family->bos && !bos) || (family->kind == ZN_CHAT_INST && !eos))
        ZN_FAIL(ZINC_E_FORMAT,
                "the %s chat template needs \"%s\", which tokenizer_config.json does not have",
                family->name, family->bos && !bos ? "bos_token" : "eos_token");
    ZN_TRY(check_roles(family, messages, n));
    return family->kind == ZN_CHAT_TURNS
               ? write_turns(family, bos, messages, n, generation_prompt, out)
               : write_inst(family, bos, eos, messages, n, out);
}
