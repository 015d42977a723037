/* SPDX-License-Identifier: Apache-2.0 */
#include "config_test.h"

#include "base/fs.h"

static void docs_config_md_is_what_the_key_table_says(void **state)
{
    (void)state;
    zn_buf table = {0}, file = {0};
    assert_ok(zn_config_append_doc(&table));
    assert_ok(zn_fs_read(ZN_TEST_DATA "/../../docs/config.md", 0, &file));
    if (strcmp(table.data, file.data) != 0)
        fail_msg("docs/config.md is not up to date: run tools/gen_config_doc.sh");
    zn_buf_fini(&table);
    zn_buf_fini(&file);
}

static void every_row_of_the_table_is_documented_and_unique(void **state)
{
    (void)state;
    assert_true(zn_config_n_keys() > 200);
    for (int i = 0; i < zn_config_n_keys(); i++) {
        zn_config_key_info a, b;
        zn_config_key(i, &a);
        assert_non_null(a.doc);
        assert_true(*a.doc);
        for (int k = 0; k < i; k++) {
            zn_config_key(k, &b);
            assert_string_not_equal(a.path, b.path);
        }
    }
}

static void the_block_of_every_key_stands_before_it(void **state)
{
    (void)state;
    for (int i = 0; i < zn_config_n_keys(); i++) {
        zn_config_key_info key, block;
        bool found = false;
        zn_config_key(i, &key);
        const char *dot = strrchr(key.path, '.');
        for (int k = 0; dot && k < i && !found; k++) {
            zn_config_key(k, &block);
            found = strlen(block.path) == (size_t)(dot - key.path) &&
                    memcmp(block.path, key.path, (size_t)(dot - key.path)) == 0 &&
                    strcmp(block.type, "block") == 0;
        }
        if (dot && !found)
            fail_msg("no block before %s", key.path);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(docs_config_md_is_what_the_key_table_says),
    cmocka_unit_test(every_row_of_the_table_is_documented_and_unique),
    cmocka_unit_test(the_block_of_every_key_stands_before_it),
};

ZN_TEST_MAIN(tests)
