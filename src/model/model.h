/* SPDX-License-Identifier: Apache-2.0 */
/* model.h — one decoder for the whole family of causal language models.
 *
 * An architecture is a spec (what kind of norm, attention, MLP, …) read from config.json plus a
 * table of Hugging Face tensor names (arch/<x>.c + one row in registry.c). There is one forward
 * and one backward; no architecture has its own.
 *
 *   unit "embed"     wte [+ wpe] [+ embedding norm]      (tied head: the head uses it again)
 *   unit "layer.i"   one transformer block, i = 0..L-1
 *   unit "head"      final norm [+ lm_head if untied]
 *
 * The model computes in fp32 whatever the parameters' type: 16-bit weights are widened into one
 * reused buffer as they are used. Nothing of size T x T or N x V exists: attention works in blocks,
 * the head in tiles of rows. With activation checkpointing a block keeps only its input and is
 * computed again in backward; those inputs may live on the host (checkpoints.c).
 * Memory comes from the device account, grows only when a larger batch arrives, and is reused.
 * Reading order: model.h, spec.c, arch/llama.c, params.c, decoder.c, attn_block.c, mlp_block.c,
 * head.c, linear.c, acts.c, decode.c. Layer: model (may use
 * base, device, tensor, kernels). */
#ifndef ZN_MODEL_MODEL_H
#define ZN_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "tensor/param.h"

typedef enum zn_norm_kind {
    ZN_NORM_LAYER,
    ZN_NORM_RMS,
} zn_norm_kind;

typedef enum zn_rope_kind {
    ZN_ROPE_NONE, /* learned positions */
    ZN_ROPE_DEFAULT,
    ZN_ROPE_LINEAR,
    ZN_ROPE_LLAMA3,
} zn_rope_kind;

#define ZN_MAX_LAYERS_NAMED 4096

/* Everything the decoder needs to know. Filled by an architecture from config.json. */
typedef struct zn_model_spec {
    const char *model_type; /* "llama", … static */
    int64_t L, C, H, K, D;  /* layers, hidden, heads, key/value heads, head size */
    int64_t F;              /* MLP inner size */
    int64_t V;              /* vocabulary, as in the checkpoint (padding included) */
    int64_t max_positions;
    zn_norm_kind norm;
    float norm_eps;
    float norm_offset;    /* 1: weights are stored as w - 1 (gemma2) */
    bool norm_bias;       /* layer norm with bias */
    bool post_norms;      /* gemma2: norms after attention and MLP, before the residual add */
    bool pre_norms;       /* false: olmo2, which has post norms only */
    bool qkv_fused;       /* one matrix for q, k, v */
    bool qkv_interleaved; /* gpt_neox: per head q, k, v rows */
    bool gate_up_fused;   /* phi3 */
    bool conv1d;          /* gpt2: weights stored [in, out] */
    bool q_bias, k_bias, v_bias, o_bias, mlp_bias;
    bool qk_norm;      /* RMS norm of q and k, per head (qwen3) */
    bool qk_norm_full; /* …or over all heads at once (olmo2) */
    zn_rope_kind rope;
    double rope_theta;
    int64_t rotary; /* channels of a head that rotate, <= D */
    double rope_factor, rope_low_freq, rope_high_freq;
    int64_t rope_original_positions;
    bool learned_positions; /* gpt2 wpe */
    bool parallel_residual; /* gpt_neox */
    bool gated_mlp;
    zn_act act;
    bool tied; /* head weight is the embedding */
    bool head_bias;
    float attn_scale;                  /* usually 1/sqrt(D) */
    float attn_softcap, final_softcap; /* 0: off */
    float embed_scale;                 /* gemma2: sqrt(C), else 1 */
    int64_t window;                    /* 0: full attention */
    uint8_t *layer_windowed;           /* [L] 1 where `window` applies; owned */
    float embed_dropout, attn_dropout, resid_dropout;
    float init_std;
    zn_dtype dtype;                 /* torch_dtype / dtype of the config */
    int32_t bos_id, eos_id, pad_id; /* -1: none (an eos list gives its first) */
} zn_model_spec;

/** Read DIR/config.json (or the file itself). Errors: E_IO, E_FORMAT, E_UNSUPPORTED (names the
 *  model_type, the known ones, or the feature). Release with zn_model_spec_fini. */
ZINC_MUST_CHECK zinc_status zn_model_spec_load(const char *path, zn_model_spec *out);
void zn_model_spec_fini(zn_model_spec *spec);

/** Names, shapes, units and initialisation of every parameter, in registration order. */
ZINC_MUST_CHECK zinc_status zn_model_param_list(const zn_model_spec *spec, zn_param_list *out);

/** What of a checkpoint folder's tensor names belongs to the model. Maps a stored name to the
 *  canonical parameter name: with or without "transformer."/"model." prefix, and NULL for constant
 *  buffers that are to be ignored (attn.bias, rotary_emb.inv_freq, masked_bias, a tied
 *  lm_head.weight). *known is false for a name that is neither. The result is written to buf[n]. */
const char *zn_model_tensor_name(const zn_model_spec *spec, const char *stored, char *buf, size_t n,
                                 bool *known);

typedef struct zn_model zn_model;

typedef struct zn_model_options {
    bool activation_checkpointing;
    float dropout_scale; /* 1: as the spec says; 0: off */
    /* The inputs of blocks that checkpointing keeps go to the host and come back before their
     * backward. */
    bool checkpoints_on_host;
} zn_model_options;

/** Build the decoder for one rank. spec is copied; dev and kernels are borrowed. */
ZINC_MUST_CHECK zinc_status zn_model_create(const zn_model_spec *spec, const zn_model_options *opts,
                                            zn_device *dev, const zn_kernels *kernels,
                                            zn_model **out);
void zn_model_destroy(zn_model *model);

/* One micro-batch of one rank, on the device. */
typedef struct zn_model_batch {
    int64_t B, T;
    const int32_t *ids;     /* [B,T] in [0, V) */
    const int32_t *targets; /* [B,T] next token, -1: none; NULL in zn_model_logits */
    const uint8_t *mask;    /* [B,T] 1: real; NULL: all */
    const int32_t *segment; /* [B,T] document numbers; NULL: one each row */
    /* [B,T] index for learned positions; NULL: 0..T-1 in every row. Rotary ones only see
     * differences, and always count from the row's start. */
    const int32_t *position;
    const int64_t *sample; /* [B] index in the global batch, for dropout; may be NULL */
    uint64_t dropout_seed; /* folded with the optimizer step */
} zn_model_batch;

/** Forward and backward. Adds the sum of the token losses to *loss_sum (device scalar, fp64) and
 *  the gradient of grad_scale * (that sum) to the parameters' gradients through the hooks.
 *  Collective in so far as the hooks are. Errors: E_NOMEM, the hooks' errors. */
ZINC_MUST_CHECK zinc_status zn_model_train(zn_model *model, const zn_model_batch *batch,
                                           const zn_param_hooks *hooks, float grad_scale,
                                           double *loss_sum);

/** After zn_model_train of `batch`: the first unit whose output holds a number that is not finite,
 * or -1. Reads what forward kept. */
ZINC_MUST_CHECK zinc_status zn_model_first_bad_unit(const zn_model *model,
                                                    const zn_model_batch *batch, int *out);

/** Forward only: adds the sum of the token losses to *loss_sum; logits [B,T,V] are written where
 *  not NULL (host pointer on the CPU device). */
ZINC_MUST_CHECK zinc_status zn_model_eval(zn_model *model, const zn_model_batch *batch,
                                          const zn_param_hooks *hooks, double *loss_sum,
                                          float *logits);

/** Logits [B,V] of the last position of every row (for generation). */
ZINC_MUST_CHECK zinc_status zn_model_last_logits(zn_model *model, const zn_model_batch *batch,
                                                 const zn_param_hooks *hooks, float *logits);

/* The keys and values of one sequence that is being generated (decode.c). */
typedef struct zn_decode zn_decode;

/** An empty sequence of a model, which is borrowed. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_decode_create(zn_model *model, zn_decode **out);
void zn_decode_destroy(zn_decode *decode);

/** Append n ids to the sequence; logits [V] of the last one. Each token goes through the layers
 *  once; the result is that of zn_model_last_logits on all of them but for rounding. Errors:
 *  E_NOMEM; E_INVALID past the positions of a model with learned ones. */
ZINC_MUST_CHECK zinc_status zn_model_decode(zn_decode *decode, const int32_t *ids, int64_t n,
                                            const zn_param_hooks *hooks, float *logits);

/* Device bytes that training a micro-batch takes beside parameters and gradients. */
typedef struct zn_model_memory_bytes {
    int64_t activations; /* ZN_MEM_ACTIVATIONS: kept for backward, and one block's working set */
    int64_t host_activations; /* the same category on the host: checkpoints there */
    int64_t buffers;          /* ZN_MEM_BUFFERS: logits tile, one widened matrix, scratch, angles */
} zn_model_memory_bytes;

/** What zn_model_train will allocate for [B,T], from the code that allocates it. */
void zn_model_memory(const zn_model_spec *spec, const zn_model_options *opts, int64_t B, int64_t T,
                     zn_dtype param_dtype, int n_threads, zn_model_memory_bytes *out);
/** Bytes that a pass over [B,T] copies to the host, and as many back; 0 without
 *  checkpoints_on_host. */
int64_t zn_model_checkpoint_bytes(const zn_model_spec *spec, const zn_model_options *opts,
                                  int64_t B, int64_t T);
/** The activations alone, on the device. */
int64_t zn_model_activation_bytes(const zn_model_spec *spec, const zn_model_options *opts,
                                  int64_t B, int64_t T);

/** Matrix FLOPs of one forward+backward of a micro-batch (no recomputation counted): 6 per weight
 *  and token plus causal attention. */
double zn_model_flops(const zn_model_spec *spec, int64_t B, int64_t T);

#endif
