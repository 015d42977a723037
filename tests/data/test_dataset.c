/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "data/dataset.h"
#include "zn_test.h"

/* The gpt2-like tokenizer of the test data: one id a byte for these letters, EOS 388. */
#define GPT2 ZN_TEST_DATA "/tokenizer/gpt2/tokenizer.json"
#define LLAMA3 ZN_TEST_DATA "/tokenizer/llama3/tokenizer.json"

typedef struct fixture {
    char folder[64];
    char path[4][128];
    int n_files;
    zn_tokenizer *tokenizer;
    zn_dataset *dataset;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    strcpy(f->folder, "/tmp/zn_dataset_XXXXXX");
    *state = f;
    return mkdtemp(f->folder) && zn_tokenizer_load(GPT2, &f->tokenizer) == ZINC_OK ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    zn_dataset_destroy(f->dataset);
    zn_tokenizer_destroy(f->tokenizer);
    for (int i = 0; i < f->n_files; i++)
        unlink(f->path[i]);
    rmdir(f->folder);
    free(f);
    return 0;
}

/* Write a file for the data set. */
static void put(fixture *f, const char *name, const void *bytes, size_t n)
{
    char path[sizeof f->path[0]];
    snprintf(path, sizeof path, "%s/%s", f->folder, name);
    memcpy(f->path[f->n_files++], path, sizeof path);
    assert_ok(zn_fs_write_atomic(path, bytes, n));
}

static void put_text(fixture *f, const char *name, const char *text)
{
    put(f, name, text, strlen(text));
}

static zinc_status open_with(fixture *f, int64_t block_size, int32_t vocab_size, int32_t eos_id)
{
    const char *files[4];
    for (int i = 0; i < f->n_files; i++)
        files[i] = f->path[i];
    const zn_dataset_params params = {.files = files,
                                      .n_files = f->n_files,
                                      .tokenizer = f->tokenizer,
                                      .block_size = block_size,
                                      .vocab_size = vocab_size,
                                      .eos_id = eos_id};
    zn_dataset_destroy(f->dataset);
    f->dataset = NULL;
    return zn_dataset_open(&params, &f->dataset);
}

/* Row i as text: ids, then labels and mask if it has them. */
static void check_row(const fixture *f, int64_t i, const char *want)
{
    zn_row row;
    zn_buf got = {0};
    zn_dataset_row(f->dataset, i, &row);
    for (int64_t t = 0; t < row.n; t++)
        assert_ok(zn_buf_printf(&got, "%s%d", t ? " " : "", row.ids[t]));
    for (int64_t t = 0; row.labels && t < row.n; t++)
        assert_ok(zn_buf_printf(&got, "%s%d", t ? " " : " / ", row.labels[t]));
    for (int64_t t = 0; row.mask && t < row.n; t++)
        assert_ok(zn_buf_printf(&got, "%s%d", t ? " " : " / ", row.mask[t]));
    assert_string_equal(got.data, want);
    zn_buf_fini(&got);
}

/* "A" is id 32 in the byte-level order ('!' is 0), "B" 33, "C" 34, "D" 35. */
static void texts_are_ended_with_eos_and_packed_across_files(void **state)
{
    fixture *f = *state;
    put_text(f, "a.txt", "ABC");
    put_text(f, "b.jsonl", "{\"text\":\"DA\",\"id\":7}\n\n{\"text\":\"BCD\"}");
    assert_ok(open_with(f, 4, 389, 388));
    assert_int_equal(zn_dataset_n_rows(f->dataset), 3);
    check_row(f, 0, "32 33 34 388");
    check_row(f, 1, "35 32 388 33");
    check_row(f, 2, "34 35 388");
    assert_int_equal(zn_dataset_n_tokens(f->dataset), 11);
    assert_int_equal(zn_dataset_n_cut(f->dataset), 0);
}

static void a_last_token_on_its_own_is_dropped(void **state)
{
    fixture *f = *state;
    put_text(f, "a.txt", "ABCDA");
    assert_ok(open_with(f, 4, 389, -1));
    assert_int_equal(zn_dataset_n_rows(f->dataset), 1);
    check_row(f, 0, "32 33 34 35");
}

static void a_text_that_has_the_special_tokens_already_gets_them_once(void **state)
{
    fixture *f = *state;
    zn_tokenizer_destroy(f->tokenizer);
    f->tokenizer = NULL;
    assert_ok(zn_tokenizer_load(LLAMA3, &f->tokenizer));
    put_text(f, "a.jsonl",
             "{\"text\":\"A\"}\n{\"text\":\"<|begin_of_text|>A<|end_of_text|>\"}\n"
             "{\"prompt\":\"A\",\"completion\":\"B\"}\n");
    assert_ok(open_with(f, 6, 421, 417));
    check_row(f, 0, "416 32 417 416 32 417");
    check_row(f, 1, "416 32 33 417 / -100 -100 33 417");
}

static void only_the_completion_has_labels(void **state)
{
    fixture *f = *state;
    put_text(f, "a.jsonl",
             "{\"prompt\":\"AB\",\"completion\":\"CD\"}\n"
             "{\"prompt\":\"ABCDA\",\"completion\":\"B\"}\n");
    assert_ok(open_with(f, 5, 389, 388));
    check_row(f, 0, "32 33 34 35 388 / -100 -100 34 35 388");
    check_row(f, 1, "32 33 34 35 32 / -100 -100 -100 -100 -100");
    assert_int_equal(zn_dataset_n_cut(f->dataset), 1);
    assert_int_equal(zn_dataset_n_empty(f->dataset), 1);
}

static void rows_of_ids_stand_as_they_are(void **state)
{
    fixture *f = *state;
    put_text(f, "a.jsonl",
             "{\"input_ids\":[1,2,3],\"labels\":[-100,2,-100],\"attention_mask\":[1,1,0]}\r\n"
             "{\"input_ids\":[4,5,6],\"attention_mask\":[1,1,0]}\n"
             "{\"input_ids\":[7]}\n"
             "{\"input_ids\":[1,2,3,4,5,6],\"labels\":null}\n");
    assert_ok(open_with(f, 5, 389, 388));
    check_row(f, 0, "1 2 3 / -100 2 -100 / 1 1 0");
    check_row(f, 1, "4 5 6 / 4 5 -100 / 1 1 0");
    check_row(f, 2, "7");
    check_row(f, 3, "1 2 3 4 5");
    assert_int_equal(zn_dataset_n_cut(f->dataset), 1);
    assert_int_equal(zn_dataset_n_empty(f->dataset), 1);
}

static void token_files_of_both_widths_are_read(void **state)
{
    fixture *f = *state;
    put(f, "a.bin", "ZINCTOK1\2\0\0\0\0\0\0\0\1\0\2\0\3\0", 22);
    put(f, "b.bin", "ZINCTOK1\4\0\0\0\0\0\0\0\4\0\0\0\5\1\0\0", 24);
    assert_ok(open_with(f, 3, 389, 388));
    check_row(f, 0, "1 2 3");
    check_row(f, 1, "4 261");
}

static void a_token_file_that_was_built_gives_the_packed_texts(void **state)
{
    fixture *f = *state;
    char bin[128];
    int64_t n = 0;
    put_text(f, "a.txt", "ABC");
    put_text(f, "b.jsonl", "{\"text\":\"DA\"}\n{\"text\":\"BCD\"}\n");
    snprintf(bin, sizeof bin, "%s/c.bin", f->folder);
    const char *files[] = {f->path[0], f->path[1]};
    assert_ok(zn_token_file_build(f->tokenizer, files, 2, 388, bin, &n));
    assert_int_equal(n, 11);
    unlink(f->path[0]);
    unlink(f->path[1]);
    strcpy(f->path[0], bin);
    f->n_files = 1;
    assert_ok(open_with(f, 4, 389, 388));
    check_row(f, 1, "35 32 388 33");
    check_row(f, 2, "34 35 388");
}

static void broken_token_files_say_what_is_wrong(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *part;
    } rows[] = {
        {"", 0, "header"},
        {"ZINCTOK1\2\0\0", 11, "header"},
        {"ZINCTOK2\2\0\0\0\0\0\0\0\1\0\1\0", 20, "header"},
        {"ZINCTOK1\3\0\0\0\0\0\0\0\1\0\1\0", 20, "not 3"},
        {"ZINCTOK1\2\0\0\0\1\0\0\0\1\0\1\0", 20, "reserved"},
        {"ZINCTOK1\2\0\0\0\0\0\0\0\1\0\1", 19, "cut off"},
        {"ZINCTOK1\2\0\0\0\0\0\0\0", 16, "nothing"},
        {"ZINCTOK1\2\0\0\0\0\0\0\0\1\0\x85\1", 20, "token 1 is id 389"},
        {"ZINCTOK1\4\0\0\0\0\0\0\0\1\0\0\0\xFF\xFF\xFF\xFF", 24, "token 1 is id 4294967295"},
    };
    fixture *f = *state;
    put(f, "a.bin", "", 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_ok(zn_fs_write_atomic(f->path[0], rows[i].bytes, rows[i].n));
        assert_fails(open_with(f, 4, 389, 388), ZINC_E_FORMAT, "a.bin");
        if (!strstr(zinc_last_error(), rows[i].part))
            fail_msg("\"%s\" does not say %s", zinc_last_error(), rows[i].part);
    }
}

static void a_bad_line_is_named_by_file_and_line(void **state)
{
    static const char *const rows[][2] = {
        {"{\"text\":", "JSON"},
        {"[1]", "JSON object"},
        {"{\"txt\":\"A\"}", "input_ids"},
        {"{\"text\":5}", "\"text\""},
        {"{\"prompt\":\"A\"}", "completion"},
        {"{\"prompt\":\"\",\"completion\":7}", "completion"},
        {"{\"input_ids\":[]}", "empty"},
        {"{\"input_ids\":3}", "array"},
        {"{\"input_ids\":[1,389]}", "389"},
        {"{\"input_ids\":[1,-1]}", "-1"},
        {"{\"input_ids\":[1,2.5]}", "integer"},
        {"{\"input_ids\":[1,99999999999]}", "99999999999"},
        {"{\"input_ids\":[1,2],\"labels\":[1]}", "2"},
        {"{\"input_ids\":[1,2],\"labels\":[1,-5]}", "-100"},
        {"{\"input_ids\":[1,2],\"attention_mask\":[1,2]}", "attention_mask"},
        {"{\"text\":\"\xFF\"}", "JSON"},
    };
    fixture *f = *state;
    char text[256];
    put(f, "a.jsonl", "", 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(text, sizeof text, "{\"text\":\"AB\"}\n\n%s\n", rows[i][0]);
        assert_ok(zn_fs_write_atomic(f->path[0], text, strlen(text)));
        assert_fails(open_with(f, 4, 389, 388), ZINC_E_FORMAT, "a.jsonl:3");
        if (!strstr(zinc_last_error(), rows[i][1]))
            fail_msg("%s: \"%s\" does not say %s", rows[i][0], zinc_last_error(), rows[i][1]);
    }
}

static void files_of_other_kinds_come_with_the_way_to_convert_them(void **state)
{
    fixture *f = *state;
    put_text(f, "a.parquet", "PAR1");
    assert_fails(open_with(f, 4, 389, 388), ZINC_E_UNSUPPORTED, "read_parquet(\"");
    strcpy(strrchr(f->path[0], '.'), ".CSV");
    assert_fails(open_with(f, 4, 389, 388), ZINC_E_UNSUPPORTED, "read_csv(\"");
    strcpy(strrchr(f->path[0], '.'), ".doc");
    assert_fails(open_with(f, 4, 389, 388), ZINC_E_UNSUPPORTED, ".jsonl");
    strcpy(strrchr(f->path[0], '.'), ".txt");
    assert_fails(open_with(f, 4, 389, 388), ZINC_E_IO, "a.txt");
    const char *const files[] = {"org/name"};
    const zn_dataset_params hub = {.files = files, .n_files = 1, .block_size = 4, .vocab_size = 4};
    assert_fails(zn_dataset_open(&hub, &f->dataset), ZINC_E_UNSUPPORTED,
                 "datasets.load_dataset(\"org/name\"");
    strcpy(strrchr(f->path[0], '.'), ".parquet");
}

static void empty_files_and_impossible_settings_are_errors(void **state)
{
    fixture *f = *state;
    assert_fails(open_with(f, 4, 389, 388), ZINC_E_INVALID, "no data files");
    put_text(f, "a.txt", "");
    assert_fails(open_with(f, 4, 389, 388), ZINC_E_FORMAT, "nothing in it");
    put_text(f, "b.jsonl", "\n  \n");
    assert_ok(zn_fs_write_atomic(f->path[0], "A", 1));
    assert_fails(open_with(f, 4, 389, 388), ZINC_E_FORMAT, "b.jsonl");
    assert_fails(open_with(f, 1, 389, 388), ZINC_E_INVALID, "block_size");
    assert_fails(open_with(f, 4, 300, 388), ZINC_E_CONFIG, "388");
    assert_fails(open_with(f, 4, 10, -1), ZINC_E_FORMAT, "id 32");
    zn_tokenizer_destroy(f->tokenizer);
    f->tokenizer = NULL;
    assert_fails(open_with(f, 4, 389, 388), ZINC_E_CONFIG, "tokenizer.json");
}

static void opening_survives_every_failing_allocation(void **state)
{
    fixture *f = *state;
    zinc_status status = ZINC_E_NOMEM;
    put_text(f, "a.jsonl",
             "{\"text\":\"ABC\"}\n{\"prompt\":\"A\",\"completion\":\"B\"}\n"
             "{\"input_ids\":[1,2],\"attention_mask\":[1,1]}\n");
    for (int64_t n = 0; n < 300 && status != ZINC_OK; n++) {
        zn_mem_fail_after(n);
        status = open_with(f, 4, 389, 388);
        zn_mem_fail_after(-1);
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
    }
    assert_int_equal(status, ZINC_OK);
    assert_int_equal(zn_dataset_n_rows(f->dataset), 3);
}

#define WITH_FILES(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

static const struct CMUnitTest tests[] = {
    WITH_FILES(texts_are_ended_with_eos_and_packed_across_files),
    WITH_FILES(a_last_token_on_its_own_is_dropped),
    WITH_FILES(a_text_that_has_the_special_tokens_already_gets_them_once),
    WITH_FILES(only_the_completion_has_labels),
    WITH_FILES(rows_of_ids_stand_as_they_are),
    WITH_FILES(token_files_of_both_widths_are_read),
    WITH_FILES(a_token_file_that_was_built_gives_the_packed_texts),
    WITH_FILES(broken_token_files_say_what_is_wrong),
    WITH_FILES(a_bad_line_is_named_by_file_and_line),
    WITH_FILES(files_of_other_kinds_come_with_the_way_to_convert_them),
    WITH_FILES(empty_files_and_impossible_settings_are_errors),
    WITH_FILES(opening_survives_every_failing_allocation),
};

ZN_TEST_MAIN(tests)
