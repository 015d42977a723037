/* SPDX-License-Identifier: Apache-2.0 */
/* Broken tokenizer.json files: an error with a message or a tokenizer that works, never a crash. */
#include "tokenizer_maker.h"

#include "base/hash.h"

/* Load; if that works, encode and decode something. */
static void poke(const char *json, size_t n, int *n_loaded)
{
    static const char text[] = "Hello  w\xC3\xB6rld 123 <|endoftext|>\n\n\xF0\x9F\x99\x82 <s> end";
    zn_tokenizer *tokenizer = NULL;
    zn_ids ids = {0};
    zn_buf back = {0};
    if (load_text(json, n, &tokenizer) != ZINC_OK) {
        assert_true(strlen(zinc_last_error()) > 10);
        assert_null(tokenizer);
        return;
    }
    ++*n_loaded;
    if (zn_tokenizer_encode(tokenizer, text, sizeof text - 1, true, &ids) == ZINC_OK) {
        for (int64_t i = 0; i < ids.n; i++)
            assert_in_range(ids.ids[i], 0, zn_tokenizer_vocab_size(tokenizer) - 1);
        assert_ok(zn_tokenizer_decode(tokenizer, ids.ids, ids.n, true, &back));
    }
    zn_ids_fini(&ids);
    zn_buf_fini(&back);
    zn_tokenizer_destroy(tokenizer);
}

static const char *const names[] = {"gpt2", "llama2", "llama3", "qwen2"};

static void read_file(const char *name, zn_buf *out)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizer/%s/tokenizer.json", ZN_TEST_DATA, name);
    assert_ok(zn_fs_read(path, 0, out));
}

static void a_truncated_file_is_an_error(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        zn_buf json = {0};
        int n_loaded = 0;
        read_file(names[k], &json);
        for (size_t n = 0; n + 2 < json.n; n += 1 + json.n / 150)
            poke(json.data, n, &n_loaded);
        assert_int_equal(n_loaded, 0);
        zn_buf_fini(&json);
    }
}

/* Bytes are changed where the components are described (the vocabulary is most of the file). */
static void changed_bytes_give_an_error_or_a_working_tokenizer(void **state)
{
    (void)state;
    static const char bytes[] = "\"{}[]:,0159aeZ-.\\ \x01\xFF";
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        zn_buf json = {0};
        int n_loaded = 0;
        read_file(names[k], &json);
        for (uint64_t i = 0; i < 400; i++) {
            const uint64_t h = zn_hash_fold(k, i);
            const size_t range = i % 2 ? json.n : json.n < 2500 ? json.n : 2500;
            const size_t at = (size_t)(h % range);
            const char before = json.data[at];
            json.data[at] = bytes[(h >> 40) % (sizeof bytes - 1)];
            poke(json.data, json.n, &n_loaded);
            json.data[at] = before;
        }
        assert_true(n_loaded > 0);
        zn_buf_fini(&json);
    }
}

static void odd_values_are_refused_with_their_name(void **state)
{
    (void)state;
    static const struct {
        const char *json, *part;
    } rows[] = {
        {"[]", "JSON object"},
        {"{}", "model"},
        {"{\"model\":{\"vocab\":{},\"merges\":[]}}", "empty"},
        {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "\"a\""},
        {"{\"model\":{\"vocab\":{\"a\":2000000000},\"merges\":[]}}", "\"a\""},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "same id"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "merge 0"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",5]]}}", "merge 0"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "\"b\""},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}", "unk_token"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"fuse_unk\":3}}", "fuse_unk"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":1}]}",
         "added_tokens[0]"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":-4,"
         "\"content\":\"x\"}]}",
         "added_tokens[0]"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"post_processor\":{\"type\":"
         "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}}",
         "\"x\""},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"post_processor\":{\"type\":"
         "\"RobertaProcessing\",\"cls\":[\"a\",7],\"sep\":[\"a\",0]}}",
         "id 7"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"normalizer\":{\"type\":\"Sequence\"}}",
         "normalizers"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"normalizer\":5}", "normalizer"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"decoder\":{\"type\":\"Metaspace\","
         "\"replacement\":\"ab\"}}",
         "one character"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\","
         "\"pattern\":{\"String\":\"\"},\"behavior\":\"Isolated\"}}",
         "empty pattern"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        zn_tokenizer *tokenizer = NULL;
        if (load_text(rows[i].json, strlen(rows[i].json), &tokenizer) == ZINC_OK)
            fail_msg("%s loads", rows[i].json);
        if (!strstr(zinc_last_error(), rows[i].part))
            fail_msg("%s: \"%s\" does not name %s", rows[i].json, zinc_last_error(), rows[i].part);
    }
}

static void a_deep_or_long_sequence_is_refused(void **state)
{
    (void)state;
    zn_buf json = {0};
    zn_tokenizer *tokenizer = NULL;
    assert_ok(zn_buf_puts(&json, "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},"
                                 "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["));
    for (int i = 0; i < 100; i++)
        assert_ok(zn_buf_puts(&json, i ? ",{\"type\":\"NFC\"}" : "{\"type\":\"NFC\"}"));
    assert_ok(zn_buf_puts(&json, "]}}"));
    assert_fails(load_text(json.data, json.n, &tokenizer), ZINC_E_UNSUPPORTED, "components");
    zn_buf_fini(&json);
}

/* Each allocation in turn fails: the error is E_NOMEM and nothing is lost. */
static void loading_survives_every_failing_allocation(void **state)
{
    (void)state;
    zn_tokenizer *tokenizer = NULL;
    int64_t n = 0;
    for (; n < 3000 && !tokenizer; n++) {
        zn_mem_fail_after(n);
        const zinc_status status =
            zn_tokenizer_load(ZN_TEST_DATA "/tokenizer/qwen2/tokenizer.json", &tokenizer);
        zn_mem_fail_after(-1);
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
    }
    assert_non_null(tokenizer);
    assert_true(n > 20);
    zn_tokenizer_destroy(tokenizer);
}

static void encoding_survives_every_failing_allocation(void **state)
{
    (void)state;
    static const char text[] = "Some words, e\xCC\x81t un <|im_start|> peu plus.";
    zn_tokenizer *tokenizer = NULL;
    zn_ids want = {0}, got = {0};
    bool done = false;
    assert_ok(zn_tokenizer_load(ZN_TEST_DATA "/tokenizer/qwen2/tokenizer.json", &tokenizer));
    for (int64_t n = 0; n < 300 && !done; n++) {
        zn_mem_fail_after(n);
        const zinc_status status =
            zn_tokenizer_encode(tokenizer, text, sizeof text - 1, true, &got);
        zn_mem_fail_after(-1);
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
        done = status == ZINC_OK;
        assert_true(done || got.n == 0);
    }
    assert_true(done);
    assert_ok(zn_tokenizer_encode(tokenizer, text, sizeof text - 1, true, &want));
    assert_int_equal(want.n, got.n);
    assert_memory_equal(want.ids, got.ids, (size_t)got.n * sizeof *got.ids);
    zn_ids_fini(&want);
    zn_ids_fini(&got);
    zn_tokenizer_destroy(tokenizer);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_truncated_file_is_an_error),
    cmocka_unit_test(changed_bytes_give_an_error_or_a_working_tokenizer),
    cmocka_unit_test(odd_values_are_refused_with_their_name),
    cmocka_unit_test(a_deep_or_long_sequence_is_refused),
    cmocka_unit_test(loading_survives_every_failing_allocation),
    cmocka_unit_test(encoding_survives_every_failing_allocation),
};

ZN_TEST_MAIN(tests)
