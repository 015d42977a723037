/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_generate.c — `zinc generate`: continue a prompt, to look at what was trained. */
#include "cli/cli.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/sys.h"
#include "data/chat.h"
#include "engine/hub.h"
#include "engine/resident.h"

#define NEW_TOKENS_DEFAULT 64
#define MAX_EOS 16

typedef struct generate_run {
    const zn_args *args;
    char *model_dir;
    zn_device *dev;
    zn_model_spec spec;
    zn_resident *resident;
    zn_model *model;
    zn_decode *decode; /* what of ids has gone through the model */
    zn_tokenizer *tokenizer;
    zn_chat *chat; /* with --chat */
    zn_ids ids;    /* prompt, then what is new */
    int64_t n_prompt;
    int32_t eos[MAX_EOS];
    int n_eos;
    int64_t max_new, seed, top_k; /* top_k 0: all */
    double temperature, top_p;
    float *logits;   /* [V] */
    int32_t *order;  /* [V] tokens by probability; sampling only */
    double *weights; /* [V] exp(logit - max); sampling only */
} generate_run;

static void run_fini(generate_run *run)
{
    zn_free(run->order);
    zn_free(run->weights);
    zn_free(run->logits);
    zn_ids_fini(&run->ids);
    zn_chat_destroy(run->chat);
    zn_tokenizer_destroy(run->tokenizer);
    zn_decode_destroy(run->decode);
    zn_model_destroy(run->model);
    zn_resident_destroy(run->resident);
    zn_model_spec_fini(&run->spec);
    zn_device_close(run->dev);
    zn_free(run->model_dir);
}

/* ---- arguments ---- */

static bool is_chat(const generate_run *run)
{
    return zn_args_flag(run->args, "chat", false);
}

static zinc_status read_options(generate_run *run)
{
    run->max_new = NEW_TOKENS_DEFAULT;
    run->seed = 42;
    run->temperature = 1;
    run->top_p = 1;
    ZN_TRY(zn_args_int(run->args, "max_new_tokens", 1, 1 << 24, &run->max_new));
    ZN_TRY(zn_args_int(run->args, "seed", 0, INT64_MAX, &run->seed));
    ZN_TRY(zn_args_real(run->args, "temperature", 0, 1e6, &run->temperature));
    ZN_TRY(zn_args_real(run->args, "top_p", 0, 1, &run->top_p));
    ZN_TRY(zn_args_int(run->args, "top_k", 0, INT32_MAX, &run->top_k));
    if (!zn_args_given(run->args, "model"))
        ZN_FAIL(ZINC_E_INVALID, "--model DIR is needed: a Hugging Face model folder");
    if (zn_args_given(run->args, "prompt") == zn_args_given(run->args, "prompt_ids"))
        ZN_FAIL(ZINC_E_INVALID, "give either --prompt TEXT or --prompt_ids 1,2,3");
    if (is_chat(run) && !zn_args_given(run->args, "prompt"))
        ZN_FAIL(ZINC_E_INVALID, "--chat needs --prompt TEXT: what the user says");
    if (zn_args_given(run->args, "system") && !is_chat(run))
        ZN_FAIL(ZINC_E_INVALID, "--system goes with --chat");
    return ZINC_OK;
}

static zinc_status open_model(generate_run *run)
{
    const char *model = zn_args_get(run->args, "model");
    const char *dtype_name = zn_args_get(run->args, "dtype");
    const zn_model_options options = {.dropout_scale = 0};
    zn_dtype dtype = ZN_DTYPE_F32;
    int64_t n_threads = zn_sys_cores();
    if (dtype_name && zn_dtype_parse(dtype_name, &dtype) != 0)
        ZN_FAIL(ZINC_E_INVALID, "--dtype %s is unknown (float32, bfloat16, float16)", dtype_name);
    ZN_TRY(zn_args_int(run->args, "threads", 1, 4096, &n_threads));
    const zn_device_params params = {.n_threads = (int)n_threads};
    ZN_TRY(zn_device_open("cpu", &params, &run->dev));
    ZN_TRY(zn_hub_model_path(model, &run->model_dir));
    ZN_TRY(zn_model_spec_load(run->model_dir, &run->spec));
    ZN_TRY(zn_resident_load(run->model_dir, &run->spec, dtype, run->dev, &run->resident));
    ZN_TRY(zn_model_create(&run->spec, &options, run->dev, zn_kernels_get(run->dev), &run->model));
    const size_t V = (size_t)run->spec.V;
    ZN_TRY(zn_alloc_array(&run->logits, V, sizeof *run->logits, "logits"));
    if (run->temperature > 0) {
        ZN_TRY(zn_alloc_array(&run->order, V, sizeof *run->order, "token order"));
        ZN_TRY(zn_alloc_array(&run->weights, V, sizeof *run->weights, "token weights"));
    }
    return ZINC_OK;
}

/* Text needs the tokenizer; with ids it only adds the text of the answer. */
static zinc_status open_tokenizer(generate_run *run)
{
    char *path = NULL;
    zinc_status status = ZINC_OK;
    ZN_TRY(zn_fs_join(run->model_dir, "tokenizer.json", &path));
    if (zn_args_given(run->args, "prompt"))
        status = zn_tokenizer_load(path, &run->tokenizer);
    else if (zn_fs_exists(path) && zn_tokenizer_load(path, &run->tokenizer) != ZINC_OK)
        zn_warn("generate", "%s", zinc_last_error());
    if (status == ZINC_OK && is_chat(run))
        status = zn_chat_open(path, &run->chat);
    zn_free(path);
    return status;
}

static void add_eos(generate_run *run, const json_t *value)
{
    if (json_is_integer(value) && json_integer_value(value) <= INT32_MAX && run->n_eos < MAX_EOS)
        run->eos[run->n_eos++] = (int32_t)json_integer_value(value);
    for (size_t i = 0; i < json_array_size(value); i++)
        add_eos(run, json_array_get(value, i));
}

/* What ends the text: eos_token_id (one or a list) of generation_config.json, else of config.json;
 * in a chat also what the template ends an answer with. */
static zinc_status read_eos(generate_run *run)
{
    static const char *const names[] = {"generation_config.json", "config.json"};
    for (int i = 0; i < 2 && run->n_eos == 0; i++) {
        char *path = NULL;
        json_t *root = NULL;
        zinc_status status = ZINC_OK;
        ZN_TRY(zn_fs_join(run->model_dir, names[i], &path));
        if (zn_fs_exists(path))
            status = zn_json_load(path, &root);
        zn_free(path);
        add_eos(run, json_object_get(root, "eos_token_id"));
        json_decref(root);
        if (status != ZINC_OK)
            return status;
    }
    const char *end = run->chat ? zn_chat_end(run->chat) : NULL;
    const int32_t id = end ? zn_tokenizer_id(run->tokenizer, end) : -1;
    if (id >= 0 && run->n_eos < MAX_EOS)
        run->eos[run->n_eos++] = id;
    return ZINC_OK;
}

static zinc_status parse_ids(generate_run *run, const char *text)
{
    for (const char *at = text;;) {
        char *end;
        errno = 0;
        const long id = strtol(at, &end, 10);
        if (end == at || errno || id < 0 || id >= run->spec.V || (*end != ',' && *end != '\0'))
            ZN_FAIL(ZINC_E_INVALID,
                    "--prompt_ids \"%s\": token ids from 0 to %lld with commas between them were "
                    "expected at \"%s\"",
                    text, (long long)run->spec.V - 1, at);
        ZN_TRY(zn_ids_push(&run->ids, (int32_t)id));
        if (*end == '\0')
            return ZINC_OK;
        at = end + 1;
    }
}

/* --system and --prompt as the chat template writes them, up to where the answer begins. */
static zinc_status read_chat(generate_run *run, const char *prompt)
{
    const char *system = zn_args_get(run->args, "system");
    zn_message messages[2];
    int n = 0;
    if (system)
        messages[n++] = (zn_message){"system", system, strlen(system)};
    messages[n++] = (zn_message){"user", prompt, strlen(prompt)};
    return zn_chat_encode(run->chat, run->tokenizer, messages, n, true, &run->ids, NULL);
}

static zinc_status read_prompt(generate_run *run)
{
    const char *text = zn_args_get(run->args, "prompt");
    if (!text)
        return parse_ids(run, zn_args_get(run->args, "prompt_ids"));
    ZN_TRY(run->chat ? read_chat(run, text)
                     : zn_tokenizer_encode(run->tokenizer, text, strlen(text), true, &run->ids));
    if (run->ids.n == 0)
        ZN_FAIL(ZINC_E_INVALID, "--prompt is empty, and the tokenizer adds no token to start from");
    for (int64_t i = 0; i < run->ids.n; i++)
        if (run->ids.ids[i] >= run->spec.V)
            ZN_FAIL(ZINC_E_FORMAT,
                    "the tokenizer gives token %d, but the model has a vocabulary of %lld; they do "
                    "not belong together",
                    (int)run->ids.ids[i], (long long)run->spec.V);
    return ZINC_OK;
}

/* ---- choosing a token ---- */

static int32_t greedy(const generate_run *run)
{
    int32_t best = 0;
    for (int32_t v = 1; v < run->spec.V; v++)
        if (run->logits[v] > run->logits[best])
            best = v;
    return best;
}

/* Sort order[from, to) by falling weight, smaller ids first among equals (heapsort: no recursion,
 * no comparison through a global). */
static bool before(const double *w, int32_t a, int32_t b)
{
    return w[a] > w[b] || (w[a] == w[b] && a < b);
}

static void sift(int32_t *order, const double *w, int64_t root, int64_t n)
{
    for (int64_t child = 2 * root + 1; child < n; root = child, child = 2 * root + 1) {
        if (child + 1 < n && before(w, order[child], order[child + 1]))
            child++;
        if (before(w, order[child], order[root]))
            return;
        const int32_t swap = order[root];
        order[root] = order[child];
        order[child] = swap;
    }
}

static void sort_tokens(generate_run *run)
{
    const int64_t n = run->spec.V;
    for (int64_t v = 0; v < n; v++)
        run->order[v] = (int32_t)v;
    for (int64_t i = n / 2 - 1; i >= 0; i--)
        sift(run->order, run->weights, i, n);
    for (int64_t end = n - 1; end > 0; end--) {
        const int32_t last = run->order[0];
        run->order[0] = run->order[end];
        run->order[end] = last;
        sift(run->order, run->weights, 0, end);
    }
}

/* softmax(logits / temperature), cut to the top_k most likely tokens, then to the fewest of these
 * whose probabilities reach top_p of theirs (Holtzman et al. 2020; transformers' order), drawn by a
 * number that hangs on (seed, position) alone. */
static int32_t sample(generate_run *run)
{
    const int64_t V = run->spec.V;
    const double max = (double)run->logits[greedy(run)];
    const int64_t most = run->top_k > 0 && run->top_k < V ? run->top_k : V;
    double total = 0, kept = 0, sum = 0;
    int64_t n = 0;
    for (int64_t v = 0; v < V; v++)
        run->weights[v] = exp(((double)run->logits[v] - max) / run->temperature);
    sort_tokens(run);
    for (int64_t i = 0; i < most; i++)
        total += run->weights[run->order[i]];
    do
        kept += run->weights[run->order[n++]];
    while (n < most && kept < run->top_p * total);
    const double at = zn_hash_unit(zn_hash_fold((uint64_t)run->seed, (uint64_t)run->ids.n)) * kept;
    for (int64_t i = 0; i < n; i++) {
        sum += run->weights[run->order[i]];
        if (at < sum)
            return run->order[i];
    }
    return run->order[n - 1];
}

/* An order of NaN is no order: the first id would be chosen for ever. */
static zinc_status check_logits(const generate_run *run)
{
    for (int64_t v = 0; v < run->spec.V; v++)
        if (isnan(run->logits[v]))
            ZN_FAIL(ZINC_E_FORMAT,
                    "%s gives NaN for the token after %lld: a weight is not finite, or the values "
                    "of the model do not fit its type",
                    run->model_dir, (long long)run->ids.n);
    return ZINC_OK;
}

static bool ends_text(const generate_run *run, int32_t id)
{
    for (int i = 0; i < run->n_eos; i++)
        if (run->eos[i] == id)
            return true;
    return false;
}

static zinc_status generate(generate_run *run)
{
    int64_t done = 0; /* of ids, by the model */
    run->n_prompt = run->ids.n;
    ZN_TRY(zn_decode_create(run->model, &run->decode));
    for (int64_t i = 0; i < run->max_new; i++) {
        if (run->ids.n > run->spec.max_positions) {
            zn_warn("generate", "stopped at the %lld positions the model has",
                    (long long)run->spec.max_positions);
            return ZINC_OK;
        }
        ZN_TRY(zn_model_decode(run->decode, run->ids.ids + done, run->ids.n - done,
                               zn_resident_hooks(run->resident), run->logits));
        done = run->ids.n;
        ZN_TRY(zn_stream_sync(zn_device_compute(run->dev), -1));
        ZN_TRY(check_logits(run));
        const int32_t id = run->temperature > 0 ? sample(run) : greedy(run);
        ZN_TRY(zn_ids_push(&run->ids, id));
        if (ends_text(run, id))
            return ZINC_OK;
    }
    return ZINC_OK;
}

/* ---- output ---- */

static zinc_status print_json(const generate_run *run, const zn_buf *text, zn_buf *out)
{
    ZN_TRY(zn_buf_puts(out, "{\"ids\":["));
    for (int64_t i = run->n_prompt; i < run->ids.n; i++)
        ZN_TRY(zn_buf_printf(out, i > run->n_prompt ? ",%d" : "%d", (int)run->ids.ids[i]));
    ZN_TRY(zn_buf_puts(out, "],\"text\":"));
    if (run->tokenizer)
        ZN_TRY(zn_json_append_string(out, text->data ? text->data : "", text->n));
    else
        ZN_TRY(zn_buf_puts(out, "null"));
    return zn_buf_puts(out, "}\n");
}

static zinc_status print_plain(const generate_run *run, const zn_buf *text, zn_buf *out)
{
    const char *prompt = zn_args_get(run->args, "prompt");
    if (prompt && !run->chat) /* of a chat only the answer is of interest */
        ZN_TRY(zn_buf_puts(out, prompt));
    if (run->tokenizer)
        ZN_TRY(zn_buf_append(out, text->data ? text->data : "", text->n));
    for (int64_t i = run->n_prompt; !run->tokenizer && i < run->ids.n; i++)
        ZN_TRY(zn_buf_printf(out, i > run->n_prompt ? ",%d" : "%d", (int)run->ids.ids[i]));
    return zn_buf_puts(out, "\n");
}

static zinc_status print_result(const generate_run *run, zn_buf *out)
{
    zinc_status status = ZINC_OK;
    zn_buf text = {0};
    const int32_t *ids = run->ids.ids + run->n_prompt;
    if (run->tokenizer) /* a model may know more ids than its tokenizer: then there is no text */
        ZN_TRY_GOTO(
            zn_tokenizer_decode(run->tokenizer, ids, run->ids.n - run->n_prompt, true, &text));
    ZN_TRY_GOTO(zn_args_flag(run->args, "json", false) ? print_json(run, &text, out)
                                                       : print_plain(run, &text, out));
fail:
    zn_buf_fini(&text);
    return status;
}

static zinc_status run_all(generate_run *run, zn_buf *out)
{
    ZN_TRY(read_options(run));
    ZN_TRY(open_model(run));
    ZN_TRY(open_tokenizer(run));
    ZN_TRY(read_eos(run));
    ZN_TRY(read_prompt(run));
    ZN_TRY(generate(run));
    return print_result(run, out);
}

static int run_generate(const zn_args *args)
{
    generate_run run = {.args = args};
    zn_buf out = {0};
    int code = 0;
    const zinc_status status = run_all(&run, &out);
    if (status != ZINC_OK)
        code = zn_cli_fail("generate", status);
    else if (fwrite(out.data, 1, out.n, stdout) != out.n || fflush(stdout) != 0)
        code = zn_cli_exit_code(ZINC_E_IO);
    zn_buf_fini(&out);
    run_fini(&run);
    return code;
}

static const zn_option generate_options[] = {
    {.name = "model",
     .alias = "model_name_or_path",
     .kind = ZN_OPTION_VALUE,
     .metavar = "DIR",
     .help = "Hugging Face model folder, or org/name of the local cache"},
    {.name = "prompt", .kind = ZN_OPTION_VALUE, .metavar = "TEXT", .help = "text to continue"},
    {.name = "prompt_ids",
     .kind = ZN_OPTION_VALUE,
     .metavar = "1,2,3",
     .help = "token ids to continue, instead of text"},
    {.name = "chat",
     .kind = ZN_OPTION_FLAG,
     .help = "the prompt is a user's message; it is written with the chat template"},
    {.name = "system",
     .kind = ZN_OPTION_VALUE,
     .metavar = "TEXT",
     .help = "system message of a chat"},
    {.name = "max_new_tokens",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .default_text = "64",
     .help = "stop after N tokens, or at the end-of-text token"},
    {.name = "temperature",
     .kind = ZN_OPTION_VALUE,
     .metavar = "X",
     .default_text = "1",
     .help = "0: always the most likely token"},
    {.name = "top_p",
     .kind = ZN_OPTION_VALUE,
     .metavar = "P",
     .default_text = "1",
     .help = "draw from the most likely tokens that make up P of the probability"},
    {.name = "top_k",
     .kind = ZN_OPTION_VALUE,
     .metavar = "K",
     .default_text = "0",
     .help = "draw from the K most likely tokens; 0: from all"},
    {.name = "seed",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .default_text = "42",
     .help = "of the draws"},
    {.name = "dtype",
     .kind = ZN_OPTION_VALUE,
     .metavar = "TYPE",
     .default_text = "float32",
     .help = "how weights are kept: float32, bfloat16, float16"},
    {.name = "threads",
     .kind = ZN_OPTION_VALUE,
     .metavar = "N",
     .default_text = "cores",
     .help = "compute threads"},
    {.name = "json", .kind = ZN_OPTION_FLAG, .help = "{\"ids\":[new ones],\"text\":...} on stdout"},
};

const zn_command zn_command_generate = {
    .name = "generate",
    .summary = "continue a prompt (greedy or sampled), to look at what was trained",
    .positional = "",
    .options = generate_options,
    .n_options = sizeof generate_options / sizeof generate_options[0],
    .epilog = "  zinc generate --model out --prompt \"Once upon a time\" --temperature 0\n"
              "  zinc generate --model out --chat --prompt \"Where is Paris?\" --top_p 0.9\n"
              "  zinc generate --model out --prompt_ids 1,22,7 --max_new_tokens 16 --json\n",
    .run = run_generate,
};
