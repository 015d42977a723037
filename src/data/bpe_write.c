/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fs.h"
#include "data/bpe_train_internal.h"

static zinc_status write_vocab(const trainer *t, zn_buf *out)
{
    for (int32_t id = 0; id < t->n_ids; id++) {
        size_t n = 0;
        const char *text = zn_vocab_text(&t->tokens, id, &n);
        ZN_TRY(zn_buf_puts(out, id ? ",\n      " : "\n      "));
        ZN_TRY(zn_json_append_string(out, text, n));
        ZN_TRY(zn_buf_printf(out, ": %d", id));
    }
    return zn_buf_printf(out, ",\n      \"<|endoftext|>\": %d\n", t->n_ids);
}

/* "a b": no spelling has a space, and every version of the peer reads this form. */
static zinc_status write_merges(const trainer *t, zn_buf *joined, zn_buf *out)
{
    for (int32_t i = 0; i < t->n_merges; i++) {
        size_t n = 0;
        const char *text = zn_vocab_text(&t->tokens, t->merges[i].left, &n);
        joined->n = 0;
        ZN_TRY(zn_buf_append(joined, text, n));
        ZN_TRY(zn_buf_append(joined, " ", 1));
        text = zn_vocab_text(&t->tokens, t->merges[i].right, &n);
        ZN_TRY(zn_buf_append(joined, text, n));
        ZN_TRY(zn_buf_puts(out, i ? ",\n      " : "\n      "));
        ZN_TRY(zn_json_append_string(out, joined->data, joined->n));
    }
    return zn_buf_puts(out, "\n");
}

static const char before_vocab[] =
    "  \"normalizer\": null,\n"
    "  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": "
    "true, \"use_regex\": true},\n"
    "  \"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": "
    "false, \"use_regex\": true},\n"
    "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
    "\"use_regex\": true},\n"
    "  \"model\": {\n"
    "    \"type\": \"BPE\",\n"
    "    \"dropout\": null,\n"
    "    \"unk_token\": null,\n"
    "    \"continuing_subword_prefix\": null,\n"
    "    \"end_of_word_suffix\": null,\n"
    "    \"fuse_unk\": false,\n"
    "    \"byte_fallback\": false,\n"
    "    \"ignore_merges\": false,\n"
    "    \"vocab\": {";

static zinc_status write_file(const trainer *t, zn_buf *joined, zn_buf *out)
{
    ZN_TRY(zn_buf_puts(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n"
                            "  \"padding\": null,\n  \"added_tokens\": [\n"));
    ZN_TRY(zn_buf_printf(out,
                         "    {\"id\": %d, \"content\": \"<|endoftext|>\", \"single_word\": false, "
                         "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                         "\"special\": true}\n  ],\n",
                         t->n_ids));
    ZN_TRY(zn_buf_puts(out, before_vocab));
    ZN_TRY(write_vocab(t, out));
    ZN_TRY(zn_buf_puts(out, "    },\n    \"merges\": ["));
    ZN_TRY(write_merges(t, joined, out));
    return zn_buf_puts(out, "    ]\n  }\n}\n");
}

zinc_status zn_train_write(const trainer *t, const char *output)
{
    zinc_status status;
    zn_buf out = {0}, joined = {0};
    ZN_TRY_GOTO(write_file(t, &joined, &out));
    ZN_TRY_GOTO(zn_fs_write_atomic(output, out.data, out.n));
fail:
    zn_buf_fini(&out);
    zn_buf_fini(&joined);
    return status;
}
