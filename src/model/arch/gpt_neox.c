/* SPDX-License-Identifier: Apache-2.0 */
/* gpt_neox.c — GPT-NeoX and Pythia: layer norms with bias, part of a head rotates, q, k, v of each
 * head side by side in one matrix, attention and MLP in parallel.
 * Keys and defaults: transformers GPTNeoXConfig. */
#include <math.h>

#include "model/model_internal.h"

static void read_gpt_neox(zn_cfg *cfg, zn_model_spec *spec)
{
    spec->V = zn_cfg_count(cfg, "vocab_size", 50432);
    spec->C = zn_cfg_count(cfg, "hidden_size", 6144);
    spec->L = zn_cfg_count(cfg, "num_hidden_layers", 44);
    spec->H = spec->K = zn_cfg_count(cfg, "num_attention_heads", 64);
    spec->D = spec->C / spec->H;
    spec->F = zn_cfg_count(cfg, "intermediate_size", 24576);
    spec->max_positions = zn_cfg_count(cfg, "max_position_embeddings", 2048);
    if (spec->C % spec->H != 0)
        zn_cfg_fail(cfg, ZINC_E_FORMAT,
                    "hidden_size %lld is not a multiple of num_attention_heads %lld",
                    (long long)spec->C, (long long)spec->H);
    spec->norm = ZN_NORM_LAYER;
    spec->norm_eps = (float)zn_cfg_real(cfg, "layer_norm_eps", 1e-5);
    spec->norm_bias = spec->pre_norms = true;
    spec->qkv_fused = spec->qkv_interleaved = true;
    spec->q_bias = zn_cfg_flag(cfg, "attention_bias", true);
    spec->k_bias = spec->v_bias = spec->o_bias = spec->q_bias;
    spec->mlp_bias = true;
    zn_cfg_rope(cfg, spec, zn_cfg_real(cfg, "rotary_emb_base", 10000),
                zn_cfg_real(cfg, "rotary_pct", 0.25));
    spec->parallel_residual = zn_cfg_flag(cfg, "use_parallel_residual", true);
    spec->act = zn_cfg_act(cfg, "hidden_act", "gelu");
    spec->tied = zn_cfg_flag(cfg, "tie_word_embeddings", false);
    spec->attn_scale = (float)(1 / sqrt((double)spec->D));
    spec->attn_dropout = zn_cfg_dropout(cfg, "attention_dropout", 0);
    spec->resid_dropout = spec->embed_dropout = zn_cfg_dropout(cfg, "hidden_dropout", 0);
    spec->bos_id = zn_cfg_token(cfg, "bos_token_id", 0);
    spec->eos_id = zn_cfg_token(cfg, "eos_token_id", 2);
    spec->pad_id = zn_cfg_token(cfg, "pad_token_id", -1);
}

const zn_arch zn_arch_gpt_neox = {
    .model_type = "gpt_neox",
    .read = read_gpt_neox,
    .prefix = "gpt_neox.",
    .layers = "layers.",
    .names =
        {
            [ZN_SLOT_NORM1_W] = "input_layernorm.weight",
            [ZN_SLOT_NORM1_B] = "input_layernorm.bias",
            [ZN_SLOT_QKV_W] = "attention.query_key_value.weight",
            [ZN_SLOT_QKV_B] = "attention.query_key_value.bias",
            [ZN_SLOT_O_W] = "attention.dense.weight",
            [ZN_SLOT_O_B] = "attention.dense.bias",
            [ZN_SLOT_NORM2_W] = "post_attention_layernorm.weight",
            [ZN_SLOT_NORM2_B] = "post_attention_layernorm.bias",
            [ZN_SLOT_UP_W] = "mlp.dense_h_to_4h.weight",
            [ZN_SLOT_UP_B] = "mlp.dense_h_to_4h.bias",
            [ZN_SLOT_DOWN_W] = "mlp.dense_4h_to_h.weight",
            [ZN_SLOT_DOWN_B] = "mlp.dense_4h_to_h.bias",
            [ZN_SLOT_WTE] = "embed_in.weight",
            [ZN_SLOT_FINAL_W] = "final_layer_norm.weight",
            [ZN_SLOT_FINAL_B] = "final_layer_norm.bias",
            [ZN_SLOT_HEAD_W] = "embed_out.weight",
        },
};
