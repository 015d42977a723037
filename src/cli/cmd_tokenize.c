/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_tokenize.c — `zinc tokenize`: text to ids and back, token files, learning a tokenizer. */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/json.h"
#include "data/dataset.h"
#include "data/tokenizer.h"

#define READ_BYTES 65536

typedef struct tokenize {
    const zn_args *args;
    zn_tokenizer *tokenizer;
    char *path; /* of tokenizer.json */
    bool decode, special, skip;
} tokenize;

/* ---- one line of JSON ---- */

static zinc_status row_flag(const json_t *row, const char *where, const char *key, bool fallback,
                            bool *out)
{
    const json_t *value = json_object_get(row, key);
    if (value && !json_is_null(value) && !json_is_boolean(value))
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"%s\" must be true or false", where, key);
    *out = json_is_boolean(value) ? json_is_true(value) : fallback;
    return ZINC_OK;
}

static void print_ids(const zn_ids *ids, const char *separator)
{
    for (int64_t i = 0; i < ids->n; i++)
        printf("%s%d", i > 0 ? separator : "", ids->ids[i]);
}

static zinc_status encode_row(const tokenize *t, const json_t *row, const char *where)
{
    zinc_status status;
    zn_ids ids = {0};
    bool special;
    const json_t *text = json_object_get(row, "text");
    ZN_TRY(row_flag(row, where, "add_special_tokens", t->special, &special));
    if (!json_is_string(text))
        ZN_FAIL(ZINC_E_FORMAT, "%s: expected {\"text\": \"…\"}", where);
    ZN_TRY_GOTO(zn_tokenizer_encode(t->tokenizer, json_string_value(text), json_string_length(text),
                                    special, &ids));
    fputs("{\"ids\":[", stdout);
    print_ids(&ids, ",");
    fputs("]}\n", stdout);
fail:
    zn_ids_fini(&ids);
    return status;
}

/* An id that is none is bad input here, not a wrong command line. */
static zinc_status decode(const tokenize *t, const zn_ids *ids, bool skip, const char *where,
                          zn_buf *text)
{
    const int32_t n_ids = zn_tokenizer_vocab_size(t->tokenizer);
    for (int64_t i = 0; i < ids->n; i++)
        if (ids->ids[i] < 0 || ids->ids[i] >= n_ids)
            ZN_FAIL(ZINC_E_FORMAT, "%s: id %d (number %lld) is not in the vocabulary of %d ids",
                    where, ids->ids[i], (long long)i, n_ids);
    return zn_tokenizer_decode(t->tokenizer, ids->ids, ids->n, skip, text);
}

/* Print JSON with U+0080..U+009F, U+2028 and U+2029 escaped: some readers of lines (Python's
 * splitlines) take some of these as ends of lines. */
static void print_on_one_line(const zn_buf *json)
{
    size_t done = 0;
    for (size_t i = 0; i + 1 < json->n; i++) {
        const unsigned char *p = (const unsigned char *)json->data + i;
        const bool control = p[0] == 0xC2 && p[1] < 0xA0;
        const bool separator = p[0] == 0xE2 && p[1] == 0x80 && (p[2] == 0xA8 || p[2] == 0xA9);
        if (!control && !separator)
            continue;
        fwrite(json->data + done, 1, i - done, stdout);
        printf("\\u%04x", control ? p[1] : 0x2000u | (p[2] & 0x3Fu));
        i += control ? 1 : 2;
        done = i + 1;
    }
    fwrite(json->data + done, 1, json->n - done, stdout);
}

static zinc_status decode_row(const tokenize *t, const json_t *row, const char *where)
{
    zinc_status status;
    zn_ids ids = {0};
    zn_buf text = {0}, line = {0};
    bool skip;
    const json_t *array = json_object_get(row, "ids");
    ZN_TRY(row_flag(row, where, "skip_special_tokens", t->skip, &skip));
    if (!json_is_array(array))
        ZN_FAIL(ZINC_E_FORMAT, "%s: expected {\"ids\": [1, 2, …]}", where);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        const json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        ZN_TRY_GOTO(zn_ids_push(&ids, id < 0 || id > INT32_MAX ? -1 : (int32_t)id));
    }
    ZN_TRY_GOTO(decode(t, &ids, skip, where, &text));
    ZN_TRY_GOTO(zn_json_append_string(&line, text.data, text.n));
    fputs("{\"text\":", stdout);
    print_on_one_line(&line);
    fputs("}\n", stdout);
fail:
    zn_ids_fini(&ids);
    zn_buf_fini(&text);
    zn_buf_fini(&line);
    return status;
}

static zinc_status answer_line(const tokenize *t, const char *line, size_t n, long long number)
{
    zinc_status status;
    json_t *row = NULL;
    char where[48];
    (void)snprintf(where, sizeof where, "stdin:%lld", number);
    if (strspn(line, " \t\r") >= n)
        return ZINC_OK;
    ZN_TRY(zn_json_parse(line, n, where, &row));
    if (!json_is_object(row))
        ZN_FAIL_GOTO(ZINC_E_FORMAT, "%s: each line must be a JSON object", where);
    ZN_TRY_GOTO(t->decode ? decode_row(t, row, where) : encode_row(t, row, where));
fail:
    json_decref(row);
    return status;
}

/* ---- stdin ---- */

/* Read more of stdin into buf; *more false at its end. */
static zinc_status read_more(zn_buf *buf, bool *more)
{
    char bytes[READ_BYTES];
    ssize_t n;
    do
        n = read(STDIN_FILENO, bytes, sizeof bytes);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        ZN_FAIL(ZINC_E_IO, "cannot read stdin: %s", strerror(errno));
    *more = n > 0;
    return zn_buf_append(buf, bytes, (size_t)n);
}

static zinc_status answer_stdin(const tokenize *t)
{
    zinc_status status;
    zn_buf buf = {0};
    long long number = 1;
    size_t searched = 0; /* a long line is not searched again with every part of it */
    for (bool more = true; more;) {
        ZN_TRY_GOTO(read_more(&buf, &more));
        size_t done = 0;
        const char *newline;
        while ((newline = memchr(buf.data + searched, '\n', buf.n - searched)) != NULL) {
            const size_t end = (size_t)(newline - buf.data);
            buf.data[end] = '\0';
            ZN_TRY_GOTO(answer_line(t, buf.data + done, end - done, number++));
            done = searched = end + 1;
        }
        memmove(buf.data, buf.data + done, buf.n - done);
        buf.n -= done;
        buf.data[buf.n] = '\0';
        searched = buf.n;
        fflush(stdout); /* whoever asks waits for the answer before the next question */
    }
    if (buf.n > 0)
        ZN_TRY_GOTO(answer_line(t, buf.data, buf.n, number));
    status = ZINC_OK;
fail:
    zn_buf_fini(&buf);
    return status;
}

/* ---- plain text ---- */

static zinc_status encode_plain(const tokenize *t, const zn_buf *text)
{
    zn_ids ids = {0};
    const zinc_status status =
        zn_tokenizer_encode(t->tokenizer, text->data, text->n, t->special, &ids);
    if (status == ZINC_OK) {
        print_ids(&ids, " ");
        putchar('\n');
    }
    zn_ids_fini(&ids);
    return status;
}

/* Ids with anything but digits between them: "1 2 3", "[1, 2, 3]". */
static zinc_status decode_plain(const tokenize *t, const zn_buf *input, const char *where)
{
    static const char between[] = " \t\r\n,[]";
    zinc_status status;
    zn_ids ids = {0};
    zn_buf text = {0};
    const char *p = input->data + strspn(input->data, between);
    while (*p) {
        char *end;
        const long long id = strtoll(p, &end, 10);
        if (end == p || (*end && !strchr(between, *end)))
            ZN_FAIL_GOTO(ZINC_E_FORMAT, "%s: \"%.20s\" is not an id", where, p);
        ZN_TRY_GOTO(zn_ids_push(&ids, id < 0 || id > INT32_MAX ? -1 : (int32_t)id));
        p = end + strspn(end, between);
    }
    ZN_TRY_GOTO(decode(t, &ids, t->skip, where, &text));
    fwrite(text.data, 1, text.n, stdout);
fail:
    zn_ids_fini(&ids);
    zn_buf_fini(&text);
    return status;
}

static zinc_status plain(const tokenize *t)
{
    const int n_files = zn_args_n_positional(t->args);
    zinc_status status = ZINC_OK;
    for (int i = 0; status == ZINC_OK && i < (n_files > 0 ? n_files : 1); i++) {
        zn_buf buf = {0};
        const char *where = n_files > 0 ? zn_args_positional(t->args, i) : "stdin";
        if (n_files > 0)
            status = zn_fs_read(where, 0, &buf);
        for (bool more = n_files == 0; status == ZINC_OK && more;)
            status = read_more(&buf, &more);
        if (status == ZINC_OK)
            status = zn_buf_append(&buf, "", 0);
        if (status == ZINC_OK)
            status = t->decode ? decode_plain(t, &buf, where) : encode_plain(t, &buf);
        zn_buf_fini(&buf);
    }
    return status;
}

/* ---- files ---- */

/* The files of the command line: the value of --train, if any, then the positional ones. */
static zinc_status list_files(const zn_args *args, const char ***out, int *n_files)
{
    const char *train = zn_args_get(args, "train");
    const int n = zn_args_n_positional(args);
    const char **files = NULL;
    *n_files = 0;
    ZN_TRY(zn_alloc_array(&files, (size_t)n + 1, sizeof *files, "file names"));
    if (train && *train)
        files[(*n_files)++] = train;
    for (int i = 0; i < n; i++)
        files[(*n_files)++] = zn_args_positional(args, i);
    *out = files;
    return ZINC_OK;
}

static zinc_status train(const zn_args *args)
{
    const char *output = zn_args_get(args, "output");
    const char **files = NULL;
    int n_files;
    int64_t vocab_size = 0;
    ZN_TRY(zn_args_int(args, "vocab_size", 257, 1 << 24, &vocab_size));
    if (!output || vocab_size == 0)
        ZN_FAIL(ZINC_E_INVALID, "--train needs --vocab_size N and --output tokenizer.json");
    ZN_TRY(list_files(args, &files, &n_files));
    zinc_status status;
    if (n_files == 0)
        status = zn_error_set(ZINC_E_INVALID, __FILE__, __LINE__, __func__,
                              "--train needs text files to learn from");
    else
        status = zn_tokenizer_train(files, n_files, (int32_t)vocab_size, output);
    zn_free(files);
    return status;
}

/* eos_token_id of the config.json beside the tokenizer; -1 if there is none. */
static zinc_status eos_of_config(const char *tokenizer_path, int32_t *eos_id)
{
    zinc_status status = ZINC_OK;
    char *path = NULL;
    json_t *config = NULL;
    const char *slash = strrchr(tokenizer_path, '/');
    const int n = slash ? (int)(slash - tokenizer_path + 1) : 0;
    *eos_id = -1;
    ZN_TRY(zn_format(&path, "%.*sconfig.json", n, tokenizer_path));
    if (zn_fs_exists(path)) {
        ZN_TRY_GOTO(zn_json_load(path, &config));
        const json_t *eos = json_object_get(config, "eos_token_id");
        if (json_is_array(eos))
            eos = json_array_get(eos, 0);
        if (json_is_integer(eos) && json_integer_value(eos) <= INT32_MAX)
            *eos_id = (int32_t)json_integer_value(eos);
    }
fail:
    json_decref(config);
    zn_free(path);
    return status;
}

/* The token after each text: --eos_token, else that of the model beside, else a usual name. */
static zinc_status find_eos(const tokenize *t, int32_t *eos_id)
{
    static const char *const usual[] = {"<|endoftext|>", "</s>", "<|end_of_text|>"};
    const char *named = zn_args_get(t->args, "eos_token");
    *eos_id = -1;
    if (named && !*named)
        return ZINC_OK;
    if (named) {
        *eos_id = zn_tokenizer_id(t->tokenizer, named);
        if (*eos_id < 0)
            ZN_FAIL(ZINC_E_INVALID, "--eos_token: the tokenizer has no token \"%s\"", named);
        return ZINC_OK;
    }
    ZN_TRY(eos_of_config(t->path, eos_id));
    for (size_t i = 0; *eos_id < 0 && i < sizeof usual / sizeof usual[0]; i++)
        *eos_id = zn_tokenizer_id(t->tokenizer, usual[i]);
    return ZINC_OK;
}

static zinc_status build(const tokenize *t, const char *output)
{
    const char **files = NULL;
    int n_files;
    int32_t eos_id;
    int64_t n_tokens = 0;
    ZN_TRY(find_eos(t, &eos_id));
    ZN_TRY(list_files(t->args, &files, &n_files));
    zinc_status status;
    if (n_files == 0)
        status = zn_error_set(ZINC_E_INVALID, __FILE__, __LINE__, __func__,
                              "--output F.bin needs text files to read");
    else
        status = zn_token_file_build(t->tokenizer, files, n_files, eos_id, output, &n_tokens);
    zn_free(files);
    ZN_TRY(status);
    fprintf(stderr, "%s: %lld tokens, ", output, (long long)n_tokens);
    if (eos_id >= 0)
        fprintf(stderr, "id %d after each text\n", eos_id);
    else
        fprintf(stderr, "no token after each text (--eos_token names one)\n");
    return ZINC_OK;
}

/* ---- the command ---- */

static zinc_status load(tokenize *t, const char *path)
{
    if (!path)
        ZN_FAIL(ZINC_E_INVALID, "--tokenizer F is needed (a tokenizer.json or a model folder)");
    if (zn_fs_is_dir(path))
        ZN_TRY(zn_fs_join(path, "tokenizer.json", &t->path));
    else
        ZN_TRY(zn_strdup(path, &t->path));
    return zn_tokenizer_load(t->path, &t->tokenizer);
}

static zinc_status run(tokenize *t)
{
    const zn_args *args = t->args;
    const char *output = zn_args_get(args, "output");
    const bool json = zn_args_flag(args, "json", false);
    if (zn_args_given(args, "train"))
        return train(args);
    ZN_TRY(load(t, zn_args_get(args, "tokenizer")));
    if (output && t->decode)
        ZN_FAIL(ZINC_E_INVALID, "--output does not go with --decode");
    if (output)
        return build(t, output);
    if (json && zn_args_n_positional(args) > 0)
        ZN_FAIL(ZINC_E_INVALID, "--json reads stdin, no files");
    return json ? answer_stdin(t) : plain(t);
}

static int run_tokenize(const zn_args *args)
{
    tokenize t = {.args = args,
                  .decode = zn_args_flag(args, "decode", false),
                  .special = zn_args_flag(args, "add_special_tokens", true),
                  .skip = zn_args_flag(args, "skip_special_tokens", false)};
    const zinc_status status = run(&t);
    zn_tokenizer_destroy(t.tokenizer);
    zn_free(t.path);
    return status == ZINC_OK ? 0 : zn_cli_fail("tokenize", status);
}

static const zn_option tokenize_options[] = {
    {.name = "tokenizer",
     .kind = ZN_OPTION_VALUE,
     .metavar = "F",
     .help = "tokenizer.json, or the model folder it is in"},
    {.name = "decode", .kind = ZN_OPTION_FLAG, .help = "ids in, text out"},
    {.name = "json",
     .kind = ZN_OPTION_FLAG,
     .help = "one JSON object a line: {\"text\":…} or, with --decode, {\"ids\":[…]}"},
    {.name = "add_special_tokens",
     .kind = ZN_OPTION_FLAG,
     .default_text = "true",
     .help = "put the template's tokens around a text"},
    {.name = "skip_special_tokens",
     .kind = ZN_OPTION_FLAG,
     .default_text = "false",
     .help = "leave special tokens out of decoded text"},
    {.name = "output",
     .kind = ZN_OPTION_VALUE,
     .metavar = "F",
     .help = "write a token file of FILES (.txt, .jsonl), or what --train learned"},
    {.name = "eos_token",
     .kind = ZN_OPTION_VALUE,
     .metavar = "TEXT",
     .help = "token after each text of a token file; \"\" for none (default: the model's own)"},
    {.name = "train",
     .kind = ZN_OPTION_OPTIONAL,
     .metavar = "FILES",
     .help = "learn a byte-level BPE tokenizer from text FILES"},
    {.name = "vocab_size",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .help = "ids to learn, 256 bytes and the end-of-text token included"},
};

const zn_command zn_command_tokenize = {
    .name = "tokenize",
    .summary = "text to ids and back; builds token files; learns a tokenizer",
    .positional = "[FILE…]",
    .min_positional = 0,
    .max_positional = -1,
    .options = tokenize_options,
    .n_options = sizeof tokenize_options / sizeof tokenize_options[0],
    .epilog = "Without --json, a text is all of stdin (or of each FILE), newlines included.\n"
              "\n"
              "  printf 'Hello' | zinc tokenize --tokenizer tokenizer.json\n"
              "  zinc tokenize --tokenizer MODEL --output train.bin a.txt b.jsonl\n"
              "  zinc tokenize --train --vocab_size 4096 --output tokenizer.json a.txt\n",
    .run = run_tokenize,
};
