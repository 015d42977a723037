/* SPDX-License-Identifier: Apache-2.0 */
/* Names and counts as Slurm writes them into SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE. */
#include "zn_test.h"

#include "launch/launch_internal.h"

static void assert_hosts(const char *text, const char *wanted)
{
    zn_words names = {0};
    zn_buf joined = {0};
    assert_ok(zn_slurm_parse_hosts(text, &names));
    for (int i = 0; i < names.n; i++)
        assert_ok(zn_buf_printf(&joined, "%s%s", i ? " " : "", names.items[i]));
    assert_string_equal(joined.data, wanted);
    zn_buf_fini(&joined);
    zn_words_fini(&names);
}

static void host_lists_are_expanded_in_order(void **state)
{
    (void)state;
    assert_hosts("login", "login");
    assert_hosts("b,a", "b a");
    assert_hosts("n[1-3,7],login", "n1 n2 n3 n7 login");
    assert_hosts("n[008-011]", "n008 n009 n010 n011");
    assert_hosts("n[5]-ib.site", "n5-ib.site");
    assert_hosts("r[1-2]n[3,5]x", "r1n3x r1n5x r2n3x r2n5x");
}

static void lists_that_slurm_does_not_write_are_errors(void **state)
{
    static const char *const lists[] = {
        "",   "n[1-3",         "n[]",   "n[3-1]",  "n[a-b]", "n[1-]",  "n[1,]",          "a,,b",
        "a,", "n[1-99999999]", "n[-3]", "n[1-2x]", "n[1]m[", "n[1 2]", "n[12345678901]",
    };
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        zn_words names = {0};
        assert_int_equal(zn_slurm_parse_hosts(lists[i], &names), ZINC_E_CONFIG);
        assert_non_null(strstr(zinc_last_error(), "SLURM_JOB_NODELIST"));
        zn_words_fini(&names);
    }
}

static void counts_are_repeated(void **state)
{
    int counts[4];
    (void)state;
    assert_ok(zn_slurm_parse_counts("4(x2),1,3", 4, counts));
    assert_int_equal(counts[0], 4);
    assert_int_equal(counts[1], 4);
    assert_int_equal(counts[2], 1);
    assert_int_equal(counts[3], 3);
    static const char *const bad[] = {"",  "4",     "4(x3)",    "4(x2", "4(x0),1,1,1,1",
                                      "x", "0(x4)", "4(x2)1,1", "4(x9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(zn_slurm_parse_counts(bad[i], 4, counts), ZINC_E_CONFIG);
}

static void set(const char *name, const char *value)
{
    assert_int_equal(value ? setenv(name, value, 1) : unsetenv(name), 0);
}

static void assert_slots(int64_t n_ranks, int first, int second)
{
    zn_pool pool = {0};
    assert_ok(zn_slurm_pool(n_ranks, &pool));
    assert_int_equal(pool.n, 2);
    assert_string_equal(pool.hosts[1].name, "n2");
    assert_int_equal(pool.hosts[0].n_slots, first);
    assert_int_equal(pool.hosts[1].n_slots, second);
    zn_pool_fini(&pool);
}

static void an_allocation_gives_hosts_and_slots(void **state)
{
    (void)state;
    static const char *const names[] = {"SLURM_JOB_NODELIST", "SLURM_NODELIST",
                                        "SLURM_TASKS_PER_NODE", "SLURM_GPUS_ON_NODE",
                                        "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        set(names[i], NULL);
    zn_launch_options o = {.node_rank = -1};
    assert_false(zn_launch_in_allocation(&o));
    set("SLURM_JOB_NODELIST", "n[1-2]");
    assert_true(zn_launch_in_allocation(&o));
    assert_slots(0, 1, 1);
    set("SLURM_TASKS_PER_NODE", "3,1");
    assert_slots(0, 3, 1);
    assert_slots(5, 5, 5);
    set("SLURM_GPUS_ON_NODE", "8");
    assert_slots(0, 8, 8);
    set("SLURM_STEP_NUM_TASKS", "2");
    zn_pool pool = {0};
    assert_int_equal(zn_slurm_pool(0, &pool), ZINC_E_CONFIG);
    assert_non_null(strstr(zinc_last_error(), "srun has started 2 of this"));
    o.hostfile = "hosts";
    assert_false(zn_launch_in_allocation(&o));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        set(names[i], NULL);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(host_lists_are_expanded_in_order),
    cmocka_unit_test(lists_that_slurm_does_not_write_are_errors),
    cmocka_unit_test(counts_are_repeated),
    cmocka_unit_test(an_allocation_gives_hosts_and_slots),
};

ZN_TEST_MAIN(tests)
