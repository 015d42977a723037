/* SPDX-License-Identifier: Apache-2.0 */
/* Every case of tests/data/tokenizer: what Hugging Face tokenizers 0.23.3 gives, id for id. */
#include "zn_test.h"

#include "base/json.h"
#include "data/tokenizer.h"

static void check_ids(const char *name, size_t i, const json_t *want, const zn_ids *got)
{
    if (json_array_size(want) != (size_t)got->n)
        fail_msg("%s case %zu: %lld ids, want %zu", name, i, (long long)got->n,
                 json_array_size(want));
    for (size_t k = 0; k < (size_t)got->n; k++)
        if (json_integer_value(json_array_get(want, k)) != got->ids[k])
            fail_msg("%s case %zu: id %zu is %d, want %lld", name, i, k, got->ids[k],
                     (long long)json_integer_value(json_array_get(want, k)));
}

static void check_encode(const zn_tokenizer *tokenizer, const char *name, size_t i,
                         const json_t *text, bool special, const json_t *want)
{
    zn_ids ids = {0};
    assert_ok(zn_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text),
                                  special, &ids));
    check_ids(name, i, want, &ids);
    zn_ids_fini(&ids);
}

static void check_decode(const zn_tokenizer *tokenizer, const char *name, size_t i,
                         const json_t *row, bool skip, const json_t *want)
{
    zn_ids ids = {0};
    zn_buf text = {0};
    for (size_t k = 0; k < json_array_size(row); k++)
        assert_ok(zn_ids_push(&ids, (int32_t)json_integer_value(json_array_get(row, k))));
    assert_ok(zn_tokenizer_decode(tokenizer, ids.ids, ids.n, skip, &text));
    if (text.n != json_string_length(want) ||
        memcmp(text.data, json_string_value(want), text.n) != 0)
        fail_msg("%s decode case %zu (skip %d): \"%s\", want \"%s\"", name, i, skip, text.data,
                 json_string_value(want));
    zn_ids_fini(&ids);
    zn_buf_fini(&text);
}

static void check_all(const char *name)
{
    char path[512];
    zn_tokenizer *tokenizer = NULL;
    json_t *cases = NULL, *item, *value;
    const char *key;
    size_t i;
    snprintf(path, sizeof path, "%s/tokenizer/%s/tokenizer.json", ZN_TEST_DATA, name);
    assert_ok(zn_tokenizer_load(path, &tokenizer));
    snprintf(path, sizeof path, "%s/tokenizer/%s/cases.json", ZN_TEST_DATA, name);
    assert_ok(zn_json_load(path, &cases));
    assert_int_equal(zn_tokenizer_vocab_size(tokenizer),
                     json_integer_value(json_object_get(cases, "vocab_size")));
    json_object_foreach(json_object_get(cases, "special"), key, value)
        assert_int_equal(zn_tokenizer_id(tokenizer, key), json_integer_value(value));
    assert_true(json_array_size(json_object_get(cases, "encode")) > 200);
    json_array_foreach(json_object_get(cases, "encode"), i, item)
    {
        const json_t *ids = json_object_get(item, "ids");
        const json_t *plain = json_object_get(item, "ids_no_special");
        const json_t *text = json_object_get(item, "text");
        check_encode(tokenizer, name, i, text, true, ids);
        check_encode(tokenizer, name, i, text, false, plain);
        check_decode(tokenizer, name, i, plain, false, json_object_get(item, "decoded"));
        check_decode(tokenizer, name, i, ids, true, json_object_get(item, "decoded_skip_special"));
    }
    json_array_foreach(json_object_get(cases, "decode"), i, item)
    {
        const json_t *ids = json_object_get(item, "ids");
        check_decode(tokenizer, name, i, ids, false, json_object_get(item, "decoded"));
        check_decode(tokenizer, name, i, ids, true, json_object_get(item, "decoded_skip_special"));
    }
    json_decref(cases);
    zn_tokenizer_destroy(tokenizer);
}

static void gpt2_encodes_and_decodes_as_the_peer(void **state)
{
    (void)state;
    check_all("gpt2");
}

static void llama2_encodes_and_decodes_as_the_peer(void **state)
{
    (void)state;
    check_all("llama2");
}

static void llama3_encodes_and_decodes_as_the_peer(void **state)
{
    (void)state;
    check_all("llama3");
}

static void qwen2_encodes_and_decodes_as_the_peer(void **state)
{
    (void)state;
    check_all("qwen2");
}

static void smollm2_encodes_and_decodes_as_the_peer(void **state)
{
    (void)state;
    check_all("smollm2");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gpt2_encodes_and_decodes_as_the_peer),
    cmocka_unit_test(llama2_encodes_and_decodes_as_the_peer),
    cmocka_unit_test(llama3_encodes_and_decodes_as_the_peer),
    cmocka_unit_test(qwen2_encodes_and_decodes_as_the_peer),
    cmocka_unit_test(smollm2_encodes_and_decodes_as_the_peer),
};

ZN_TEST_MAIN(tests)
