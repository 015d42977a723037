/* SPDX-License-Identifier: Apache-2.0 */
/* olmo2.c — OLMo 2: norms only after attention and MLP, q and k normed over all heads at once.
 * Keys and defaults: transformers Olmo2Config. */
#include "model/model_internal.h"

static void read_olmo2(zn_cfg *cfg, zn_model_spec *spec)
{
    static const zn_family defaults = {
        .V = 50304,
        .C = 4096,
        .F = 11008,
        .L = 32,
        .H = 32,
        .max_positions = 2048,
        .eps = 1e-5,
        .bos = -1,
        .eos = 50279,
        .pad = 1,
        .act_key = "hidden_act",
        .act = "silu",
    };
    zn_cfg_family(cfg, &defaults, spec);
    spec->pre_norms = false;
    spec->post_norms = true;
    spec->qk_norm_full = true;
    spec->q_bias = zn_cfg_flag(cfg, "attention_bias", false);
    spec->k_bias = spec->v_bias = spec->o_bias = spec->q_bias;
}

const zn_arch zn_arch_olmo2 = {
    .model_type = "olmo2",
    .read = read_olmo2,
    .prefix = "model.",
    .layers = "layers.",
    .names =
        {
            [ZN_SLOT_Q_W] = "self_attn.q_proj.weight",
            [ZN_SLOT_Q_B] = "self_attn.q_proj.bias",
            [ZN_SLOT_K_W] = "self_attn.k_proj.weight",
            [ZN_SLOT_K_B] = "self_attn.k_proj.bias",
            [ZN_SLOT_V_W] = "self_attn.v_proj.weight",
            [ZN_SLOT_V_B] = "self_attn.v_proj.bias",
            [ZN_SLOT_QNORM_W] = "self_attn.q_norm.weight",
            [ZN_SLOT_KNORM_W] = "self_attn.k_norm.weight",
            [ZN_SLOT_O_W] = "self_attn.o_proj.weight",
            [ZN_SLOT_O_B] = "self_attn.o_proj.bias",
            [ZN_SLOT_POST1_W] = "post_attention_layernorm.weight",
            [ZN_SLOT_GATE_W] = "mlp.gate_proj.weight",
            [ZN_SLOT_UP_W] = "mlp.up_proj.weight",
            [ZN_SLOT_DOWN_W] = "mlp.down_proj.weight",
            [ZN_SLOT_POST2_W] = "post_feedforward_layernorm.weight",
            [ZN_SLOT_WTE] = "embed_tokens.weight",
            [ZN_SLOT_FINAL_W] = "norm.weight",
            [ZN_SLOT_HEAD_W] = "lm_head.weight",
        },
};
