/* SPDX-License-Identifier: Apache-2.0 */
/* llama.c — Llama and Mistral: RMS norms, rotary positions, grouped heads, gated MLP; Mistral adds
 * a sliding window. Keys and defaults: transformers LlamaConfig, MistralConfig. */
#include "model/model_internal.h"

static void read_llama(zn_cfg *cfg, zn_model_spec *spec)
{
    static const zn_family defaults = {
        .V = 32000,
        .C = 4096,
        .F = 11008,
        .L = 32,
        .H = 32,
        .max_positions = 2048,
        .eps = 1e-6,
        .bos = 1,
        .eos = 2,
        .pad = -1,
        .act_key = "hidden_act",
        .act = "silu",
    };
    zn_cfg_family(cfg, &defaults, spec);
    spec->q_bias = zn_cfg_flag(cfg, "attention_bias", false);
    spec->k_bias = spec->v_bias = spec->o_bias = spec->q_bias;
    spec->mlp_bias = zn_cfg_flag(cfg, "mlp_bias", false);
}

static void read_mistral(zn_cfg *cfg, zn_model_spec *spec)
{
    static const zn_family defaults = {
        .V = 32000,
        .C = 4096,
        .F = 14336,
        .L = 32,
        .H = 32,
        .K = 8,
        .max_positions = 131072,
        .eps = 1e-6,
        .bos = 1,
        .eos = 2,
        .pad = -1,
        .act_key = "hidden_act",
        .act = "silu",
    };
    zn_cfg_family(cfg, &defaults, spec);
    if (!zn_cfg_is_null(cfg, "sliding_window"))
        spec->window = zn_cfg_count(cfg, "sliding_window", 4096);
    zn_cfg_windows(cfg, spec, 0, 1);
}

/* clang-format off */
#define LLAMA_NAMES                                                                                \
    {                                                                                              \
        [ZN_SLOT_NORM1_W] = "input_layernorm.weight",                                              \
        [ZN_SLOT_Q_W] = "self_attn.q_proj.weight",                                                 \
        [ZN_SLOT_Q_B] = "self_attn.q_proj.bias",                                                   \
        [ZN_SLOT_K_W] = "self_attn.k_proj.weight",                                                 \
        [ZN_SLOT_K_B] = "self_attn.k_proj.bias",                                                   \
        [ZN_SLOT_V_W] = "self_attn.v_proj.weight",                                                 \
        [ZN_SLOT_V_B] = "self_attn.v_proj.bias",                                                   \
        [ZN_SLOT_O_W] = "self_attn.o_proj.weight",                                                 \
        [ZN_SLOT_O_B] = "self_attn.o_proj.bias",                                                   \
        [ZN_SLOT_NORM2_W] = "post_attention_layernorm.weight",                                     \
        [ZN_SLOT_GATE_W] = "mlp.gate_proj.weight",                                                 \
        [ZN_SLOT_GATE_B] = "mlp.gate_proj.bias",                                                   \
        [ZN_SLOT_UP_W] = "mlp.up_proj.weight",                                                     \
        [ZN_SLOT_UP_B] = "mlp.up_proj.bias",                                                       \
        [ZN_SLOT_DOWN_W] = "mlp.down_proj.weight",                                                 \
        [ZN_SLOT_DOWN_B] = "mlp.down_proj.bias",                                                   \
        [ZN_SLOT_WTE] = "embed_tokens.weight",                                                     \
        [ZN_SLOT_FINAL_W] = "norm.weight",                                                         \
        [ZN_SLOT_HEAD_W] = "lm_head.weight",                                                       \
    }
/* clang-format on */

const zn_arch zn_arch_llama = {
    .model_type = "llama",
    .read = read_llama,
    .prefix = "model.",
    .layers = "layers.",
    .names = LLAMA_NAMES,
};

const zn_arch zn_arch_mistral = {
    .model_type = "mistral",
    .read = read_mistral,
    .prefix = "model.",
    .layers = "layers.",
    .names = LLAMA_NAMES,
};
