/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer_maker.h"

#include "base/hash.h"

/* A folder for the files of one test. */
static int make_folder(void **state)
{
    static char path[] = "/tmp/zn_train_XXXXXX";
    strcpy(path + strlen(path) - 6, "XXXXXX");
    *state = mkdtemp(path);
    return *state ? 0 : -1;
}

static int remove_folder(void **state)
{
    static const char *const names[] = {"a.txt", "b.txt", "1.json", "2.json"};
    char path[256];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", (const char *)*state, names[i]);
        unlink(path);
    }
    return rmdir(*state);
}

static const char *in(void **state, const char *name, char path[256])
{
    snprintf(path, 256, "%s/%s", (const char *)*state, name);
    return path;
}

/* Learn from a text and load the result. */
static void learn(void **state, const char *text, size_t n, int32_t vocab_size, zn_tokenizer **out)
{
    char from[256], to[256];
    const char *files[] = {in(state, "a.txt", from)};
    assert_ok(zn_fs_write_atomic(files[0], text, n));
    assert_ok(zn_tokenizer_train(files, 1, vocab_size, in(state, "1.json", to)));
    assert_ok(zn_tokenizer_load(to, out));
}

/* Worked by hand. Words: "ab" x3, " ab" x2, "cd" x2, " cd" x2 (newlines stand alone). Pairs: (a,b)
 * 5, (c,d) 4, (space,a) 2, (space,c) 2. The space's id is the larger, but those pairs are rarer;
 * after "ab" and "cd" the pairs (space,ab) and (space,cd) have 2 each, and the smaller ids come
 * first. */
static void merges_are_learned_by_frequency_then_by_smaller_ids(void **state)
{
    static const char text[] = "ab ab\nab ab\nab\ncd cd\ncd cd\n";
    zn_tokenizer *tokenizer = NULL;
    char path[256];
    json_t *json = NULL;
    learn(state, text, sizeof text - 1, 261, &tokenizer);
    assert_int_equal(zn_tokenizer_vocab_size(tokenizer), 261);
    assert_int_equal(zn_tokenizer_id(tokenizer, "ab"), 256);
    assert_int_equal(zn_tokenizer_id(tokenizer, "cd"), 257);
    assert_int_equal(zn_tokenizer_id(tokenizer, "\xC4\xA0"
                                                "ab"),
                     258);
    assert_int_equal(zn_tokenizer_id(tokenizer, "\xC4\xA0"
                                                "cd"),
                     259);
    assert_int_equal(zn_tokenizer_id(tokenizer, "<|endoftext|>"), 260);
    assert_true(zn_tokenizer_is_special(tokenizer, 260));
    zn_tokenizer_destroy(tokenizer);
    assert_ok(zn_json_load(in(state, "1.json", path), &json));
    const json_t *merges = json_object_get(json_object_get(json, "model"), "merges");
    assert_int_equal(json_array_size(merges), 4);
    assert_string_equal(json_string_value(json_array_get(merges, 0)), "a b");
    assert_string_equal(json_string_value(json_array_get(merges, 3)), "\xC4\xA0 cd");
    json_decref(json);
}

static void a_run_of_one_letter_is_counted_right(void **state)
{
    zn_tokenizer *tokenizer = NULL;
    learn(state, "aaaaa aaaaa", 11, 260, &tokenizer);
    assert_int_equal(zn_tokenizer_id(tokenizer, "aa"), 256);
    /* (aa, a) and (aa, aa) tie, once in each word */
    assert_int_equal(zn_tokenizer_id(tokenizer, "aaa"), 257);
    assert_int_equal(zn_tokenizer_id(tokenizer, "aaaaa"), 258);
    zn_tokenizer_destroy(tokenizer);
}

/* Pseudo-random words, so that many pairs tie. */
static void fill_text(char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint64_t h = zn_hash_mix(i / 3) >> (i % 3 * 8);
        text[i] = h % 6 == 0 ? ' ' : (char)('a' + h % 13);
    }
}

static void learning_twice_gives_the_same_file(void **state)
{
    char text[20000], a[256], b[256], one[256], two[256];
    zn_buf first = {0}, second = {0};
    fill_text(text, sizeof text);
    const char *files[] = {in(state, "a.txt", a), in(state, "b.txt", b)};
    assert_ok(zn_fs_write_atomic(a, text, sizeof text / 2));
    assert_ok(zn_fs_write_atomic(b, text + sizeof text / 2, sizeof text / 2));
    assert_ok(zn_tokenizer_train(files, 2, 900, in(state, "1.json", one)));
    assert_ok(zn_tokenizer_train(files, 2, 900, in(state, "2.json", two)));
    assert_ok(zn_fs_read(one, 0, &first));
    assert_ok(zn_fs_read(two, 0, &second));
    assert_int_equal(first.n, second.n);
    assert_memory_equal(first.data, second.data, first.n);
    zn_buf_fini(&first);
    zn_buf_fini(&second);
}

/* A token that is spelled by two merges would be a key twice, and the file could not be read. */
static void many_merges_give_a_file_that_loads_and_has_the_size_asked_for(void **state)
{
    char text[40000];
    zn_tokenizer *tokenizer = NULL;
    fill_text(text, sizeof text);
    learn(state, text, sizeof text, 3000, &tokenizer);
    assert_int_equal(zn_tokenizer_vocab_size(tokenizer), 3000);
    zn_tokenizer_destroy(tokenizer);
}

static void any_text_comes_back_from_its_ids(void **state)
{
    char text[4096];
    zn_tokenizer *tokenizer = NULL;
    zn_ids ids = {0};
    zn_buf back = {0};
    fill_text(text, sizeof text);
    learn(state, text, sizeof text, 400, &tokenizer);
    size_t n = 0; /* all kinds of characters, control characters and U+0000 too */
    for (uint64_t i = 0; n + 4 < sizeof text; i++) {
        const uint64_t h = zn_hash_mix(i);
        const uint32_t code = (uint32_t)(h % 4 == 0 ? h >> 8 & 0x7F : h >> 8 & 0xFFFF);
        if (code >= 0xD800 && code < 0xE000)
            continue;
        if (code < 0x80) {
            text[n++] = (char)code;
        } else if (code < 0x800) {
            text[n++] = (char)(0xC0 | code >> 6);
            text[n++] = (char)(0x80 | (code & 0x3F));
        } else {
            text[n++] = (char)(0xE0 | code >> 12);
            text[n++] = (char)(0x80 | (code >> 6 & 0x3F));
            text[n++] = (char)(0x80 | (code & 0x3F));
        }
    }
    assert_ok(zn_tokenizer_encode(tokenizer, text, n, true, &ids));
    assert_ok(zn_tokenizer_decode(tokenizer, ids.ids, ids.n, false, &back));
    assert_int_equal(back.n, n);
    assert_memory_equal(back.data, text, n);
    zn_ids_fini(&ids);
    zn_buf_fini(&back);
    zn_tokenizer_destroy(tokenizer);
}

static void bad_requests_say_what_is_wrong(void **state)
{
    char path[256], to[256];
    const char *missing[] = {"/nonexistent/text.txt"};
    const char *empty[] = {in(state, "a.txt", path)};
    in(state, "1.json", to);
    assert_ok(zn_fs_write_atomic(path, "", 0));
    assert_fails(zn_tokenizer_train(missing, 1, 300, to), ZINC_E_IO, "/nonexistent/text.txt");
    assert_fails(zn_tokenizer_train(empty, 1, 300, to), ZINC_E_FORMAT, "a.txt");
    assert_fails(zn_tokenizer_train(empty, 1, 200, to), ZINC_E_INVALID, "vocab_size 200");
    assert_false(zn_fs_exists(to));
}

static void learning_survives_every_failing_allocation(void **state)
{
    static const char text[] = "low lower lowest new newer newest wide wider widest";
    char from[256], to[256];
    const char *files[] = {in(state, "a.txt", from)};
    zinc_status status = ZINC_E_NOMEM;
    assert_ok(zn_fs_write_atomic(from, text, sizeof text - 1));
    in(state, "1.json", to);
    for (int64_t n = 0; n < 3000 && status != ZINC_OK; n++) {
        zn_mem_fail_after(n);
        status = zn_tokenizer_train(files, 1, 270, to);
        zn_mem_fail_after(-1);
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
    }
    assert_int_equal(status, ZINC_OK);
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

static const struct CMUnitTest tests[] = {
    WITH_FOLDER(merges_are_learned_by_frequency_then_by_smaller_ids),
    WITH_FOLDER(a_run_of_one_letter_is_counted_right),
    WITH_FOLDER(learning_twice_gives_the_same_file),
    WITH_FOLDER(many_merges_give_a_file_that_loads_and_has_the_size_asked_for),
    WITH_FOLDER(any_text_comes_back_from_its_ids),
    WITH_FOLDER(bad_requests_say_what_is_wrong),
    WITH_FOLDER(learning_survives_every_failing_allocation),
};

ZN_TEST_MAIN(tests)
