/* SPDX-License-Identifier: Apache-2.0 */
/* phi3.c — Phi-3: llama with q, k, v in one matrix and gate, up in another.
 * Keys and defaults: transformers Phi3Config. embd_pdrop is read by nobody there either. */
#include "model/model_internal.h"

static void read_phi3(zn_cfg *cfg, zn_model_spec *spec)
{
    static const zn_family defaults = {
        .V = 32064,
        .C = 3072,
        .F = 8192,
        .L = 32,
        .H = 32,
        .max_positions = 4096,
        .eps = 1e-5,
        .bos = 1,
        .eos = 32000,
        .pad = 32000,
        .act_key = "hidden_act",
        .act = "silu",
    };
    zn_cfg_family(cfg, &defaults, spec);
    spec->qkv_fused = spec->gate_up_fused = true;
    spec->resid_dropout = zn_cfg_dropout(cfg, "resid_pdrop", 0);
    if (!zn_cfg_is_null(cfg, "sliding_window"))
        spec->window = zn_cfg_count(cfg, "sliding_window", 0);
    zn_cfg_windows(cfg, spec, 0, 1);
}

const zn_arch zn_arch_phi3 = {
    .model_type = "phi3",
    .read = read_phi3,
    .prefix = "model.",
    .layers = "layers.",
    .names =
        {
            [ZN_SLOT_NORM1_W] = "input_layernorm.weight",
            [ZN_SLOT_QKV_W] = "self_attn.qkv_proj.weight",
            [ZN_SLOT_O_W] = "self_attn.o_proj.weight",
            [ZN_SLOT_NORM2_W] = "post_attention_layernorm.weight",
            [ZN_SLOT_GATE_UP_W] = "mlp.gate_up_proj.weight",
            [ZN_SLOT_DOWN_W] = "mlp.down_proj.weight",
            [ZN_SLOT_WTE] = "embed_tokens.weight",
            [ZN_SLOT_FINAL_W] = "norm.weight",
            [ZN_SLOT_HEAD_W] = "lm_head.weight",
        },
};
