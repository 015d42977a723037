/* SPDX-License-Identifier: Apache-2.0 */
/* TensorBoard and CSV files, byte by byte; tests/train/monitors.py reads those of a whole run. */
#include "zn_test.h"

#include <dirent.h>
#include <math.h>
#include <unistd.h>

#include "base/fs.h"
#include "train/csv_monitor.h"
#include "train/monitor.h"
#include "train/tensorboard.h"

static const char *const tags[] = {"Train/Samples/lr", "a b"};

static int make_dir(void **state)
{
    static char dir[64];
    strcpy(dir, "/tmp/zn_monitor_XXXXXX");
    *state = mkdtemp(dir);
    return *state ? 0 : -1;
}

/* Files one level deep are all that a test makes. */
static void empty_dir(const char *path)
{
    char name[600];
    DIR *dir = opendir(path);
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        unlink(name);
    }
    closedir(dir);
}

static int remove_dir(void **state)
{
    empty_dir(*state);
    return rmdir(*state);
}

static void read_csv(const char *dir, const char *name, zn_buf *out)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(zn_fs_read(path, 0, out));
}

static void write_csv(const char *dir, int64_t keep_up_to, int64_t step, double value)
{
    zn_csv_monitor *csv = NULL;
    const double values[] = {value, -value};
    assert_ok(zn_csv_monitor_open(dir, keep_up_to, &csv));
    assert_ok(zn_csv_monitor_write(csv, step, tags, values, 2));
    zn_csv_monitor_close(csv);
}

static void assert_csv(const char *dir, const char *name, const char *wanted)
{
    zn_buf text = {0};
    read_csv(dir, name, &text);
    assert_string_equal(text.data, wanted);
    zn_buf_fini(&text);
}

static void a_csv_file_has_one_header_and_a_row_each_time(void **state)
{
    write_csv(*state, -1, 16, 0.0003);
    write_csv(*state, -1, 32, (double)INFINITY);
    write_csv(*state, -1, 8, (double)NAN);
    assert_csv(*state, "Train_Samples_lr.csv", "step,lr\n16,0.0003\n32,inf\n8,nan\n");
    assert_csv(*state, "a_b.csv", "step,a b\n16,-0.0003\n32,-inf\n8,nan\n");
}

static void a_resumed_run_drops_rows_of_later_steps_and_a_torn_one(void **state)
{
    char path[160];
    write_csv(*state, -1, 16, 1);
    write_csv(*state, -1, 32, 2);
    write_csv(*state, -1, 48, 3);
    write_csv(*state, 32, 40, 4);
    assert_csv(*state, "Train_Samples_lr.csv", "step,lr\n16,1\n32,2\n40,4\n");
    snprintf(path, sizeof path, "%s/Train_Samples_lr.csv", (char *)*state);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs("56,0.", file);
    fclose(file);
    write_csv(*state, -1, 64, 5);
    assert_csv(*state, "Train_Samples_lr.csv", "step,lr\n16,1\n32,2\n40,4\n64,5\n");
}

/* The only event file of a folder. */
static void read_events(const char *dir_path, zn_buf *out)
{
    DIR *dir = opendir(dir_path);
    char path[600] = "";
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0)
            snprintf(path, sizeof path, "%s/%s", dir_path, entry->d_name);
    closedir(dir);
    assert_ok(zn_fs_read(path, 0, out));
}

static void an_event_is_the_documented_bytes(void **state)
{
    /* Lengths and fields; wall times (bytes 1 to 8 of an event) and CRCs are not compared here. */
    static const unsigned char version[] = "\x1a\x0d"
                                           "brain.Event:2";
    static const unsigned char purge[] = "\x10\xad\x02\x3a\x02\x08\x01"; /* step 301, START */
    static const unsigned char summary[] = "\x10\xac\x02\x2a\x1e"        /* step 300, 30 bytes */
                                           "\x0a\x12\x0a\x0b"
                                           "Train/x/lr1"
                                           "\x15\x00\x00\xc0\x3f" /* 1.5 */
                                           "\x0a\x08\x0a\x01"
                                           "z"
                                           "\x15\x00\x00\x00\xc0"; /* -2 */
    zn_tensorboard *tb = NULL;
    zn_buf file = {0};
    const char *const two[] = {"Train/x/lr1", "z"};
    const double values[] = {1.5, -2};
    assert_ok(zn_tensorboard_open(*state, 301, &tb));
    assert_ok(zn_tensorboard_write(tb, 300, two, values, 2));
    zn_tensorboard_close(tb);
    read_events(*state, &file);
    const size_t n[] = {sizeof version - 1, sizeof purge - 1, sizeof summary - 1};
    const unsigned char *const wanted[] = {version, purge, summary};
    const unsigned char *at = (const unsigned char *)file.data;
    assert_int_equal(file.n, n[0] + n[1] + n[2] + 3 * (9 + 16));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(at[0], n[i] + 9);
        assert_int_equal(at[12], 0x09); /* field 1, 64 bits */
        assert_memory_equal(at + 21, wanted[i], n[i]);
        at += n[i] + 9 + 16;
    }
    zn_buf_fini(&file);
}

static void two_files_of_one_second_have_two_names(void **state)
{
    int n = 0;
    for (int i = 0; i < 3; i++) {
        zn_tensorboard *tb = NULL;
        assert_ok(zn_tensorboard_open(*state, 0, &tb));
        zn_tensorboard_close(tb);
    }
    DIR *dir = opendir(*state);
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
        n += strstr(entry->d_name, "tfevents") != NULL;
    closedir(dir);
    assert_int_equal(n, 3);
}

static void a_folder_that_cannot_be_made_is_an_error_with_its_path(void **state)
{
    (void)state;
    zn_tensorboard *tb = NULL;
    zn_csv_monitor *csv = NULL;
    assert_fails(zn_tensorboard_open("/dev/null/tb", 0, &tb), ZINC_E_IO, "/dev/null");
    assert_fails(zn_csv_monitor_open("/dev/null/csv", -1, &csv), ZINC_E_IO, "/dev/null");
}

static void the_monitor_counts_samples_and_tells_the_scale_under_fp16_only(void **state)
{
    char path[160];
    zn_config_values config = {.train_batch_size = 8};
    const zn_metrics_row row = {.step = 3, .loss = 2.5, .lr = 1e-3, .loss_scale = 1024};
    const zn_monitor_params params = {.config = &config, .output_dir = *state};
    config.csv_monitor.enabled = true;
    for (int fp16 = 0; fp16 < 2; fp16++) {
        zn_monitor *monitor = NULL;
        config.fp16.enabled = fp16 == 1;
        assert_ok(zn_monitor_open(&params, &monitor));
        assert_ok(zn_monitor_step(monitor, &row));
        assert_ok(zn_monitor_eval(monitor, 3, 1.25));
        zn_monitor_close(monitor);
        snprintf(path, sizeof path, "%s/Train_Samples_loss_scale.csv", (char *)*state);
        assert_int_equal(zn_fs_exists(path), fp16);
    }
    assert_csv(*state, "Train_Samples_train_loss.csv", "step,train_loss\n24,2.5\n24,2.5\n");
    assert_csv(*state, "Train_Samples_loss_scale.csv", "step,loss_scale\n24,1024\n");
    assert_csv(*state, "Eval_Samples_eval_loss.csv", "step,eval_loss\n24,1.25\n24,1.25\n");
}

static void every_failed_allocation_is_an_error_and_leaks_nothing(void **state)
{
    zn_config_values config = {.train_batch_size = 8};
    const zn_metrics_row row = {.step = 1, .loss = 2.5};
    const zn_monitor_params params = {.config = &config, .output_dir = *state};
    config.csv_monitor.enabled = true;
    config.tensorboard.enabled = true;
    zinc_status status = ZINC_E_NOMEM;
    for (int n = 0; status != ZINC_OK && n < 200; n++) {
        zn_monitor *monitor = NULL;
        zn_mem_fail_after(n);
        status = zn_monitor_open(&params, &monitor);
        if (status == ZINC_OK)
            status = zn_monitor_step(monitor, &row);
        zn_monitor_close(monitor);
        zn_mem_fail_after(-1);
        empty_dir(*state);
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
    }
    assert_int_equal(status, ZINC_OK);
}

#define WITH_DIR(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)

static const struct CMUnitTest tests[] = {
    WITH_DIR(a_csv_file_has_one_header_and_a_row_each_time),
    WITH_DIR(a_resumed_run_drops_rows_of_later_steps_and_a_torn_one),
    WITH_DIR(an_event_is_the_documented_bytes),
    WITH_DIR(two_files_of_one_second_have_two_names),
    cmocka_unit_test(a_folder_that_cannot_be_made_is_an_error_with_its_path),
    WITH_DIR(the_monitor_counts_samples_and_tells_the_scale_under_fp16_only),
    WITH_DIR(every_failed_allocation_is_an_error_and_leaks_nothing),
};

ZN_TEST_MAIN(tests)
