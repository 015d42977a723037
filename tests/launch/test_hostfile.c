/* SPDX-License-Identifier: Apache-2.0 */
/* Hostfiles and filters: DeepSpeed's recorded answers, and messages that name the place. */
#include "zn_test.h"

#include "base/json.h"
#include "launch/launch_internal.h"

static zinc_status parse(const char *text, zn_pool *pool)
{
    return zn_hostfile_parse(text, strlen(text), "hosts", pool);
}

static int int_at(const json_t *object, const char *key)
{
    return (int)json_integer_value(json_object_get(object, key));
}

static const char *text_at(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* `hosts` is [[name, count or list of slots], …]; hosts without slots are in neither. */
static void assert_pool(const zn_pool *pool, const json_t *hosts)
{
    int n = 0;
    for (size_t i = 0; i < json_array_size(hosts); i++) {
        const json_t *row = json_array_get(hosts, i), *slots = json_array_get(row, 1);
        const int n_slots =
            json_is_array(slots) ? (int)json_array_size(slots) : (int)json_integer_value(slots);
        if (n_slots == 0)
            continue;
        assert_true(n < pool->n);
        assert_string_equal(pool->hosts[n].name, json_string_value(json_array_get(row, 0)));
        assert_int_equal(pool->hosts[n].n_slots, n_slots);
        for (int k = 0; k < n_slots; k++)
            assert_int_equal(
                pool->hosts[n].slots[k],
                json_is_array(slots) ? json_integer_value(json_array_get(slots, (size_t)k)) : k);
        n++;
    }
    assert_int_equal(pool->n, n);
}

static void add_pool(const json_t *rows, zn_pool *pool)
{
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *name = json_string_value(json_array_get(row, 0));
        assert_ok(zn_pool_add(pool, name, strlen(name),
                              (int)json_integer_value(json_array_get(row, 1)), NULL));
    }
}

static int load(void **state)
{
    json_t *cases = NULL;
    if (zn_json_load(ZN_TEST_DATA "/launch/cases.json", &cases) != ZINC_OK)
        return -1;
    *state = cases;
    return 0;
}

static int unload(void **state)
{
    json_decref(*state);
    return 0;
}

static void hostfiles_are_read_as_deepspeed_reads_them(void **state)
{
    const json_t *rows = json_object_get(*state, "parse");
    assert_int_equal(json_array_size(rows), 23);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        zn_pool pool = {0};
        const zinc_status status = parse(text_at(row, "text"), &pool);
        if (json_is_true(json_object_get(row, "ok"))) {
            assert_int_equal(status, ZINC_OK);
            assert_ok(zn_pool_filter(&pool, NULL, NULL));
            assert_pool(&pool, json_object_get(row, "hosts"));
        } else {
            assert_int_equal(status, ZINC_E_CONFIG);
            assert_non_null(strstr(zinc_last_error(), "hosts:"));
        }
        zn_pool_fini(&pool);
    }
}

static void filters_choose_as_deepspeed_does(void **state)
{
    const json_t *rows = json_object_get(*state, "filter");
    assert_int_equal(json_array_size(rows), 24);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        zn_pool pool = {0};
        add_pool(json_object_get(*state, "filter_pool"), &pool);
        const zinc_status status =
            zn_pool_filter(&pool, text_at(row, "include"), text_at(row, "exclude"));
        if (json_is_true(json_object_get(row, "ok"))) {
            assert_int_equal(status, ZINC_OK);
            assert_pool(&pool, json_object_get(row, "active"));
        } else {
            assert_int_equal(status, ZINC_E_INVALID);
        }
        zn_pool_fini(&pool);
    }
}

static void counts_trim_as_deepspeed_does_but_never_above_the_slots(void **state)
{
    const json_t *rows = json_object_get(*state, "trim");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        zn_pool pool = {0};
        add_pool(json_object_get(*state, "filter_pool"), &pool);
        const int nodes = int_at(row, "num_nodes"), ranks = int_at(row, "num_gpus");
        if (json_object_get(row, "refused")) {
            assert_fails(zn_pool_trim(&pool, nodes, ranks), ZINC_E_CONFIG,
                         "host worker-0 has 4 slots");
        } else {
            assert_ok(zn_pool_trim(&pool, nodes, ranks));
            assert_pool(&pool, json_object_get(row, "active"));
        }
        zn_pool_fini(&pool);
    }
}

static void a_bad_line_is_named_with_line_and_column(void **state)
{
    (void)state;
    zn_pool pool = {0};
    assert_fails(parse("a slots=1\n\n  b lods=8\n", &pool), ZINC_E_CONFIG,
                 "hosts:3:5: expected slots= in \"b lods=8\"");
    assert_fails(parse("a slots=1\r\nb\r\n", &pool), ZINC_E_CONFIG, "hosts:2:2: slots= is missing");
    assert_fails(parse("a slots=-1\n", &pool), ZINC_E_CONFIG, "hosts:1:9: expected the number");
    assert_fails(parse("a slots=1\nb slots=2\na slots=3\n", &pool), ZINC_E_CONFIG,
                 "hosts:3:1: this host has a line already");
    assert_fails(parse("a slots=99999999999999999999\n", &pool), ZINC_E_CONFIG, "65536");
    assert_fails(zn_hostfile_parse("a\0b slots=1", 11, "hosts", &pool), ZINC_E_CONFIG,
                 "hosts:1: a NUL byte");
    assert_fails(parse("# nothing\n", &pool), ZINC_E_CONFIG, "NAME slots=N");
    assert_fails(parse("-oProxyCommand=x slots=1\n", &pool), ZINC_E_CONFIG,
                 "hosts:1:1: a host's name");
    assert_null(pool.hosts);
}

static void a_byte_order_mark_is_no_part_of_a_name(void **state)
{
    (void)state;
    zn_pool pool = {0};
    assert_ok(parse("\xef\xbb\xbf"
                    "a slots=2\r\n",
                    &pool));
    assert_int_equal(pool.n, 1);
    assert_string_equal(pool.hosts[0].name, "a");
    zn_pool_fini(&pool);
}

static void a_filter_takes_ranges_and_names_with_at_signs(void **state)
{
    (void)state;
    zn_pool pool = {0};
    assert_ok(parse("me@h1 slots=4\nfe80::1 slots=2\nh2 slots=2\n", &pool));
    assert_ok(zn_pool_filter(&pool, "me@h1:1-3@fe80::1:0@h2", NULL));
    assert_int_equal(pool.n, 3);
    assert_int_equal(pool.hosts[0].n_slots, 3);
    assert_int_equal(pool.hosts[0].slots[0], 1);
    assert_int_equal(pool.hosts[1].n_slots, 1);
    assert_int_equal(pool.hosts[2].n_slots, 2);
    assert_fails(zn_pool_filter(&pool, "h3", NULL), ZINC_E_INVALID,
                 "no host \"h3\"; there are me@h1, fe80::1, h2");
    assert_fails(zn_pool_filter(&pool, NULL, "h2:5"), ZINC_E_INVALID,
                 "no slot 5 on host h2; it has 0,1");
    zn_pool_fini(&pool);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    zinc_status status = ZINC_E_NOMEM;
    for (int i = 0; status != ZINC_OK; i++) {
        zn_pool pool = {0};
        zn_mem_fail_after(i);
        status = parse("a slots=2\nb slots=3\n", &pool);
        if (status == ZINC_OK)
            status = zn_pool_filter(&pool, "a:1@b", NULL);
        zn_mem_fail_after(-1);
        assert_true(status == ZINC_OK || status == ZINC_E_NOMEM);
        zn_pool_fini(&pool);
        assert_true(i < 100);
    }
}

static void lists_of_cores_are_sorted_and_checked(void **state)
{
    (void)state;
    int *list = NULL, n = 0;
    assert_ok(zn_parse_core_list("6,2-4,3", &list, &n));
    const int want[] = {2, 3, 4, 6};
    assert_int_equal(n, 4);
    assert_memory_equal(list, want, sizeof want);
    zn_free(list);
    const char *const bad[] = {"", "a", "1-", "4-2", "1,,2", "-1", "1,2,", "999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(zn_parse_core_list(bad[i], &list, &n), ZINC_E_INVALID, "no list of numbers");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(hostfiles_are_read_as_deepspeed_reads_them, load, unload),
    cmocka_unit_test_setup_teardown(filters_choose_as_deepspeed_does, load, unload),
    cmocka_unit_test_setup_teardown(counts_trim_as_deepspeed_does_but_never_above_the_slots, load,
                                    unload),
    cmocka_unit_test(a_bad_line_is_named_with_line_and_column),
    cmocka_unit_test(a_byte_order_mark_is_no_part_of_a_name),
    cmocka_unit_test(a_filter_takes_ranges_and_names_with_at_signs),
    cmocka_unit_test(every_allocation_may_fail),
    cmocka_unit_test(lists_of_cores_are_sorted_and_checked),
};

ZN_TEST_MAIN(tests)
