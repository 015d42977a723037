/* SPDX-License-Identifier: Apache-2.0 */
/* gpt2.c — GPT-2: learned positions, layer norms with bias, one c_attn matrix, weights [in,out].
 * Keys and defaults: transformers GPT2Config. */
#include <math.h>

#include "model/model_internal.h"

static void read_gpt2(zn_cfg *cfg, zn_model_spec *spec)
{
    spec->V = zn_cfg_count(cfg, "vocab_size", 50257);
    spec->C = zn_cfg_count(cfg, "n_embd", 768);
    spec->L = zn_cfg_count(cfg, "n_layer", 12);
    spec->H = spec->K = zn_cfg_count(cfg, "n_head", 12);
    spec->D = spec->C / spec->H;
    spec->F = zn_cfg_count(cfg, "n_inner", 4 * spec->C);
    spec->max_positions = zn_cfg_count(cfg, "n_positions", 1024);
    if (spec->C % spec->H != 0)
        zn_cfg_fail(cfg, ZINC_E_FORMAT, "n_embd %lld is not a multiple of n_head %lld",
                    (long long)spec->C, (long long)spec->H);
    spec->norm = ZN_NORM_LAYER;
    spec->norm_eps = (float)zn_cfg_real(cfg, "layer_norm_epsilon", 1e-5);
    spec->norm_bias = spec->pre_norms = true;
    spec->qkv_fused = spec->conv1d = true;
    spec->q_bias = spec->k_bias = spec->v_bias = spec->o_bias = spec->mlp_bias = true;
    spec->learned_positions = true;
    spec->act = zn_cfg_act(cfg, "activation_function", "gelu_new");
    spec->tied = zn_cfg_flag(cfg, "tie_word_embeddings", true);
    spec->attn_scale =
        zn_cfg_flag(cfg, "scale_attn_weights", true) ? (float)(1 / sqrt((double)spec->D)) : 1;
    if (zn_cfg_flag(cfg, "scale_attn_by_inverse_layer_idx", false))
        zn_cfg_fail(cfg, ZINC_E_UNSUPPORTED, "scale_attn_by_inverse_layer_idx is not supported");
    if (zn_cfg_flag(cfg, "add_cross_attention", false))
        zn_cfg_fail(cfg, ZINC_E_UNSUPPORTED, "add_cross_attention is not supported");
    spec->embed_dropout = zn_cfg_dropout(cfg, "embd_pdrop", 0.1);
    spec->attn_dropout = zn_cfg_dropout(cfg, "attn_pdrop", 0.1);
    spec->resid_dropout = zn_cfg_dropout(cfg, "resid_pdrop", 0.1);
    spec->bos_id = zn_cfg_token(cfg, "bos_token_id", 50256);
    spec->eos_id = zn_cfg_token(cfg, "eos_token_id", 50256);
    spec->pad_id = zn_cfg_token(cfg, "pad_token_id", -1);
}

const zn_arch zn_arch_gpt2 = {
    .model_type = "gpt2",
    .read = read_gpt2,
    .prefix = "transformer.",
    .layers = "h.",
    .names =
        {
            [ZN_SLOT_NORM1_W] = "ln_1.weight",
            [ZN_SLOT_NORM1_B] = "ln_1.bias",
            [ZN_SLOT_QKV_W] = "attn.c_attn.weight",
            [ZN_SLOT_QKV_B] = "attn.c_attn.bias",
            [ZN_SLOT_O_W] = "attn.c_proj.weight",
            [ZN_SLOT_O_B] = "attn.c_proj.bias",
            [ZN_SLOT_NORM2_W] = "ln_2.weight",
            [ZN_SLOT_NORM2_B] = "ln_2.bias",
            [ZN_SLOT_UP_W] = "mlp.c_fc.weight",
            [ZN_SLOT_UP_B] = "mlp.c_fc.bias",
            [ZN_SLOT_DOWN_W] = "mlp.c_proj.weight",
            [ZN_SLOT_DOWN_B] = "mlp.c_proj.bias",
            [ZN_SLOT_WTE] = "wte.weight",
            [ZN_SLOT_WPE] = "wpe.weight",
            [ZN_SLOT_FINAL_W] = "ln_f.weight",
            [ZN_SLOT_FINAL_B] = "ln_f.bias",
            [ZN_SLOT_HEAD_W] = "lm_head.weight",
        },
};
