/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/torch_zip.h"

#include <stdlib.h>
#include <string.h>

#define END_BYTES 22
#define END64_LOCATOR_BYTES 20
#define END64_BYTES 56
#define CENTRAL_BYTES 46
#define LOCAL_BYTES 30
#define MAX_COMMENT_BYTES 65535

#define END_SIGNATURE 0x06054b50u
#define END64_LOCATOR_SIGNATURE 0x07064b50u
#define END64_SIGNATURE 0x06064b50u
#define CENTRAL_SIGNATURE 0x02014b50u
#define LOCAL_SIGNATURE 0x04034b50u

typedef struct zip_source {
    const unsigned char *bytes;
    size_t n_bytes;
    const char *where;
} zip_source;

static uint64_t load_le(const unsigned char *p, int n)
{
    uint64_t x = 0;
    while (n-- > 0)
        x = x << 8 | p[n];
    return x;
}

/* Whether [offset, offset + n) lies in the file. */
static bool inside(const zip_source *src, uint64_t offset, uint64_t n)
{
    return offset <= src->n_bytes && n <= src->n_bytes - offset;
}

static zinc_status find_end(const zip_source *src, size_t *out)
{
    const size_t lowest = src->n_bytes > END_BYTES + MAX_COMMENT_BYTES
                              ? src->n_bytes - END_BYTES - MAX_COMMENT_BYTES
                              : 0;
    for (size_t at = src->n_bytes < END_BYTES ? 0 : src->n_bytes - END_BYTES + 1; at > lowest;) {
        at--;
        const unsigned char *p = src->bytes + at;
        if (load_le(p, 4) == END_SIGNATURE && at + END_BYTES + load_le(p + 20, 2) == src->n_bytes) {
            *out = at;
            return ZINC_OK;
        }
    }
    ZN_FAIL(ZINC_E_FORMAT,
            "%s: not a zip file as torch.save writes it, or truncated: its directory is missing",
            src->where);
}

/* Where the directory starts, its bytes and its number of entries; the 64-bit record wins. */
static zinc_status find_directory(const zip_source *src, uint64_t *offset, uint64_t *n_bytes,
                                  uint64_t *n_entries)
{
    size_t end = 0;
    ZN_TRY(find_end(src, &end));
    const unsigned char *p = src->bytes + end;
    *n_entries = load_le(p + 10, 2);
    *n_bytes = load_le(p + 12, 4);
    *offset = load_le(p + 16, 4);
    if (end >= END64_LOCATOR_BYTES &&
        load_le(p - END64_LOCATOR_BYTES, 4) == END64_LOCATOR_SIGNATURE) {
        const uint64_t at = load_le(p - END64_LOCATOR_BYTES + 8, 8);
        if (!inside(src, at, END64_BYTES) || load_le(src->bytes + at, 4) != END64_SIGNATURE)
            ZN_FAIL(ZINC_E_FORMAT, "%s: the zip64 directory record is not where it should be",
                    src->where);
        *n_entries = load_le(src->bytes + at + 32, 8);
        *n_bytes = load_le(src->bytes + at + 40, 8);
        *offset = load_le(src->bytes + at + 48, 8);
    }
    if (!inside(src, *offset, *n_bytes) || *n_entries > *n_bytes / CENTRAL_BYTES)
        ZN_FAIL(ZINC_E_FORMAT, "%s: the zip directory lies outside the file, which is damaged",
                src->where);
    return ZINC_OK;
}

/* Sizes and offset that do not fit 32 bits are in extra field 1, in this order. */
static void read_zip64_extra(const unsigned char *extra, size_t n, uint64_t *size, uint64_t *packed,
                             uint64_t *offset)
{
    while (n >= 4) {
        const size_t n_field = (size_t)load_le(extra + 2, 2);
        if (n_field > n - 4)
            return;
        if (load_le(extra, 2) == 1) {
            uint64_t *const wanted[] = {size, packed, offset};
            size_t used = 0;
            for (int i = 0; i < 3; i++) {
                if (*wanted[i] != UINT32_MAX || n_field - used < 8)
                    continue;
                *wanted[i] = load_le(extra + 4 + used, 8);
                used += 8;
            }
            return;
        }
        extra += 4 + n_field;
        n -= 4 + n_field;
    }
}

static zinc_status read_entry(const zip_source *src, const unsigned char *p, size_t n_name,
                              size_t n_extra, zn_zip_entry *entry)
{
    uint64_t packed = load_le(p + 20, 4);
    uint64_t size = load_le(p + 24, 4);
    uint64_t offset = load_le(p + 42, 4);
    const char *name = (const char *)p + CENTRAL_BYTES;
    read_zip64_extra(p + CENTRAL_BYTES + n_name, n_extra, &size, &packed, &offset);
    if (load_le(p + 10, 2) != 0 || packed != size)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: entry %.*s is compressed, which torch.save never does",
                src->where, (int)n_name, name);
    if (load_le(p + 8, 2) & 1)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%s: entry %.*s is encrypted", src->where, (int)n_name, name);
    if (!inside(src, offset, LOCAL_BYTES) || load_le(src->bytes + offset, 4) != LOCAL_SIGNATURE)
        ZN_FAIL(ZINC_E_FORMAT, "%s: entry %.*s does not start where the directory says", src->where,
                (int)n_name, name);
    const unsigned char *local = src->bytes + offset;
    const uint64_t data = offset + LOCAL_BYTES + load_le(local + 26, 2) + load_le(local + 28, 2);
    if (!inside(src, data, size))
        ZN_FAIL(ZINC_E_FORMAT, "%s: entry %.*s reaches beyond the end of the file", src->where,
                (int)n_name, name);
    const char *slash = memchr(name, '/', n_name);
    entry->name = slash ? slash + 1 : name;
    entry->n_name = n_name - (size_t)(entry->name - name);
    entry->data = src->bytes + data;
    entry->n_bytes = (size_t)size;
    return ZINC_OK;
}

static int compare_names(const char *a, size_t n_a, const char *b, size_t n_b)
{
    const int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return order != 0 ? order : (n_a > n_b) - (n_a < n_b);
}

static int by_name(const void *a, const void *b)
{
    const zn_zip_entry *const x = a;
    const zn_zip_entry *const y = b;
    return compare_names(x->name, x->n_name, y->name, y->n_name);
}

static zinc_status read_directory(const zip_source *src, uint64_t offset, uint64_t n_bytes,
                                  zn_zip *zip, uint64_t n_entries)
{
    const unsigned char *p = src->bytes + offset;
    const unsigned char *const end = p + n_bytes;
    for (; zip->n_entries < n_entries; zip->n_entries++) {
        if (end - p < CENTRAL_BYTES || load_le(p, 4) != CENTRAL_SIGNATURE)
            ZN_FAIL(ZINC_E_FORMAT, "%s: the zip directory is damaged at entry %zu", src->where,
                    zip->n_entries);
        const size_t n_name = (size_t)load_le(p + 28, 2);
        const size_t n_extra = (size_t)load_le(p + 30, 2);
        const size_t n_all = CENTRAL_BYTES + n_name + n_extra + (size_t)load_le(p + 32, 2);
        if ((size_t)(end - p) < n_all)
            ZN_FAIL(ZINC_E_FORMAT, "%s: the zip directory is damaged at entry %zu", src->where,
                    zip->n_entries);
        ZN_TRY(read_entry(src, p, n_name, n_extra, &zip->entries[zip->n_entries]));
        p += n_all;
    }
    return ZINC_OK;
}

zinc_status zn_zip_parse(const unsigned char *bytes, size_t n_bytes, const char *where, zn_zip *out)
{
    zinc_status status;
    const zip_source src = {bytes, n_bytes, where};
    zn_zip zip = {0};
    uint64_t offset = 0;
    uint64_t n_directory = 0;
    uint64_t n_entries = 0;
    ZN_TRY(find_directory(&src, &offset, &n_directory, &n_entries));
    ZN_TRY(zn_alloc_array(&zip.entries, (size_t)n_entries, sizeof *zip.entries, "zip directory"));
    ZN_TRY_GOTO(read_directory(&src, offset, n_directory, &zip, n_entries));
    qsort(zip.entries, zip.n_entries, sizeof *zip.entries, by_name);
    *out = zip;
    return ZINC_OK;
fail:
    zn_zip_fini(&zip);
    return status;
}

const zn_zip_entry *zn_zip_find(const zn_zip *zip, const char *name, size_t n)
{
    const zn_zip_entry key = {.name = name, .n_name = n};
    if (zip->n_entries == 0)
        return NULL;
    return bsearch(&key, zip->entries, zip->n_entries, sizeof key, by_name);
}

void zn_zip_fini(zn_zip *zip)
{
    zn_free(zip->entries);
    memset(zip, 0, sizeof *zip);
}
