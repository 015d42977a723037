/* SPDX-License-Identifier: Apache-2.0 */
/* gemma2.c — Gemma 2: norms before and after both branches (weights stored as w - 1), soft caps,
 * a window on every other layer, scaled embedding. Keys and defaults: transformers Gemma2Config. */
#include <math.h>

#include "model/model_internal.h"

static void read_gemma2(zn_cfg *cfg, zn_model_spec *spec)
{
    static const zn_family defaults = {
        .V = 256000,
        .C = 2304,
        .F = 9216,
        .L = 26,
        .H = 8,
        .K = 4,
        .D = 256,
        .max_positions = 8192,
        .eps = 1e-6,
        .tied = true,
        .bos = 2,
        .eos = 1,
        .pad = 0,
        .act_key = "hidden_activation",
        .act = "gelu_pytorch_tanh",
    };
    zn_cfg_family(cfg, &defaults, spec);
    spec->norm_offset = 1;
    spec->post_norms = true;
    spec->q_bias = zn_cfg_flag(cfg, "attention_bias", false);
    spec->k_bias = spec->v_bias = spec->o_bias = spec->q_bias;
    spec->attn_scale = (float)(1 / sqrt(zn_cfg_real(cfg, "query_pre_attn_scalar", 256)));
    if (!zn_cfg_is_null(cfg, "attn_logit_softcapping"))
        spec->attn_softcap = (float)zn_cfg_real(cfg, "attn_logit_softcapping", 50);
    if (!zn_cfg_is_null(cfg, "final_logit_softcapping"))
        spec->final_softcap = (float)zn_cfg_real(cfg, "final_logit_softcapping", 30);
    if (zn_cfg_flag(cfg, "use_bidirectional_attention", false))
        zn_cfg_fail(cfg, ZINC_E_UNSUPPORTED, "use_bidirectional_attention is not supported");
    spec->embed_scale = (float)sqrt((double)spec->C);
    if (!zn_cfg_is_null(cfg, "sliding_window"))
        spec->window = zn_cfg_count(cfg, "sliding_window", 4096);
    zn_cfg_windows(cfg, spec, 0, 2);
}

const zn_arch zn_arch_gemma2 = {
    .model_type = "gemma2",
    .read = read_gemma2,
    .prefix = "model.",
    .layers = "layers.",
    .names =
        {
            [ZN_SLOT_NORM1_W] = "input_layernorm.weight",
            [ZN_SLOT_Q_W] = "self_attn.q_proj.weight",
            [ZN_SLOT_Q_B] = "self_attn.q_proj.bias",
            [ZN_SLOT_K_W] = "self_attn.k_proj.weight",
            [ZN_SLOT_K_B] = "self_attn.k_proj.bias",
            [ZN_SLOT_V_W] = "self_attn.v_proj.weight",
            [ZN_SLOT_V_B] = "self_attn.v_proj.bias",
            [ZN_SLOT_O_W] = "self_attn.o_proj.weight",
            [ZN_SLOT_O_B] = "self_attn.o_proj.bias",
            [ZN_SLOT_POST1_W] = "post_attention_layernorm.weight",
            [ZN_SLOT_NORM2_W] = "pre_feedforward_layernorm.weight",
            [ZN_SLOT_GATE_W] = "mlp.gate_proj.weight",
            [ZN_SLOT_UP_W] = "mlp.up_proj.weight",
            [ZN_SLOT_DOWN_W] = "mlp.down_proj.weight",
            [ZN_SLOT_POST2_W] = "post_feedforward_layernorm.weight",
            [ZN_SLOT_WTE] = "embed_tokens.weight",
            [ZN_SLOT_FINAL_W] = "norm.weight",
            [ZN_SLOT_HEAD_W] = "lm_head.weight",
        },
};
