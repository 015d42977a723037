/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt_test.h"

#include "ckpt/torch_file.h"
#include "ckpt/torch_zip.h"

static void put_le(zn_buf *buf, uint64_t x, int n)
{
    for (int i = 0; i < n; i++) {
        const unsigned char byte = (unsigned char)(i < 8 ? x >> (8 * i) : 0);
        assert_ok(zn_buf_append(buf, &byte, 1));
    }
}

typedef struct zip_options {
    int method, flags;
    bool zip64;
    uint64_t size_off_by, offset_off_by, directory_off_by;
} zip_options;

static void put_header(zn_buf *buf, const zip_options *o, const char *name, size_t n, bool central,
                       uint64_t offset)
{
    const uint64_t size = n + o->size_off_by;
    const uint64_t at = offset + o->offset_off_by;
    put_le(buf, central ? 0x02014b50u : 0x04034b50u, 4);
    put_le(buf, 20, central ? 4 : 2);
    put_le(buf, (uint64_t)o->flags, 2);
    put_le(buf, (uint64_t)o->method, 2);
    put_le(buf, 0, 8); /* time, crc */
    put_le(buf, o->zip64 ? UINT32_MAX : size, 4);
    put_le(buf, o->zip64 ? UINT32_MAX : size, 4);
    put_le(buf, strlen(name), 2);
    put_le(buf, o->zip64 && central ? 33 : 0, 2);
    if (central) {
        put_le(buf, 0, 10);
        put_le(buf, o->zip64 ? UINT32_MAX : at, 4);
    }
    assert_ok(zn_buf_puts(buf, name));
    if (o->zip64 && central) {
        put_le(buf, 7, 2); /* another field first */
        put_le(buf, 1, 2);
        put_le(buf, 0, 1);
        put_le(buf, 1, 2);
        put_le(buf, 24, 2);
        put_le(buf, size, 8);
        put_le(buf, size, 8);
        put_le(buf, at, 8);
    }
}

/* A zip of one entry "x/data.pkl". */
static void make_zip(zn_buf *buf, const zip_options *o, const char *content, size_t n)
{
    put_header(buf, o, "x/data.pkl", n, false, 0);
    assert_ok(zn_buf_append(buf, content, n));
    const uint64_t directory = buf->n + o->directory_off_by;
    const size_t start = buf->n;
    put_header(buf, o, "x/data.pkl", n, true, 0);
    const uint64_t n_directory = buf->n - start;
    if (o->zip64) {
        const uint64_t end64 = buf->n;
        put_le(buf, 0x06064b50u, 4);
        put_le(buf, 44, 8);
        put_le(buf, 0, 12);
        put_le(buf, 1, 8);
        put_le(buf, 1, 8);
        put_le(buf, n_directory, 8);
        put_le(buf, directory, 8);
        put_le(buf, 0x07064b50u, 4);
        put_le(buf, 0, 4);
        put_le(buf, end64, 8);
        put_le(buf, 1, 4);
    }
    put_le(buf, 0x06054b50u, 4);
    put_le(buf, 0, 4);
    put_le(buf, o->zip64 ? UINT16_MAX : 1, 2);
    put_le(buf, o->zip64 ? UINT16_MAX : 1, 2);
    put_le(buf, o->zip64 ? UINT32_MAX : n_directory, 4);
    put_le(buf, o->zip64 ? UINT32_MAX : directory, 4);
    put_le(buf, 0, 2);
}

static void entries_are_found_in_32_and_64_bit_archives(void **state)
{
    (void)state;
    for (int zip64 = 0; zip64 < 2; zip64++) {
        zn_buf buf = {0};
        zn_zip zip = {0};
        make_zip(&buf, &(zip_options){.zip64 = zip64}, "K\1.", 3);
        assert_ok(zn_zip_parse((unsigned char *)buf.data, buf.n, "x.pt", &zip));
        const zn_zip_entry *entry = zn_zip_find(&zip, "data.pkl", 8);
        assert_non_null(entry);
        assert_int_equal(entry->n_bytes, 3);
        assert_memory_equal(entry->data, "K\1.", 3);
        assert_null(zn_zip_find(&zip, "data", 4));
        zn_zip_fini(&zip);
        zn_buf_fini(&buf);
    }
}

static void archives_that_lie_are_refused(void **state)
{
    (void)state;
    static const struct {
        zip_options options;
        zinc_status status;
        const char *message;
    } cases[] = {
        {{.method = 8}, ZINC_E_UNSUPPORTED, "x/data.pkl is compressed"},
        {{.flags = 1}, ZINC_E_UNSUPPORTED, "x/data.pkl is encrypted"},
        {{.size_off_by = 1000}, ZINC_E_FORMAT, "reaches beyond the end"},
        {{.offset_off_by = 1}, ZINC_E_FORMAT, "does not start where"},
        {{.offset_off_by = 1000000}, ZINC_E_FORMAT, "does not start where"},
        {{.directory_off_by = 1000}, ZINC_E_FORMAT, "outside the file"},
        {{.directory_off_by = (uint64_t)0 - 1}, ZINC_E_FORMAT, "damaged at entry 0"},
        {{.zip64 = true, .size_off_by = UINT64_MAX - 8}, ZINC_E_FORMAT, "reaches beyond"},
        {{.zip64 = true, .offset_off_by = UINT64_MAX - 8}, ZINC_E_FORMAT, "does not start"},
        {{.zip64 = true, .directory_off_by = UINT64_MAX - 99}, ZINC_E_FORMAT, "outside"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zn_buf buf = {0};
        zn_zip zip = {0};
        make_zip(&buf, &cases[i].options, "K\1.", 3);
        assert_fails(zn_zip_parse((unsigned char *)buf.data, buf.n, "x.pt", &zip), cases[i].status,
                     cases[i].message);
        zn_buf_fini(&buf);
    }
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    zn_buf buf = {0};
    make_zip(&buf, &(zip_options){.zip64 = true}, "K\1.", 3);
    for (size_t n = 0; n < buf.n; n++) {
        zn_zip zip = {0};
        assert_fails(zn_zip_parse((unsigned char *)buf.data, n, "x.pt", &zip), ZINC_E_FORMAT,
                     "x.pt");
    }
    zn_buf_fini(&buf);
}

static void a_torch_file_gives_its_pickle(void **state)
{
    zn_buf buf = {0};
    zn_torch_file *file = NULL;
    make_zip(&buf, &(zip_options){0}, "K\1.", 3);
    put_file(at(state, "x.pt"), buf.data, buf.n);
    assert_ok(zn_torch_open(at(state, "x.pt"), &file));
    assert_int_equal(zn_torch_root(file)->u.integer, 1);
    zn_torch_close(file);
    put_file(at(state, "x.pt"), "\x80\2K\1.", 5); /* what torch.save wrote before 1.6 */
    assert_fails(zn_torch_open(at(state, "x.pt"), &file), ZINC_E_FORMAT, "not a zip file");
    assert_fails(zn_torch_open(at(state, "gone.pt"), &file), ZINC_E_IO, "gone.pt");
    zn_buf_fini(&buf);
}

static const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    TEST(entries_are_found_in_32_and_64_bit_archives),
    TEST(archives_that_lie_are_refused),
    TEST(every_truncation_is_refused),
    TEST(a_torch_file_gives_its_pickle),
};

ZN_TEST_MAIN(tests)
