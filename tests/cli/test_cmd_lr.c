/* SPDX-License-Identifier: Apache-2.0 */
/* `zinc lr` from a file to its output. */
#include "zn_test.h"

#include <math.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/json.h"
#include "cli/cli.h"

#define MAX_WORDS 12

typedef struct fixture {
    char path[64]; /* of a ds_config.json */
    zn_buf out, err;
} fixture;

static int setup(void **state)
{
    static fixture f;
    memset(&f, 0, sizeof f);
    strcpy(f.path, "/tmp/zn_lr_XXXXXX");
    const int fd = mkstemp(f.path);
    if (fd < 0)
        return -1;
    close(fd);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    zn_buf_fini(&f->out);
    zn_buf_fini(&f->err);
    return unlink(f->path);
}

static void read_all(FILE *file, zn_buf *out)
{
    char bytes[4096];
    size_t n;
    out->n = 0;
    assert_ok(zn_buf_puts(out, ""));
    rewind(file);
    while ((n = fread(bytes, 1, sizeof bytes, file)) > 0)
        assert_ok(zn_buf_append(out, bytes, n));
    fclose(file);
}

/* Run `zinc lr PATH words...` in this process, streams into f->out and f->err; the exit code. */
static int run_lr(fixture *f, int n_words, const char *const *words)
{
    char copies[MAX_WORDS][64], *argv[MAX_WORDS + 1] = {0};
    const char *const head[] = {"zinc", "lr", f->path};
    FILE *out = tmpfile(), *err = tmpfile();
    assert_true(out && err && n_words + 3 <= MAX_WORDS);
    for (int i = 0; i < n_words + 3; i++) {
        snprintf(copies[i], sizeof copies[i], "%s", i < 3 ? head[i] : words[i - 3]);
        argv[i] = copies[i];
    }
    fflush(stdout);
    fflush(stderr);
    const int old_out = dup(STDOUT_FILENO), old_err = dup(STDERR_FILENO);
    dup2(fileno(out), STDOUT_FILENO);
    dup2(fileno(err), STDERR_FILENO);
    const int code = zn_cli_main(n_words + 3, argv);
    fflush(stdout);
    fflush(stderr);
    dup2(old_out, STDOUT_FILENO);
    dup2(old_err, STDERR_FILENO);
    close(old_out);
    close(old_err);
    read_all(out, &f->out);
    read_all(err, &f->err);
    return code;
}

#define RUN(f, ...)                                                                                \
    run_lr((f), (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)),                \
           (const char *const[]){__VA_ARGS__})

static void write_config(const fixture *f, const char *text)
{
    assert_ok(zn_fs_write_atomic(f->path, text, strlen(text)));
}

static void write_case(const fixture *f, const json_t *c)
{
    json_t *config = json_pack(
        "{s:i, s:{s:s, s:{s:O}}, s:{s:O, s:O}}", "train_micro_batch_size_per_gpu", 1, "optimizer",
        "type", "AdamW", "params", "lr", json_object_get(c, "optimizer_lr"), "scheduler", "type",
        json_object_get(c, "type"), "params", json_object_get(c, "params"));
    assert_non_null(config);
    zn_buf text = {0};
    assert_ok(zn_json_append(config, &text));
    write_config(f, text.data);
    zn_buf_fini(&text);
    json_decref(config);
}

static void check_list(const json_t *got, const json_t *want, const char *name, const char *key)
{
    const json_t *a = json_object_get(got, key), *b = json_object_get(want, key);
    assert_int_equal(json_array_size(a), json_array_size(b));
    for (size_t k = 0; k < json_array_size(b); k++) {
        const double x = json_number_value(json_array_get(a, k));
        const double y = json_number_value(json_array_get(b, k));
        if (!(fabs(x - y) <= 1e-12 * fabs(y)))
            fail_msg("%s: %s of step %zu is %.17g, want %.17g", name, key, k + 1, x, y);
    }
}

/* Where the reader of ds_config.json has a rule of its own for how a value is written. */
static bool is_readers_matter(const char *name)
{
    return strcmp(name, "warmup_steps_float") == 0 || strcmp(name, "warmup_bad_type") == 0 ||
           strstr(name, "warmup0") || strcmp(name, "warmup_steps0") == 0;
}

static void rates_of_every_scheduler_block_are_the_peers(void **state)
{
    fixture *f = *state;
    json_t *cases = NULL;
    assert_ok(zn_json_load(ZN_TEST_DATA "/optim/lr_cases.json", &cases));
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const char *name = json_string_value(json_object_get(c, "name"));
        if (is_readers_matter(name) || json_object_get(c, "overflow_steps"))
            continue;
        write_case(f, c);
        const int code = RUN(f, "--steps", "60", "--json");
        if (!json_is_true(json_object_get(c, "ok"))) {
            assert_int_equal(code, 1);
            assert_non_null(strstr(f->err.data, "scheduler.params."));
            assert_int_equal(f->out.n, 0);
            continue;
        }
        json_t *got = NULL;
        if (code != 0)
            fail_msg("%s: exit code %d: %s", name, code, f->err.data);
        assert_ok(zn_json_parse(f->out.data, f->out.n, name, &got));
        check_list(got, c, name, "lr");
        check_list(got, c, name, "beta1");
        check_list(got, c, name, "beta2");
        json_decref(got);
    }
    json_decref(cases);
}

static void auto_values_take_the_length_of_the_run(void **state)
{
    fixture *f = *state;
    write_config(f, "{\"train_micro_batch_size_per_gpu\": \"auto\","
                    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\"}},"
                    " \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {"
                    "\"warmup_min_lr\": 0, \"warmup_max_lr\": \"auto\", \"warmup_type\": "
                    "\"linear\", \"warmup_num_steps\": \"auto\", \"total_num_steps\": \"auto\"}}}");
    assert_int_equal(
        RUN(f, "--steps", "6", "--json", "--learning_rate", "0.5", "--warmup_steps", "2"), 0);
    /* i = -1, 0, 1 warm up; then (6 - i) / 4 */
    assert_string_equal(f->out.data, "{\"lr\":[0,0,0.25,0.5,0.375,0.25]}\n");
}

static void a_trainer_schedule_runs_where_the_file_has_none(void **state)
{
    fixture *f = *state;
    write_config(f, "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"SGD\","
                    " \"params\": {\"lr\": 1.0}}}");
    assert_int_equal(RUN(f, "--steps", "4", "--json"), 0);
    assert_string_equal(f->out.data, "{\"lr\":[1,1,1,1]}\n");
    assert_int_equal(RUN(f, "--steps", "4", "--json", "--lr_scheduler_type", "linear"), 0);
    assert_string_equal(f->out.data, "{\"lr\":[1,0.75,0.5,0.25]}\n");
    assert_int_equal(RUN(f, "--lr_scheduler_type", "linaer"), 1);
    assert_non_null(strstr(f->err.data, "--lr_scheduler_type"));
}

static void a_file_for_many_ranks_needs_no_world_size(void **state)
{
    fixture *f = *state;
    write_config(f, "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 2,"
                    " \"gradient_accumulation_steps\": 4, \"optimizer\": {\"type\": \"Adam\"}}");
    assert_int_equal(RUN(f, "--steps", "1", "--json"), 0);
    assert_string_equal(f->out.data, "{\"lr\":[0.001]}\n");
    assert_int_equal(RUN(f, "--steps", "1", "--json", "--world_size", "3"), 1);
}

static void people_get_a_plot_on_stderr(void **state)
{
    fixture *f = *state;
    write_config(f, "{\"train_micro_batch_size_per_gpu\": 1}");
    assert_int_equal(RUN(f, "--ascii", "--width", "40"), 0);
    assert_int_equal(f->out.n, 0);
    assert_non_null(strstr(f->err.data, "learning rate\n"));
    assert_non_null(strstr(f->err.data, "step"));
}

static void wrong_arguments_are_usage_errors(void **state)
{
    fixture *f = *state;
    write_config(f, "{\"train_micro_batch_size_per_gpu\": 1}");
    assert_int_equal(RUN(f, "--steps", "0"), 2);
    assert_int_equal(RUN(f, "--steps", "many"), 2);
    write_config(f, "{\"optimizer\": {\"type\": \"AdamX\"}}");
    assert_int_equal(RUN(f, "--steps", "3"), 1);
    assert_non_null(strstr(f->err.data, "optimizer.type"));
}

#define WITH_FILE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

static const struct CMUnitTest tests[] = {
    WITH_FILE(rates_of_every_scheduler_block_are_the_peers),
    WITH_FILE(auto_values_take_the_length_of_the_run),
    WITH_FILE(a_trainer_schedule_runs_where_the_file_has_none),
    WITH_FILE(a_file_for_many_ranks_needs_no_world_size),
    WITH_FILE(people_get_a_plot_on_stderr),
    WITH_FILE(wrong_arguments_are_usage_errors),
};

ZN_TEST_MAIN(tests)
