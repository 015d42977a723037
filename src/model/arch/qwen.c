/* SPDX-License-Identifier: Apache-2.0 */
/* qwen.c — Qwen2 (biases on q, k, v) and Qwen3 (norms on q and k, head size of its own).
 * Keys and defaults: transformers Qwen2Config, Qwen3Config. */
#include "model/model_internal.h"

static const zn_family qwen2_defaults = {
    .V = 151936,
    .C = 4096,
    .F = 22016,
    .L = 32,
    .H = 32,
    .K = 32,
    .max_positions = 32768,
    .eps = 1e-6,
    .bos = -1,
    .eos = -1,
    .pad = -1,
    .act_key = "hidden_act",
    .act = "silu",
};

/* The window is off unless use_sliding_window; layers below max_window_layers see everything. */
static void read_windows(zn_cfg *cfg, zn_model_spec *spec)
{
    const int64_t window = zn_cfg_count(cfg, "sliding_window", 4096);
    /* 0 is legal here, and zn_cfg_count is for 1 and more */
    const double first = zn_cfg_real(cfg, "max_window_layers", 28);
    if (!zn_cfg_flag(cfg, "use_sliding_window", false) || zn_cfg_is_null(cfg, "sliding_window"))
        return;
    if (!(first >= 0 && first < 1e9))
        zn_cfg_fail(cfg, ZINC_E_FORMAT, "max_window_layers must be 0 or more, not %g", first);
    spec->window = window;
    zn_cfg_windows(cfg, spec, first >= 0 && first < 1e9 ? (int64_t)first : 0, 1);
}

static void read_qwen2(zn_cfg *cfg, zn_model_spec *spec)
{
    zn_cfg_family(cfg, &qwen2_defaults, spec);
    spec->q_bias = spec->k_bias = spec->v_bias = true;
    read_windows(cfg, spec);
}

static void read_qwen3(zn_cfg *cfg, zn_model_spec *spec)
{
    zn_family defaults = qwen2_defaults;
    defaults.D = 128;
    zn_cfg_family(cfg, &defaults, spec);
    spec->q_bias = zn_cfg_flag(cfg, "attention_bias", false);
    spec->k_bias = spec->v_bias = spec->o_bias = spec->q_bias;
    spec->qk_norm = true;
    read_windows(cfg, spec);
}

/* clang-format off */
#define QWEN_NAMES                                                                                 \
    {                                                                                              \
        [ZN_SLOT_NORM1_W] = "input_layernorm.weight",                                              \
        [ZN_SLOT_Q_W] = "self_attn.q_proj.weight",                                                 \
        [ZN_SLOT_Q_B] = "self_attn.q_proj.bias",                                                   \
        [ZN_SLOT_K_W] = "self_attn.k_proj.weight",                                                 \
        [ZN_SLOT_K_B] = "self_attn.k_proj.bias",                                                   \
        [ZN_SLOT_V_W] = "self_attn.v_proj.weight",                                                 \
        [ZN_SLOT_V_B] = "self_attn.v_proj.bias",                                                   \
        [ZN_SLOT_QNORM_W] = "self_attn.q_norm.weight",                                             \
        [ZN_SLOT_KNORM_W] = "self_attn.k_norm.weight",                                             \
        [ZN_SLOT_O_W] = "self_attn.o_proj.weight",                                                 \
        [ZN_SLOT_O_B] = "self_attn.o_proj.bias",                                                   \
        [ZN_SLOT_NORM2_W] = "post_attention_layernorm.weight",                                     \
        [ZN_SLOT_GATE_W] = "mlp.gate_proj.weight",                                                 \
        [ZN_SLOT_UP_W] = "mlp.up_proj.weight",                                                     \
        [ZN_SLOT_DOWN_W] = "mlp.down_proj.weight",                                                 \
        [ZN_SLOT_WTE] = "embed_tokens.weight",                                                     \
        [ZN_SLOT_FINAL_W] = "norm.weight",                                                         \
        [ZN_SLOT_HEAD_W] = "lm_head.weight",                                                       \
    }
/* clang-format on */

const zn_arch zn_arch_qwen2 = {
    .model_type = "qwen2",
    .read = read_qwen2,
    .prefix = "model.",
    .layers = "layers.",
    .names = QWEN_NAMES,
};

const zn_arch zn_arch_qwen3 = {
    .model_type = "qwen3",
    .read = read_qwen3,
    .prefix = "model.",
    .layers = "layers.",
    .names = QWEN_NAMES,
};
