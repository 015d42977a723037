/* SPDX-License-Identifier: Apache-2.0 */
/* spec.c — config.json to zn_model_spec: the reader, what architectures share, the checks. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "base/json.h"
#include "model/model_internal.h"

#define COUNT_MAX 2147483647

void zn_cfg_fail(zn_cfg *cfg, zinc_status status, const char *format, ...)
{
    if (cfg->status != ZINC_OK)
        return;
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cfg->status = zn_error_set(status, __FILE__, __LINE__, __func__, "%s: %s", cfg->path, text);
}

static const json_t *lookup(const zn_cfg *cfg, const char *key)
{
    const json_t *value = json_object_get(cfg->root, key);
    return !value || json_typeof(value) == JSON_NULL ? NULL : value;
}

bool zn_cfg_is_null(const zn_cfg *cfg, const char *key)
{
    return json_object_get(cfg->root, key) && !lookup(cfg, key);
}

int64_t zn_cfg_count(zn_cfg *cfg, const char *key, int64_t fallback)
{
    const json_t *value = lookup(cfg, key);
    if (!value)
        return fallback;
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > COUNT_MAX) {
        zn_cfg_fail(cfg, ZINC_E_FORMAT, "%s must be a whole number from 1 to %d", key, COUNT_MAX);
        return fallback;
    }
    return json_integer_value(value);
}

double zn_cfg_real(zn_cfg *cfg, const char *key, double fallback)
{
    const json_t *value = lookup(cfg, key);
    if (!value)
        return fallback;
    if (!json_is_number(value)) {
        zn_cfg_fail(cfg, ZINC_E_FORMAT, "%s must be a number", key);
        return fallback;
    }
    return json_number_value(value);
}

bool zn_cfg_flag(zn_cfg *cfg, const char *key, bool fallback)
{
    const json_t *value = lookup(cfg, key);
    if (!value)
        return fallback;
    if (!json_is_boolean(value))
        zn_cfg_fail(cfg, ZINC_E_FORMAT, "%s must be true or false", key);
    return json_is_true(value);
}

const char *zn_cfg_string(zn_cfg *cfg, const char *key, const char *fallback)
{
    const json_t *value = lookup(cfg, key);
    if (!value)
        return fallback;
    if (!json_is_string(value)) {
        zn_cfg_fail(cfg, ZINC_E_FORMAT, "%s must be a string", key);
        return fallback;
    }
    return json_string_value(value);
}

int32_t zn_cfg_token(zn_cfg *cfg, const char *key, int32_t fallback)
{
    const json_t *value = json_object_get(cfg->root, key);
    if (!value)
        return fallback;
    if (json_is_array(value))
        value = json_array_get(value, 0);
    if (!value || json_is_null(value))
        return -1;
    if (!json_is_integer(value) || json_integer_value(value) > COUNT_MAX) {
        zn_cfg_fail(cfg, ZINC_E_FORMAT, "%s must be a token id or a list of them", key);
        return -1;
    }
    return json_integer_value(value) < 0 ? -1 : (int32_t)json_integer_value(value);
}

float zn_cfg_dropout(zn_cfg *cfg, const char *key, double fallback)
{
    const double p = zn_cfg_real(cfg, key, fallback);
    if (!(p >= 0 && p < 1))
        zn_cfg_fail(cfg, ZINC_E_FORMAT, "%s must be in [0, 1), not %g", key, p);
    return (float)p;
}

zn_act zn_cfg_act(zn_cfg *cfg, const char *key, const char *fallback)
{
    static const struct {
        const char *name;
        zn_act act;
    } known[] = {
        {"gelu_new", ZN_ACT_GELU_TANH},   {"gelu_pytorch_tanh", ZN_ACT_GELU_TANH},
        {"gelu_fast", ZN_ACT_GELU_TANH},  {"gelu", ZN_ACT_GELU_ERF},
        {"gelu_python", ZN_ACT_GELU_ERF}, {"silu", ZN_ACT_SILU},
        {"swish", ZN_ACT_SILU},           {"relu", ZN_ACT_RELU},
    };
    const char *name = zn_cfg_string(cfg, key, fallback);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, name) == 0)
            return known[i].act;
    zn_cfg_fail(cfg, ZINC_E_UNSUPPORTED,
                "%s \"%s\" is not supported (gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, silu, "
                "relu are)",
                key, name);
    return ZN_ACT_SILU;
}

/* transformers 5 keeps everything in rope_parameters; before it was rope_theta and rope_scaling at
 * the top. Both spellings may use "type" for "rope_type". */
void zn_cfg_rope(zn_cfg *cfg, zn_model_spec *spec, double theta, double partial)
{
    zn_cfg rope = *cfg;
    rope.root = lookup(cfg, "rope_parameters");
    if (!rope.root)
        rope.root = lookup(cfg, "rope_scaling");
    if (rope.root && !json_is_object(rope.root))
        zn_cfg_fail(cfg, ZINC_E_FORMAT, "rope_scaling must be an object or null");
    if (rope.root && (lookup(&rope, "full_attention") || lookup(&rope, "sliding_attention")))
        zn_cfg_fail(cfg, ZINC_E_UNSUPPORTED,
                    "rope_parameters for each layer type are not supported");
    if (cfg->status != ZINC_OK)
        return;
    theta = zn_cfg_real(cfg, "rope_theta", theta);
    partial = zn_cfg_real(cfg, "partial_rotary_factor", partial);
    const char *type = "default";
    if (rope.root) {
        theta = zn_cfg_real(&rope, "rope_theta", theta);
        partial = zn_cfg_real(&rope, "partial_rotary_factor", partial);
        type = zn_cfg_string(&rope, "rope_type", zn_cfg_string(&rope, "type", "default"));
    }
    if (strcmp(type, "default") == 0) {
        spec->rope = ZN_ROPE_DEFAULT;
    } else if (strcmp(type, "linear") == 0) {
        spec->rope = ZN_ROPE_LINEAR;
        spec->rope_factor = zn_cfg_real(&rope, "factor", 1);
    } else if (strcmp(type, "llama3") == 0) {
        spec->rope = ZN_ROPE_LLAMA3;
        spec->rope_factor = zn_cfg_real(&rope, "factor", 8);
        spec->rope_low_freq = zn_cfg_real(&rope, "low_freq_factor", 1);
        spec->rope_high_freq = zn_cfg_real(&rope, "high_freq_factor", 4);
        spec->rope_original_positions =
            zn_cfg_count(&rope, "original_max_position_embeddings", spec->max_positions);
        if (!(spec->rope_high_freq > spec->rope_low_freq && spec->rope_low_freq > 0))
            zn_cfg_fail(&rope, ZINC_E_FORMAT,
                        "high_freq_factor must be above low_freq_factor, and that above 0");
    } else {
        zn_cfg_fail(&rope, ZINC_E_UNSUPPORTED,
                    "rope type \"%s\" is not supported (default, linear, llama3 are)", type);
    }
    if (!(theta > 0) || !(partial > 0 && partial <= 1) ||
        (spec->rope != ZN_ROPE_DEFAULT && !(spec->rope_factor > 0)))
        zn_cfg_fail(&rope, ZINC_E_FORMAT,
                    "rope needs rope_theta > 0, factor > 0 and a partial_rotary_factor in (0, 1]");
    spec->rope_theta = theta;
    spec->rotary = (int64_t)(partial * (double)spec->D);
    if (rope.status != ZINC_OK)
        cfg->status = rope.status;
}

void zn_cfg_windows(zn_cfg *cfg, zn_model_spec *spec, int64_t first, int64_t step)
{
    if (cfg->status == ZINC_OK && !spec->layer_windowed)
        cfg->status = zn_alloc(&spec->layer_windowed, (size_t)spec->L, "layer windows");
    if (cfg->status != ZINC_OK || spec->window == 0)
        return;
    for (int64_t i = first; i < spec->L; i += step)
        spec->layer_windowed[i] = 1;
    const json_t *types = lookup(cfg, "layer_types");
    if (!types)
        return;
    if (json_array_size(types) != (size_t)spec->L) {
        zn_cfg_fail(cfg, ZINC_E_FORMAT, "layer_types must be a list of %lld names, one a layer",
                    (long long)spec->L);
        return;
    }
    for (int64_t i = 0; i < spec->L; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (!type ||
            (strcmp(type, "full_attention") != 0 && strcmp(type, "sliding_attention") != 0)) {
            zn_cfg_fail(cfg, ZINC_E_UNSUPPORTED,
                        "layer_types: \"%s\" is not supported (full_attention and "
                        "sliding_attention are)",
                        type ? type : "(not a string)");
            return;
        }
        spec->layer_windowed[i] = type[0] == 's';
    }
}

void zn_cfg_family(zn_cfg *cfg, const zn_family *family, zn_model_spec *spec)
{
    spec->V = zn_cfg_count(cfg, "vocab_size", family->V);
    spec->C = zn_cfg_count(cfg, "hidden_size", family->C);
    spec->F = zn_cfg_count(cfg, "intermediate_size", family->F);
    spec->L = zn_cfg_count(cfg, "num_hidden_layers", family->L);
    spec->H = zn_cfg_count(cfg, "num_attention_heads", family->H);
    spec->K = zn_cfg_count(cfg, "num_key_value_heads", family->K ? family->K : spec->H);
    if (zn_cfg_is_null(cfg, "num_key_value_heads"))
        spec->K = spec->H;
    spec->D = zn_cfg_count(cfg, "head_dim", family->D ? family->D : spec->C / spec->H);
    spec->max_positions = zn_cfg_count(cfg, "max_position_embeddings", family->max_positions);
    spec->norm = ZN_NORM_RMS;
    spec->norm_eps = (float)zn_cfg_real(cfg, "rms_norm_eps", family->eps);
    spec->pre_norms = true;
    spec->gated_mlp = true;
    spec->act = zn_cfg_act(cfg, family->act_key, family->act);
    spec->tied = zn_cfg_flag(cfg, "tie_word_embeddings", family->tied);
    spec->attn_dropout = zn_cfg_dropout(cfg, "attention_dropout", 0);
    spec->attn_scale = (float)(1 / sqrt((double)spec->D));
    spec->bos_id = zn_cfg_token(cfg, "bos_token_id", family->bos);
    spec->eos_id = zn_cfg_token(cfg, "eos_token_id", family->eos);
    spec->pad_id = zn_cfg_token(cfg, "pad_token_id", family->pad);
    zn_cfg_rope(cfg, spec, 10000, 1);
}

static void read_common(zn_cfg *cfg, zn_model_spec *spec)
{
    spec->embed_scale = 1;
    spec->init_std = (float)zn_cfg_real(cfg, "initializer_range", 0.02);
    const char *dtype = zn_cfg_string(cfg, "dtype", zn_cfg_string(cfg, "torch_dtype", "float32"));
    if (zn_dtype_parse(dtype, &spec->dtype) != 0)
        zn_cfg_fail(cfg, ZINC_E_UNSUPPORTED,
                    "dtype \"%s\" is not supported (float32, bfloat16, float16 are)", dtype);
    if (lookup(cfg, "quantization_config"))
        zn_cfg_fail(cfg, ZINC_E_UNSUPPORTED,
                    "quantized weights (quantization_config) are not supported; use the "
                    "unquantized model");
}

/* What no architecture may get past: later code relies on all of it. */
static void check(zn_cfg *cfg, const zn_model_spec *spec)
{
    if (spec->L > ZN_MAX_LAYERS_NAMED)
        zn_cfg_fail(cfg, ZINC_E_FORMAT, "%lld layers; at most %d are supported", (long long)spec->L,
                    ZN_MAX_LAYERS_NAMED);
    if (spec->D < 1 || spec->H * spec->D > COUNT_MAX)
        zn_cfg_fail(cfg, ZINC_E_FORMAT, "%lld heads do not fit hidden size %lld",
                    (long long)spec->H, (long long)spec->C);
    if (spec->H % spec->K != 0)
        zn_cfg_fail(cfg, ZINC_E_FORMAT,
                    "%lld attention heads are not a multiple of %lld key/value heads",
                    (long long)spec->H, (long long)spec->K);
    if (spec->rope != ZN_ROPE_NONE && (spec->rotary < 2 || spec->rotary % 2 != 0))
        zn_cfg_fail(cfg, ZINC_E_FORMAT,
                    "%lld of %lld channels of a head would rotate; an even number of at least 2 "
                    "is needed",
                    (long long)spec->rotary, (long long)spec->D);
    if (!(spec->norm_eps >= 0) || !isfinite(spec->attn_scale))
        zn_cfg_fail(cfg, ZINC_E_FORMAT, "the norm epsilon or the attention scale is no number");
}

static void unknown_type(zn_cfg *cfg, const char *type)
{
    char known[256] = "";
    size_t n = 0;
    for (int i = 0; i < zn_n_archs && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "",
                              zn_archs[i]->model_type);
    if (!type)
        zn_cfg_fail(cfg, ZINC_E_FORMAT, "model_type is missing (known: %s)", known);
    else
        zn_cfg_fail(cfg, ZINC_E_UNSUPPORTED, "model_type \"%s\" is not supported (known: %s)", type,
                    known);
}

static zinc_status read_spec(const char *file, const json_t *root, zn_model_spec *out)
{
    zn_cfg cfg = {.root = root, .path = file};
    zn_model_spec spec = {0};
    if (!json_is_object(root))
        ZN_FAIL(ZINC_E_FORMAT, "%s: a JSON object was expected", file);
    const char *type = zn_cfg_string(&cfg, "model_type", NULL);
    const zn_arch *arch = type ? zn_arch_find(type) : NULL;
    if (!arch) {
        unknown_type(&cfg, type);
        return cfg.status;
    }
    spec.model_type = arch->model_type;
    read_common(&cfg, &spec);
    arch->read(&cfg, &spec);
    check(&cfg, &spec);
    zn_cfg_windows(&cfg, &spec, spec.L, 1); /* allocates; leaves what the architecture set */
    if (cfg.status != ZINC_OK) {
        zn_model_spec_fini(&spec);
        return cfg.status;
    }
    *out = spec;
    return ZINC_OK;
}

zinc_status zn_model_spec_load(const char *path, zn_model_spec *out)
{
    char *file = NULL;
    json_t *root = NULL;
    zinc_status status = ZINC_OK;
    if (zn_fs_is_dir(path))
        ZN_TRY(zn_fs_join(path, "config.json", &file));
    else
        ZN_TRY(zn_strdup(path, &file));
    ZN_TRY_GOTO(zn_json_load(file, &root));
    ZN_TRY_GOTO(read_spec(file, root, out));
fail:
    json_decref(root);
    zn_free(file);
    return status;
}

void zn_model_spec_fini(zn_model_spec *spec)
{
    if (!spec)
        return;
    zn_free(spec->layer_windowed);
    memset(spec, 0, sizeof *spec);
}

double zn_model_flops(const zn_model_spec *spec, int64_t B, int64_t T)
{
    double weights = (double)spec->V * (double)spec->C;
    for (int slot = 0; slot < ZN_N_LAYER_SLOTS; slot++) {
        int64_t shape[2];
        if (zn_slot_shape(spec, (zn_slot)slot, shape) == 2)
            weights += (double)spec->L * (double)shape[0] * (double)shape[1];
    }
    double flops = 6 * weights * (double)B * (double)T;
    for (int64_t i = 0; i < spec->L; i++) {
        /* keys seen in a row: T (T+1) / 2, less where a window cuts; 4 D for q.k and p.v */
        const int64_t w =
            spec->window && spec->layer_windowed[i] && spec->window < T ? spec->window : T;
        const double pairs = (double)w * (double)(w + 1) / 2 + (double)(T - w) * (double)w;
        flops += 3 * 4 * pairs * (double)(B * spec->H * spec->D);
    }
    return flops;
}
