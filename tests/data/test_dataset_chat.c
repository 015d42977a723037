/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of messages, and packed texts with boundaries, as training reads them. */
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "data/dataset.h"
#include "zn_test.h"

/* A byte-level tokenizer with the tokens of ChatML: 401 <|im_start|>, 402 <|im_end|>. */
#define QWEN2 ZN_TEST_DATA "/tokenizer/qwen2/tokenizer.json"
#define CONFIG                                                                                     \
    "{\"chat_template\": \"{% for message in messages %}{{'<|im_start|>' + message['role'] + "     \
    "'\\\\n' + message['content'] + '<|im_end|>' + '\\\\n'}}{% endfor %}{% if "                    \
    "add_generation_prompt %}{{ '<|im_start|>assistant\\\\n' }}{% endif %}\"}"

typedef struct fixture {
    char folder[64], rows[128], config[128], tokenizer_path[128];
    zn_tokenizer *tokenizer;
    zn_chat *chat;
    zn_dataset *dataset;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    strcpy(f->folder, "/tmp/zn_chat_rows_XXXXXX");
    if (!mkdtemp(f->folder) || zn_tokenizer_load(QWEN2, &f->tokenizer) != ZINC_OK)
        return -1;
    snprintf(f->rows, sizeof f->rows, "%s/rows.jsonl", f->folder);
    snprintf(f->config, sizeof f->config, "%s/tokenizer_config.json", f->folder);
    snprintf(f->tokenizer_path, sizeof f->tokenizer_path, "%s/tokenizer.json", f->folder);
    if (zn_fs_write_atomic(f->config, CONFIG, strlen(CONFIG)) != ZINC_OK)
        return -1;
    return zn_chat_open(f->tokenizer_path, &f->chat) == ZINC_OK ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    zn_dataset_destroy(f->dataset);
    zn_chat_destroy(f->chat);
    zn_tokenizer_destroy(f->tokenizer);
    unlink(f->rows);
    unlink(f->config);
    rmdir(f->folder);
    free(f);
    return 0;
}

static zn_dataset_params params_of(const fixture *f, const char *const *files)
{
    return (zn_dataset_params){.files = files,
                               .n_files = 1,
                               .tokenizer = f->tokenizer,
                               .chat = f->chat,
                               .block_size = 64,
                               .vocab_size = 404,
                               .eos_id = 400};
}

static zinc_status open_rows(fixture *f, const char *text, zn_dataset_params params)
{
    assert_ok(zn_fs_write_atomic(f->rows, text, strlen(text)));
    zn_dataset_destroy(f->dataset);
    f->dataset = NULL;
    return zn_dataset_open(&params, &f->dataset);
}

static void put_numbers(zn_buf *out, const char *name, const int32_t *values, int64_t n)
{
    assert_ok(zn_buf_puts(out, name));
    for (int64_t i = 0; i < n; i++)
        assert_ok(zn_buf_printf(out, " %d", values[i]));
}

#define HELLO                                                                                      \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"A\"},"                                        \
    "{\"role\":\"assistant\",\"content\":\"BC\"}]}\n"

/* The header of the answer, "assistant\n", is 401 64 82 82 265 83 303 83 198; "BC" is 33 34. */
static void an_answer_and_its_end_have_labels(void **state)
{
    fixture *f = *state;
    const char *const files[] = {f->rows};
    zn_row row;
    zn_buf got = {0};
    assert_ok(open_rows(f, HELLO, params_of(f, files)));
    assert_int_equal(zn_dataset_n_rows(f->dataset), 1);
    zn_dataset_row(f->dataset, 0, &row);
    put_numbers(&got, "ids", row.ids, row.n);
    put_numbers(&got, " labels", row.labels + row.n - 5, 5);
    assert_string_equal(got.data, "ids 401 84 82 260 198 32 402 198 401 64 82 82 265 83 303 83 198 "
                                  "33 34 402 198 labels -100 33 34 402 -100");
    for (int64_t i = 0; i < row.n - 4; i++)
        assert_int_equal(row.labels[i], -100);
    zn_buf_fini(&got);
}

static void with_loss_on_all_every_token_is_learned(void **state)
{
    fixture *f = *state;
    const char *const files[] = {f->rows};
    zn_dataset_params params = params_of(f, files);
    zn_row row;
    params.loss_on_all = true;
    assert_ok(open_rows(f, HELLO, params));
    zn_dataset_row(f->dataset, 0, &row);
    assert_null(row.labels);
}

static void a_conversation_that_is_too_long_is_cut_and_counted(void **state)
{
    fixture *f = *state;
    const char *const files[] = {f->rows};
    zn_dataset_params params = params_of(f, files);
    zn_row row;
    params.block_size = 18;
    assert_ok(open_rows(f, HELLO, params));
    assert_int_equal(zn_dataset_n_cut(f->dataset), 1);
    assert_int_equal(zn_dataset_n_empty(f->dataset), 0);
    zn_dataset_row(f->dataset, 0, &row);
    assert_int_equal(row.n, 18);
    params.block_size = 17; /* nothing of the answer is left */
    assert_ok(open_rows(f, HELLO, params));
    assert_int_equal(zn_dataset_n_empty(f->dataset), 1);
}

static void check_refused(fixture *f, const char *row, zinc_status status, const char *part)
{
    char text[512];
    const char *const files[] = {f->rows};
    snprintf(text, sizeof text, HELLO "\n%s\n", row);
    assert_fails(open_rows(f, text, params_of(f, files)), status, part);
    assert_non_null(strstr(zinc_last_error(), "rows.jsonl:3"));
}

static void bad_messages_are_named_by_file_line_and_number(void **state)
{
    fixture *f = *state;
    check_refused(f, "{\"messages\":7}", ZINC_E_FORMAT, "must be an array");
    check_refused(f, "{\"messages\":[]}", ZINC_E_FORMAT, "is empty");
    check_refused(f, "{\"messages\":[\"x\"]}", ZINC_E_FORMAT, "message 1 must be");
    check_refused(f, "{\"messages\":[{\"role\":\"user\"}]}", ZINC_E_FORMAT, "must be a string");
    check_refused(f, "{\"messages\":[{\"role\":\"bot\",\"content\":\"\"}]}", ZINC_E_FORMAT,
                  "message 1 has the role \"bot\"");
    check_refused(f, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[]}]}",
                  ZINC_E_UNSUPPORTED, "tool_calls");
    check_refused(f, "{\"conversations\":[]}", ZINC_E_FORMAT, "write \"messages\"");
    zn_chat_destroy(f->chat);
    f->chat = NULL;
    const char *const files[] = {f->rows};
    assert_fails(open_rows(f, HELLO, params_of(f, files)), ZINC_E_CONFIG, "rows.jsonl:1");
}

/* ---- packing ---- */

static void check_batch(const fixture *f, const char *want)
{
    const int64_t row = 0;
    zn_batch batch = {0};
    zn_buf got = {0};
    assert_ok(zn_batch_fill(&batch, f->dataset, &row, 1, 0));
    put_numbers(&got, "ids", batch.ids, batch.T);
    put_numbers(&got, " targets", batch.targets, batch.T);
    if (batch.segment)
        put_numbers(&got, " segments", batch.segment, batch.T);
    if (batch.position)
        put_numbers(&got, " places", batch.position, batch.T);
    assert_string_equal(got.data, want);
    zn_batch_fini(&batch);
    zn_buf_fini(&got);
}

#define TEXTS "{\"text\":\"AB\"}\n{\"text\":\"C\"}\n{\"text\":\"AAA\"}\n"

static void without_boundaries_a_text_ends_with_the_next_one_as_its_target(void **state)
{
    fixture *f = *state;
    const char *const files[] = {f->rows};
    assert_ok(open_rows(f, TEXTS, params_of(f, files)));
    check_batch(f, "ids 32 33 400 34 400 32 32 32 400 targets 33 400 34 400 32 32 32 400 -1");
}

static void with_boundaries_each_text_is_a_segment_and_ends_without_a_target(void **state)
{
    fixture *f = *state;
    const char *const files[] = {f->rows};
    zn_dataset_params params = params_of(f, files);
    params.packing_boundaries = true;
    assert_ok(open_rows(f, TEXTS, params));
    check_batch(f, "ids 32 33 400 34 400 32 32 32 400 targets 33 400 -1 400 -1 32 32 400 -1 "
                   "segments 0 0 0 1 1 2 2 2 2 places 0 1 2 0 1 0 1 2 3");
    params.block_size = 4; /* rows [A B . C] [. A A A]: a text may go on in the next row */
    assert_ok(open_rows(f, TEXTS, params));
    check_batch(f, "ids 32 33 400 34 targets 33 400 -1 -1 segments 0 0 0 1 places 0 1 2 0");
    params.block_size = 3; /* a row that is one text needs no segments */
    assert_ok(open_rows(f, TEXTS, params));
    check_batch(f, "ids 32 33 400 targets 33 400 -1");
}

static void a_token_file_is_parted_after_its_eos(void **state)
{
    fixture *f = *state;
    char path[160];
    const char *const from[] = {f->rows}, *const files[] = {path};
    int64_t n;
    zn_dataset_params params = params_of(f, files);
    params.packing_boundaries = true;
    snprintf(path, sizeof path, "%s/rows.bin", f->folder);
    assert_ok(zn_fs_write_atomic(f->rows, TEXTS, strlen(TEXTS)));
    assert_ok(zn_token_file_build(f->tokenizer, from, 1, 400, path, &n));
    assert_ok(zn_dataset_open(&params, &f->dataset));
    check_batch(f, "ids 32 33 400 34 400 32 32 32 400 targets 33 400 -1 400 -1 32 32 400 -1 "
                   "segments 0 0 0 1 1 2 2 2 2 places 0 1 2 0 1 0 1 2 3");
    unlink(path);
}

static void opening_survives_every_failing_allocation(void **state)
{
    fixture *f = *state;
    const char *const files[] = {f->rows};
    zinc_status status = ZINC_E_NOMEM;
    zn_dataset_params params = params_of(f, files);
    params.packing_boundaries = true;
    params.block_size = 16;
    assert_ok(zn_fs_write_atomic(f->rows, HELLO TEXTS, strlen(HELLO TEXTS)));
    for (int64_t n = 0; n < 300 && status != ZINC_OK; n++) {
        zn_mem_fail_after(n);
        status = zn_dataset_open(&params, &f->dataset);
        zn_mem_fail_after(-1);
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
    }
    assert_int_equal(status, ZINC_OK);
}

#define WITH_ROWS(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

static const struct CMUnitTest tests[] = {
    WITH_ROWS(an_answer_and_its_end_have_labels),
    WITH_ROWS(with_loss_on_all_every_token_is_learned),
    WITH_ROWS(a_conversation_that_is_too_long_is_cut_and_counted),
    WITH_ROWS(bad_messages_are_named_by_file_line_and_number),
    WITH_ROWS(without_boundaries_a_text_ends_with_the_next_one_as_its_target),
    WITH_ROWS(with_boundaries_each_text_is_a_segment_and_ends_without_a_target),
    WITH_ROWS(a_token_file_is_parted_after_its_eos),
    WITH_ROWS(opening_survives_every_failing_allocation),
};

ZN_TEST_MAIN(tests)
