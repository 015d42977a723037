/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: what transformers 5.24 writes and encodes (tests/data/chat/cases.json), how a
 * template is found, and what is refused. */
#include "zn_test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/json.h"
#include "data/chat_internal.h"

#define MAX_MESSAGES 8

typedef struct fixture {
    char dir[64], path[128]; /* folder; a tokenizer.json that need not be there */
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    strcpy(f->dir, "/tmp/zn_chat_XXXXXX");
    if (!mkdtemp(f->dir))
        return 1;
    snprintf(f->path, sizeof f->path, "%s/tokenizer.json", f->dir);
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"tokenizer_config.json", "chat_template.jinja"};
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", f->dir, names[i]);
        unlink(path);
    }
    rmdir(f->dir);
    free(f);
    return 0;
}

static void put(const fixture *f, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    assert_ok(zn_fs_write_atomic(path, text, strlen(text)));
}

static void put_config(const fixture *f, const char *template_, const char *bos, const char *eos)
{
    json_t *config = json_object();
    char *text;
    if (template_)
        json_object_set_new(config, "chat_template", json_string(template_));
    if (bos)
        json_object_set_new(config, "bos_token", json_string(bos));
    if (eos)
        json_object_set_new(config, "eos_token",
                            json_pack("{s:s,s:b}", "content", eos, "lstrip", 0));
    text = json_dumps(config, 0);
    put(f, "tokenizer_config.json", text);
    free(text);
    json_decref(config);
}

static int read_messages(const json_t *row, zn_message *out)
{
    const json_t *list = json_object_get(row, "messages");
    const int n = (int)json_array_size(list);
    assert_true(n <= MAX_MESSAGES);
    for (int i = 0; i < n; i++) {
        const json_t *message = json_array_get(list, (size_t)i);
        const json_t *content = json_object_get(message, "content");
        out[i] = (zn_message){json_string_value(json_object_get(message, "role")),
                              json_string_value(content), json_string_length(content)};
    }
    return n;
}

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* ---- what transformers gives ---- */

static void check_text(const json_t *item, const json_t *row, const char *key, const zn_buf *got)
{
    const json_t *want = json_object_get(row, key);
    if (got->n != json_string_length(want) ||
        memcmp(got->data, json_string_value(want), got->n) != 0)
        fail_msg("%s %s: \"%s\", want \"%s\"", text_of(item, "family"), key, got->data,
                 json_string_value(want));
}

static void check_written(const json_t *item, const json_t *row, const zn_chat_family *family)
{
    zn_message messages[MAX_MESSAGES];
    const int n = read_messages(row, messages);
    const char *bos = text_of(item, "bos"), *eos = text_of(item, "eos");
    for (int prompt = 0; prompt < 2; prompt++) {
        zn_chat_text text = {0};
        const char *key = prompt ? "prompt" : "text";
        const zinc_status status = zn_chat_write(family, bos, eos, messages, n, prompt == 1, &text);
        if (json_object_get(row, "error")) {
            assert_int_equal(status, ZINC_E_FORMAT);
        } else if (json_object_get(row, key)) {
            assert_ok(status);
            check_text(item, row, key, &text.text);
        }
        zn_chat_text_fini(&text);
    }
}

static void every_family_writes_what_transformers_writes(void **state)
{
    json_t *cases;
    size_t i, k;
    const json_t *item, *row;
    int n_rows = 0;
    (void)state;
    assert_ok(zn_json_load(ZN_TEST_DATA "/chat/cases.json", &cases));
    json_array_foreach(cases, i, item)
    {
        const uint64_t hash = strtoull(text_of(item, "hash"), NULL, 16);
        const size_t n = (size_t)json_integer_value(json_object_get(item, "n"));
        const zn_chat_family *family = zn_chat_family_of_hash(n, hash);
        assert_non_null(family);
        const json_t *rows = json_object_get(item, "rows");
        json_array_foreach(rows, k, row)
        {
            check_written(item, row, family);
            n_rows++;
        }
    }
    assert_true(n_rows > 120);
    json_decref(cases);
}

static void check_encoded(const json_t *item, const json_t *row, const zn_chat *chat,
                          const zn_tokenizer *tokenizer)
{
    zn_message messages[MAX_MESSAGES];
    const int n = read_messages(row, messages);
    zn_ids ids = {0}, labels = {0};
    const json_t *want = json_object_get(row, "ids"), *answer = json_object_get(row, "answer");
    assert_ok(zn_chat_encode(chat, tokenizer, messages, n, false, &ids, &labels));
    if ((size_t)ids.n != json_array_size(want) || labels.n != ids.n)
        fail_msg("%s: %lld ids, %lld labels, want %zu", text_of(item, "family"), (long long)ids.n,
                 (long long)labels.n, json_array_size(want));
    for (size_t i = 0; i < (size_t)ids.n; i++) {
        const int32_t id = (int32_t)json_integer_value(json_array_get(want, i));
        const bool is_answer = json_integer_value(json_array_get(answer, i)) == 1;
        if (ids.ids[i] != id || labels.ids[i] != (is_answer ? id : -100))
            fail_msg("%s \"%s\": token %zu is %d with label %d, want %d, %s",
                     text_of(item, "family"), text_of(row, "text"), i, ids.ids[i], labels.ids[i],
                     id, is_answer ? "an answer" : "no answer");
    }
    zn_ids_fini(&ids);
    zn_ids_fini(&labels);
}

static void ids_and_answers_are_those_of_transformers(void **state)
{
    const fixture *f = *state;
    json_t *cases;
    size_t i, k;
    const json_t *item, *row;
    assert_ok(zn_json_load(ZN_TEST_DATA "/chat/cases.json", &cases));
    json_array_foreach(cases, i, item)
    {
        char path[512];
        zn_tokenizer *tokenizer;
        zn_chat *chat;
        if (!json_object_get(item, "template"))
            continue;
        put_config(f, text_of(item, "template"), text_of(item, "bos"), text_of(item, "eos"));
        snprintf(path, sizeof path, "%s/tokenizer/%s/tokenizer.json", ZN_TEST_DATA,
                 text_of(item, "tokenizer"));
        assert_ok(zn_tokenizer_load(path, &tokenizer));
        assert_ok(zn_chat_open(f->path, &chat));
        const json_t *rows = json_object_get(item, "rows");
        json_array_foreach(rows, k, row) if (json_object_get(row, "ids"))
            check_encoded(item, row, chat, tokenizer);
        zn_chat_destroy(chat);
        zn_tokenizer_destroy(tokenizer);
    }
    json_decref(cases);
}

/* ---- finding the template ---- */

#define CHATML_LOOP                                                                                \
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] " \
    "+ '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "                         \
    "'<|im_start|>assistant\n' }}{% endif %}"

static const zn_message question = {"user", "Hi", 2};

static void a_template_file_wins_and_its_last_newline_does_not_count(void **state)
{
    const fixture *f = *state;
    zn_chat *chat;
    zn_buf text = {0};
    put_config(f, "{{ messages }}", NULL, NULL);
    put(f, "chat_template.jinja", CHATML_LOOP "\n");
    assert_ok(zn_chat_open(f->path, &chat));
    assert_ok(zn_chat_render(chat, &question, 1, true, &text));
    assert_string_equal(text.data, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert_string_equal(zn_chat_end(chat), "<|im_end|>");
    zn_buf_fini(&text);
    zn_chat_destroy(chat);
}

static void of_a_list_of_templates_the_default_is_used(void **state)
{
    const fixture *f = *state;
    zn_chat *chat;
    zn_buf text = {0};
    json_t *config = json_pack("{s:[{s:s,s:s},{s:s,s:s}]}", "chat_template", "name", "tool_use",
                               "template", "x", "name", "default", "template", CHATML_LOOP);
    char *dump = json_dumps(config, 0);
    put(f, "tokenizer_config.json", dump);
    assert_ok(zn_chat_open(f->path, &chat));
    assert_ok(zn_chat_render(chat, &question, 1, false, &text));
    assert_string_equal(text.data, "<|im_start|>user\nHi<|im_end|>\n");
    zn_buf_fini(&text);
    zn_chat_destroy(chat);
    free(dump);
    json_decref(config);
}

static void an_unknown_template_shows_the_script_that_writes_the_rows(void **state)
{
    const fixture *f = *state;
    zn_chat *chat;
    zn_buf text = {0};
    put_config(f, CHATML_LOOP " ", NULL, NULL);
    assert_ok(zn_chat_open(f->path, &chat));
    assert_fails(zn_chat_render(chat, &question, 1, false, &text), ZINC_E_UNSUPPORTED,
                 "AutoTokenizer.from_pretrained");
    assert_non_null(strstr(zinc_last_error(), f->dir));
    assert_null(zn_chat_end(chat));
    zn_chat_destroy(chat);
}

/* transformers writes int(1e30) where a tokenizer names no length. */
static void a_length_without_limit_is_read(void **state)
{
    const fixture *f = *state;
    zn_chat *chat;
    zn_buf text = {0};
    put(f, "tokenizer_config.json",
        "{\"model_max_length\": 1000000000000000019884624838656, \"bos_token\": \"<s>\"}");
    put(f, "chat_template.jinja", CHATML_LOOP);
    assert_ok(zn_chat_open(f->path, &chat));
    assert_ok(zn_chat_render(chat, &question, 1, false, &text));
    assert_string_equal(text.data, "<|im_start|>user\nHi<|im_end|>\n");
    zn_buf_fini(&text);
    zn_chat_destroy(chat);
}

static void no_template_says_where_one_was_looked_for(void **state)
{
    const fixture *f = *state;
    zn_chat *chat;
    zn_buf text = {0};
    assert_ok(zn_chat_open(f->path, &chat));
    assert_fails(zn_chat_render(chat, &question, 1, false, &text), ZINC_E_UNSUPPORTED,
                 "no chat_template.jinja");
    zn_chat_destroy(chat);
}

/* ---- roles ---- */

static const zn_chat_family *gemma(void)
{
    return zn_chat_family_of_hash(591, 0x5C10EE65212D93B3u);
}

static void check_refused(const zn_message *messages, int n, const char *bos, const char *part)
{
    zn_chat_text text = {0};
    assert_fails(zn_chat_write(gemma(), bos, NULL, messages, n, false, &text), ZINC_E_FORMAT, part);
    zn_chat_text_fini(&text);
}

static void wrong_roles_are_named_with_their_place(void **state)
{
    const zn_message twice[] = {question, question}, first[] = {{"assistant", "Hi", 2}};
    const zn_message system[] = {{"system", "Hi", 2}, question}, tool[] = {{"tool", "Hi", 2}};
    (void)state;
    check_refused(twice, 2, "<bos>", "message 2 has the role \"user\" where");
    check_refused(first, 1, "<bos>", "message 1 has the role \"assistant\" where");
    check_refused(system, 2, "<bos>", "has no place for");
    check_refused(tool, 1, "<bos>", "message 1 has the role \"tool\"");
    check_refused(twice, 0, "<bos>", "\"messages\" is empty");
    check_refused(&question, 1, NULL, "bos_token");
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_family_writes_what_transformers_writes),
    WITH_FOLDER(ids_and_answers_are_those_of_transformers),
    WITH_FOLDER(a_template_file_wins_and_its_last_newline_does_not_count),
    WITH_FOLDER(of_a_list_of_templates_the_default_is_used),
    WITH_FOLDER(an_unknown_template_shows_the_script_that_writes_the_rows),
    WITH_FOLDER(a_length_without_limit_is_read),
    WITH_FOLDER(no_template_says_where_one_was_looked_for),
    cmocka_unit_test(wrong_roles_are_named_with_their_place),
};

ZN_TEST_MAIN(tests)
