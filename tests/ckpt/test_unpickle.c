/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt_test.h"

#include "ckpt/unpickle.h"

static const unsigned char storage_bytes[16] = {0, 0, 0x80, 0x3f, 0, 0, 0,    0x40,
                                                0, 0, 0x40, 0x40, 0, 0, 0x80, 0x40};

/* One storage, "0", of 1, 2, 3, 4 as F32. */
static zinc_status give_storage(void *ctx, const char *key, size_t n_key,
                                const unsigned char **data, size_t *n_bytes)
{
    (*(int *)ctx)++;
    if (n_key != 1 || *key != '0')
        ZN_FAIL(ZINC_E_FORMAT, "x.pkl: no such storage");
    *data = storage_bytes;
    *n_bytes = sizeof storage_bytes;
    return ZINC_OK;
}

static zinc_status parse(const char *bytes, size_t n, zn_pickle **out)
{
    int calls = 0;
    return zn_pickle_parse((const unsigned char *)bytes, n, "x.pkl", give_storage, &calls, out);
}

#define STORAGE(key, n)                                                                            \
    "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" key "X\3\0\0\0cpuK" n "tQ"
#define REBUILD "ctorch._utils\n_rebuild_tensor_v2\n"

static void plain_values_are_built(void **state)
{
    (void)state;
    static const char bytes[] = "\x80\2}q\0(X\1\0\0\0aK\7X\1\0\0\0bJ\xff\xff\xff\xffX\1\0\0\0c\x88"
                                "X\1\0\0\0dG\x40\x09\x21\xfb\x54\x44\x2d\x18X\1\0\0\0e]q\1(K\1NeX\1"
                                "\0\0\0f\x8a\2\0\xffX\1\0\0\0gM\1\2X\1\0\0\0h)u.";
    zn_pickle *pickle = NULL;
    assert_ok(parse(bytes, sizeof bytes - 1, &pickle));
    const zn_pickle_value *root = zn_pickle_root(pickle);
    assert_int_equal(zn_pickle_get(root, "a")->u.integer, 7);
    assert_int_equal(zn_pickle_get(root, "b")->u.integer, -1);
    assert_int_equal(zn_pickle_get(root, "c")->kind, ZN_PICKLE_BOOL);
    assert_true(zn_pickle_get(root, "d")->u.real == 0x1.921fb54442d18p1);
    assert_int_equal(zn_pickle_get(root, "e")->u.seq.n, 2);
    assert_int_equal(zn_pickle_get(root, "e")->u.seq.items[1]->kind, ZN_PICKLE_NONE);
    assert_int_equal(zn_pickle_get(root, "f")->u.integer, -256);
    assert_int_equal(zn_pickle_get(root, "g")->u.integer, 513);
    assert_int_equal(zn_pickle_get(root, "h")->kind, ZN_PICKLE_TUPLE);
    assert_null(zn_pickle_get(root, "i"));
    zn_pickle_destroy(pickle);
}

static void tensors_point_into_their_storage(void **state)
{
    (void)state;
    static const char bytes[] =
        "\x80\2" REBUILD "(" STORAGE("0", "\4") "K\1K\3K\1\x86K\1K\1\x86\x89)tR.";
    zn_pickle *pickle = NULL;
    assert_ok(parse(bytes, sizeof bytes - 1, &pickle));
    const zn_pickle_value *tensor = zn_pickle_root(pickle);
    assert_int_equal(tensor->kind, ZN_PICKLE_TENSOR);
    assert_int_equal(tensor->u.tensor.n_dims, 2);
    assert_int_equal(tensor->u.tensor.shape[0], 3);
    assert_ptr_equal(tensor->u.tensor.data, storage_bytes + 4);
    zn_pickle_destroy(pickle);
}

static void a_call_of_an_unknown_global_is_an_opaque_object(void **state)
{
    (void)state;
    zn_pickle *pickle = NULL;
    static const char exact[] = "\x80\2cargparse\nNamespace\nK\1\x85R.";
    assert_ok(parse(exact, sizeof exact - 1, &pickle));
    const zn_pickle_value *root = zn_pickle_root(pickle);
    assert_int_equal(root->kind, ZN_PICKLE_OPAQUE);
    assert_true(zn_pickle_is_global(root->u.opaque.callable, "argparse", "Namespace"));
    zn_pickle_destroy(pickle);
}

static void a_call_that_only_an_attack_has_is_refused_and_not_made(void **state)
{
    static const char *const calls[] = {
        "os\nsystem",           "posix\nsystem",  "nt\nsystem",
        "subprocess\nPopen",    "builtins\neval", "builtins\nexec",
        "__builtin__\ngetattr", "os.path\njoin",  "runpy\nrun_path"};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof calls / sizeof calls[0]; i++) {
        char bytes[200];
        zn_pickle *pickle = NULL;
        /* by REDUCE and by NEWOBJ */
        const int n =
            snprintf(bytes, sizeof bytes, "\x80\2c%s\nX%c%c%c%ctouch /tmp/zinc-pwned\x85%c.",
                     calls[i / 2], 0x15, 0, 0, 0, i % 2 ? 'R' : '\x81');
        assert_fails(parse(bytes, (size_t)n, &pickle), ZINC_E_FORMAT, "which no checkpoint needs");
        assert_false(zn_fs_exists("/tmp/zinc-pwned"));
    }
}

static void opaque_objects_keep_their_attributes_and_no_items(void **state)
{
    (void)state;
    static const char bytes[] = "\x80\2cm\nD\n)\x81q\0(K\1K\2u}X\1\0\0\0cK\7sbX\1\0\0\0aK\3s.";
    zn_pickle *pickle = NULL;
    assert_ok(parse(bytes, sizeof bytes - 1, &pickle));
    const zn_pickle_value *root = zn_pickle_root(pickle);
    assert_int_equal(root->kind, ZN_PICKLE_OPAQUE);
    assert_int_equal(zn_pickle_attribute(root, "c")->u.integer, 7);
    assert_null(zn_pickle_attribute(root, "a"));
    zn_pickle_destroy(pickle);
}

static void damaged_and_hostile_pickles_are_refused(void **state)
{
    (void)state;
#define P(text) text, sizeof text - 1
    static const struct {
        const char *bytes;
        size_t n;
        zinc_status status;
        const char *message;
    } cases[] = {
        {P(""), ZINC_E_FORMAT, "ends too early"},
        {P("\x80"), ZINC_E_FORMAT, "ends too early"},
        {P("\x80\5."), ZINC_E_UNSUPPORTED, "protocol 5"},
        {P("."), ZINC_E_FORMAT, "the stack is empty"},
        {P("K\1"), ZINC_E_FORMAT, "ends too early"},
        {P("X\xff\xff\xff\xff"
           "ab."),
         ZINC_E_FORMAT, "ends too early"},
        {P("\x8b\xff\xff\xff\x7f."), ZINC_E_FORMAT, "ends too early"},
        {P("cos\nsystem"), ZINC_E_FORMAT, "ends too early"},
        {P("i os\nsystem\n."), ZINC_E_UNSUPPORTED, "opcode 0x69"},
        {P("P1\n."), ZINC_E_UNSUPPORTED, "opcode 0x50"},
        {P("(K\1"), ZINC_E_FORMAT, "ends too early"},
        {P("t."), ZINC_E_FORMAT, "no mark"},
        {P("K\1(e."), ZINC_E_FORMAT, "no list"},
        {P("(e."), ZINC_E_FORMAT, "nothing to add to"},
        {P("}(K\1u."), ZINC_E_FORMAT, "a key without a value"},
        {P("](K\1K\2u."), ZINC_E_FORMAT, "no dict"},
        {P("](K\1s."), ZINC_E_FORMAT, "nothing to add to"},
        {P("\x85."), ZINC_E_FORMAT, "the stack is empty"},
        {P("(\x85."), ZINC_E_FORMAT, "the stack is empty"},
        {P("q\0."), ZINC_E_FORMAT, "the stack is empty"},
        {P("Nr\xff\xff\xff\x7f."), ZINC_E_FORMAT, "memo index out of order"},
        {P("h\0."), ZINC_E_FORMAT, "never set"},
        {P("K\1)R."), ZINC_E_FORMAT, "no class or function"},
        {P("ca\nb\nK\1R."), ZINC_E_FORMAT, "no tuple"},
        {P("NQ."), ZINC_E_FORMAT, "no tensor storage"},
        {P(STORAGE("1", "\4") "."), ZINC_E_FORMAT, "no such storage"},
        {P(STORAGE("0", "\5") "."), ZINC_E_FORMAT, "5 elements"},
        {P(REBUILD ")R."), ZINC_E_FORMAT, "has no storage"},
        {P(REBUILD "(" STORAGE("0", "\4") "K\1K\4\x85K\1\x85tR."), ZINC_E_FORMAT, "outside"},
        {P(REBUILD "(" STORAGE("0", "\4") "K\5K\0\x85K\1\x85tR."), ZINC_E_FORMAT, "outside"},
        {P(REBUILD "(" STORAGE("0", "\4") "K\0K\3\x85K\2\x85tR."), ZINC_E_FORMAT, "outside"},
        {P(REBUILD "(" STORAGE("0", "\4") "J\xff\xff\xff\xffK\1\x85K\1\x85tR."), ZINC_E_FORMAT,
         "outside"},
        {P(REBUILD "(" STORAGE("0", "\4") "K\0J\xff\xff\xff\xff\x85K\1\x85tR."), ZINC_E_FORMAT,
         "no count"},
        {P(REBUILD "(" STORAGE("0", "\4") "K\0K\2\x85)tR."), ZINC_E_FORMAT, "other strides"},
        {P(REBUILD "(" STORAGE("0", "\4") "K\0\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85K\1\x85"
                                          "tR."),
         ZINC_E_FORMAT, "too large"},
        {P("ccollections\nOrderedDict\n]K\1a\x85R."), ZINC_E_FORMAT, "than pairs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zn_pickle *pickle = NULL;
        if (parse(cases[i].bytes, cases[i].n, &pickle) == ZINC_OK)
            fail_msg("case %zu is accepted, want \"%s\"", i, cases[i].message);
        assert_fails(parse(cases[i].bytes, cases[i].n, &pickle), cases[i].status, cases[i].message);
        assert_non_null(strstr(zinc_last_error(), "x.pkl"));
    }
}

static void deep_nests_are_refused_and_do_not_recurse(void **state)
{
    (void)state;
    enum { N = 1200000 };
    char *bytes = NULL;
    zn_pickle *pickle = NULL;
    assert_ok(zn_alloc(&bytes, N, "bytes"));
    memset(bytes, '(', N);
    assert_fails(parse(bytes, N, &pickle), ZINC_E_FORMAT, "nests deeper");
    memset(bytes, ']', N);
    assert_fails(parse(bytes, N, &pickle), ZINC_E_FORMAT, "stacks more");
    memset(bytes, 0x85, N); /* a tuple of a tuple of a tuple … */
    bytes[0] = 'N';
    bytes[N - 1] = '.';
    assert_ok(parse(bytes, N, &pickle));
    zn_pickle_destroy(pickle);
    zn_free(bytes);
}

static void a_list_that_contains_itself_is_harmless(void **state)
{
    (void)state;
    static const char bytes[] = "\x80\2]q\0h\0a.";
    zn_pickle *pickle = NULL;
    assert_ok(parse(bytes, sizeof bytes - 1, &pickle));
    const zn_pickle_value *root = zn_pickle_root(pickle);
    assert_ptr_equal(root->u.seq.items[0], root);
    zn_pickle_destroy(pickle);
}

static void views_that_are_not_row_major_have_no_data(void **state)
{
    (void)state;
    static const char bytes[] =
        "\x80\2" REBUILD "(" STORAGE("0", "\4") "K\0K\2K\2\x86K\1K\2\x86\x89)tR.";
    zn_pickle *pickle = NULL;
    assert_ok(parse(bytes, sizeof bytes - 1, &pickle));
    assert_null(zn_pickle_root(pickle)->u.tensor.data);
    zn_pickle_destroy(pickle);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(plain_values_are_built),
    cmocka_unit_test(tensors_point_into_their_storage),
    cmocka_unit_test(a_call_of_an_unknown_global_is_an_opaque_object),
    cmocka_unit_test(a_call_that_only_an_attack_has_is_refused_and_not_made),
    cmocka_unit_test(opaque_objects_keep_their_attributes_and_no_items),
    cmocka_unit_test(damaged_and_hostile_pickles_are_refused),
    cmocka_unit_test(deep_nests_are_refused_and_do_not_recurse),
    cmocka_unit_test(a_list_that_contains_itself_is_harmless),
    cmocka_unit_test(views_that_are_not_row_major_have_no_data),
};

ZN_TEST_MAIN(tests)
