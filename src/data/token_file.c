/* SPDX-License-Identifier: Apache-2.0 */
/* .bin: "ZINCTOK1", uint32 bytes per token (2 or 4), uint32 0, then the ids; little-endian. */
#include <string.h>

#include "base/fs.h"
#include "data/dataset_internal.h"

#define MAGIC "ZINCTOK1"
#define HEADER_BYTES 16u

static uint32_t get_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static zinc_status check_header(const char *path, const zn_map *map)
{
    if (map->n_bytes < HEADER_BYTES || memcmp(map->data, MAGIC, 8) != 0)
        ZN_FAIL(ZINC_E_FORMAT,
                "%s: not a token file: it must begin with the 16-byte header " MAGIC
                " (build one with: zinc tokenize --tokenizer F --output F.bin TEXT…)",
                path);
    const uint32_t bytes = get_u32(map->data + 8), reserved = get_u32(map->data + 12);
    if (bytes != 2 && bytes != 4)
        ZN_FAIL(ZINC_E_FORMAT, "%s: bytes per token must be 2 or 4 in the header, not %u", path,
                bytes);
    if (reserved != 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s: the reserved field of the header must be 0, not %u", path,
                reserved);
    const size_t n_bytes = map->n_bytes - HEADER_BYTES;
    if (n_bytes % bytes != 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s: %zu bytes of ids are not a multiple of %u: the file is cut off",
                path, n_bytes, bytes);
    if (n_bytes == 0)
        ZN_FAIL(ZINC_E_FORMAT, "%s: there is nothing in it", path);
    return ZINC_OK;
}

zinc_status zn_token_file_open(const char *path, zn_token_file *out)
{
    zn_map map = {0};
    ZN_TRY(zn_map_open(path, &map));
    const zinc_status status = check_header(path, &map);
    if (status != ZINC_OK) {
        zn_map_close(&map);
        return status;
    }
    const int bytes = (int)get_u32(map.data + 8);
    *out = (zn_token_file){.data = map.data + HEADER_BYTES,
                           .n = (int64_t)((map.n_bytes - HEADER_BYTES) / (size_t)bytes),
                           .bytes_per_token = bytes,
                           .map = map.data,
                           .n_map = map.n_bytes};
    return ZINC_OK;
}

void zn_token_file_close(zn_token_file *file)
{
    zn_map map = {.data = file->map, .n_bytes = file->n_map};
    zn_map_close(&map);
    memset(file, 0, sizeof *file);
}

uint32_t zn_token_file_get(const zn_token_file *file, int64_t i)
{
    const unsigned char *p = file->data + i * file->bytes_per_token;
    return file->bytes_per_token == 2 ? (uint32_t)p[0] | (uint32_t)p[1] << 8 : get_u32(p);
}

typedef struct builder {
    const zn_tokenizer *tokenizer;
    int32_t eos_id;
    size_t bytes; /* per token */
    zn_ids ids;   /* of one document */
    zn_buf out;
    int64_t n;
} builder;

static zinc_status put(builder *b, uint32_t value, size_t bytes)
{
    const unsigned char le[4] = {(unsigned char)value, (unsigned char)(value >> 8),
                                 (unsigned char)(value >> 16), (unsigned char)(value >> 24)};
    return zn_buf_append(&b->out, le, bytes);
}

static zinc_status add_document(void *context, const zn_document *document)
{
    builder *b = context;
    if (!document->text)
        ZN_FAIL(ZINC_E_UNSUPPORTED,
                "%s: a token file holds plain text only; give rows with \"prompt\" or "
                "\"input_ids\" to training as .jsonl",
                document->where);
    b->ids.n = 0;
    const zinc_status status =
        zn_document_encode(b->tokenizer, document->text, document->n_text, b->eos_id, &b->ids);
    if (status != ZINC_OK) {
        zn_error_prefix("%s: ", document->where);
        return status;
    }
    for (int64_t i = 0; i < b->ids.n; i++)
        ZN_TRY(put(b, (uint32_t)b->ids.ids[i], b->bytes));
    b->n += b->ids.n;
    return ZINC_OK;
}

zinc_status zn_token_file_build(const zn_tokenizer *tokenizer, const char *const *files,
                                int n_files, int32_t eos_id, const char *output, int64_t *n_tokens)
{
    zinc_status status;
    const bool small = zn_tokenizer_vocab_size(tokenizer) <= 65536 && eos_id < 65536;
    builder b = {.tokenizer = tokenizer, .eos_id = eos_id, .bytes = small ? 2 : 4};
    ZN_TRY_GOTO(zn_buf_append(&b.out, MAGIC, 8));
    ZN_TRY_GOTO(put(&b, (uint32_t)b.bytes, 4));
    ZN_TRY_GOTO(put(&b, 0, 4));
    for (int i = 0; i < n_files; i++) {
        zn_file_kind kind;
        ZN_TRY_GOTO(zn_file_kind_of(files[i], &kind));
        if (kind == ZN_FILE_TOKENS)
            ZN_FAIL_GOTO(ZINC_E_INVALID, "%s: it is a token file already", files[i]);
        ZN_TRY_GOTO(zn_documents_read(files[i], kind, add_document, &b));
    }
    ZN_TRY_GOTO(zn_fs_write_atomic(output, b.out.data, b.out.n));
    *n_tokens = b.n;
fail:
    zn_ids_fini(&b.ids);
    zn_buf_fini(&b.out);
    return status;
}
