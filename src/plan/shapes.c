/* SPDX-License-Identifier: Apache-2.0 */
/* shapes.c — public shapes of well-known models (their config.json files), and shapes made for a
 * number of parameters. */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "base/fs.h"
#include "plan/plan.h"

typedef struct shape_row {
    const char *name, *model_type;
    int64_t L, C, H, K, D, F, V, positions;
    bool tied;
} shape_row;

/* clang-format off */
static const shape_row shapes[] = {
    /* name            type        L   C     H   K   D    F      V       positions tied */
    {"llama-7b",       "llama",   32, 4096, 32, 32, 128, 11008, 32000,  4096,   false},
    {"llama-13b",      "llama",   40, 5120, 40, 40, 128, 13824, 32000,  4096,   false},
    {"llama-70b",      "llama",   80, 8192, 64,  8, 128, 28672, 32000,  4096,   false},
    {"llama-3-8b",     "llama",   32, 4096, 32,  8, 128, 14336, 128256, 8192,   false},
    {"llama-3-70b",    "llama",   80, 8192, 64,  8, 128, 28672, 128256, 8192,   false},
    {"llama-3.2-1b",   "llama",   16, 2048, 32,  8,  64,  8192, 128256, 131072, true},
    {"llama-3.2-3b",   "llama",   28, 3072, 24,  8, 128,  8192, 128256, 131072, true},
    {"tinyllama-1.1b", "llama",   22, 2048, 32,  4,  64,  5632, 32000,  2048,   false},
    {"smollm2-135m",   "llama",   30,  576,  9,  3,  64,  1536, 49152,  8192,   true},
    {"smollm2-360m",   "llama",   32,  960, 15,  5,  64,  2560, 49152,  8192,   true},
    {"smollm2-1.7b",   "llama",   24, 2048, 32, 32,  64,  8192, 49152,  8192,   true},
    {"mistral-7b",     "mistral", 32, 4096, 32,  8, 128, 14336, 32000,  32768,  false},
    {"qwen2-0.5b",     "qwen2",   24,  896, 14,  2,  64,  4864, 151936, 131072, true},
    {"qwen2-1.5b",     "qwen2",   28, 1536, 12,  2, 128,  8960, 151936, 131072, true},
    {"qwen2-7b",       "qwen2",   28, 3584, 28,  4, 128, 18944, 152064, 131072, false},
    {"qwen2-72b",      "qwen2",   80, 8192, 64,  8, 128, 29568, 152064, 131072, false},
    {"gpt2",           "gpt2",    12,  768, 12, 12,  64,  3072, 50257,  1024,   true},
    {"gpt2-medium",    "gpt2",    24, 1024, 16, 16,  64,  4096, 50257,  1024,   true},
    {"gpt2-large",     "gpt2",    36, 1280, 20, 20,  64,  5120, 50257,  1024,   true},
    {"gpt2-xl",        "gpt2",    48, 1600, 25, 25,  64,  6400, 50257,  1024,   true},
};
/* clang-format on */
#define N_SHAPES ((int)(sizeof shapes / sizeof shapes[0]))

static void set_gpt2(zn_model_spec *spec)
{
    spec->norm = ZN_NORM_LAYER;
    spec->norm_bias = spec->qkv_fused = spec->conv1d = spec->learned_positions = true;
    spec->q_bias = spec->k_bias = spec->v_bias = spec->o_bias = spec->mlp_bias = true;
    spec->act = ZN_ACT_GELU_TANH;
}

static void set_llama(zn_model_spec *spec)
{
    spec->norm = ZN_NORM_RMS;
    spec->gated_mlp = true;
    spec->act = ZN_ACT_SILU;
    spec->rope = ZN_ROPE_DEFAULT;
    spec->rope_theta = 10000;
    spec->rotary = spec->D;
    spec->q_bias = spec->k_bias = spec->v_bias = strcmp(spec->model_type, "qwen2") == 0;
}

static zinc_status spec_of(const shape_row *row, zn_model_spec *out)
{
    zn_model_spec spec = {.model_type = row->model_type,
                          .L = row->L,
                          .C = row->C,
                          .H = row->H,
                          .K = row->K,
                          .D = row->D,
                          .F = row->F,
                          .V = row->V,
                          .max_positions = row->positions,
                          .tied = row->tied,
                          .norm_eps = 1e-5f,
                          .pre_norms = true,
                          .embed_scale = 1,
                          .init_std = 0.02f,
                          .attn_scale = (float)(1 / sqrt((double)row->D)),
                          .dtype = ZN_DTYPE_BF16,
                          .bos_id = -1,
                          .eos_id = -1,
                          .pad_id = -1};
    if (strcmp(row->model_type, "gpt2") == 0)
        set_gpt2(&spec);
    else
        set_llama(&spec);
    ZN_TRY(zn_alloc(&spec.layer_windowed, (size_t)spec.L, "layer windows"));
    *out = spec;
    return ZINC_OK;
}

static zinc_status unknown_model(const char *model)
{
    const char *names[N_SHAPES];
    zn_buf text = {0};
    zinc_status status = ZINC_OK;
    for (int i = 0; i < N_SHAPES && status == ZINC_OK; i++) {
        names[i] = shapes[i].name;
        status = zn_buf_printf(&text, "%s%s", i ? ", " : "", names[i]);
    }
    if (status == ZINC_OK) {
        const char *near = zn_nearest_name(model, names, N_SHAPES);
        status = zn_error_set(ZINC_E_CONFIG, __FILE__, __LINE__, __func__,
                              "--model %s is neither a folder with config.json, nor such a file, "
                              "nor a known name%s%s%s; known are %s",
                              model, near ? " (did you mean " : "", near ? near : "",
                              near ? "?)" : "", text.data);
    }
    zn_buf_fini(&text);
    return status;
}

zinc_status zn_plan_model(const char *model, zn_model_spec *out, bool *known)
{
    *known = false;
    if (zn_fs_exists(model))
        return zn_model_spec_load(model, out);
    *known = true;
    for (int i = 0; i < N_SHAPES; i++)
        if (strcasecmp(shapes[i].name, model) == 0)
            return spec_of(&shapes[i], out);
    return unknown_model(model);
}

/* ---- shapes for a size ---- */

/* Parameters of an untied llama with as many key/value heads as heads:
 * 2 V C + C + L (4 C^2 + 3 C F + 2 C). */
static double llama_params(const shape_row *row, double F)
{
    const double C = (double)row->C;
    return 2 * (double)row->V * C + C + (double)row->L * (4 * C * C + 3 * C * F + 2 * C);
}

/* Round to a multiple of `to`, at least one. */
static int64_t round_to(double x, int64_t to)
{
    const int64_t n = (int64_t)(x / (double)to + 0.5) * to;
    return n < to ? to : n;
}

/* What is not given: C = 128 L and 12 L C^2 parameters are the proportions of the usual sizes
 * (7B: 33 layers of 4,224), a head has 128 channels where they fit. */
static void fill_shape(const zn_plan_shape *shape, shape_row *row)
{
    const double P = (double)shape->n_params;
    row->L = shape->layers;
    row->C = shape->hidden;
    if (row->L == 0 && row->C == 0)
        row->L = round_to(cbrt(P / (12 * 128 * 128)), 1);
    if (row->L == 0)
        row->L = round_to(P / (12 * (double)row->C * (double)row->C), 1);
    if (row->C == 0)
        row->C = round_to(sqrt(P / (12 * (double)row->L)), P > 1e9 ? 128 : 8);
    row->H = shape->heads;
    if (row->H == 0)
        row->H = row->C % 128 == 0 ? row->C / 128 : row->C / 8;
    row->K = row->H;
    row->V = shape->vocab;
    if (row->V == 0) { /* a small model cannot spend everything on its vocabulary */
        const double most = P / (8 * (double)row->C);
        row->V = most > 32000 ? 32000 : round_to(most, 1);
    }
}

zinc_status zn_plan_model_of_size(const zn_plan_shape *shape, zn_model_spec *out)
{
    shape_row row = {.model_type = "llama", .positions = 4096};
    const double P = (double)shape->n_params;
    fill_shape(shape, &row);
    if (row.L > ZN_MAX_LAYERS_NAMED)
        ZN_FAIL(ZINC_E_CONFIG, "%lld layers; at most %d can be planned: give --hidden",
                (long long)row.L, ZN_MAX_LAYERS_NAMED);
    if (row.H < 1 || row.C % row.H != 0 || (row.C / row.H) % 2 != 0)
        ZN_FAIL(ZINC_E_CONFIG,
                "--heads %lld does not cut a hidden size of %lld into heads of an even size",
                (long long)row.H, (long long)row.C);
    row.D = row.C / row.H;
    const double rest = P - llama_params(&row, 0);
    row.F = (int64_t)(rest / (3 * (double)row.C * (double)row.L) + 0.5);
    if (row.F < 1 || fabs(llama_params(&row, (double)row.F) - P) > 0.005 * P)
        ZN_FAIL(ZINC_E_CONFIG,
                "%lld layers of %lld and a vocabulary of %lld make %.4g parameters without an MLP, "
                "and --params asks for %.4g in all: give other --layers, --hidden or --vocab",
                (long long)row.L, (long long)row.C, (long long)row.V, llama_params(&row, 0), P);
    return spec_of(&row, out);
}
