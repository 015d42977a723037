/* SPDX-License-Identifier: Apache-2.0 */
/* model_internal.h — what the files of model/ share: the table row of an architecture, the slots of
 * parameters, the memory of a pass, and the pieces of forward and backward.
 *
 * Letters: B batch, T sequence, N = B*T rows, C channels, H heads, K key/value heads, D head size,
 * F MLP size, V vocabulary, L layers; HD = H*D, KD = K*D, QKV = HD + 2 KD. */
#ifndef ZN_MODEL_MODEL_INTERNAL_H
#define ZN_MODEL_MODEL_INTERNAL_H

#include <jansson.h>

#include "model/model.h"

/* ---- slots: what a parameter is for. The order is the order of registration. ---- */

typedef enum zn_slot {
    /* of a layer */
    ZN_SLOT_NORM1_W, /* norm before attention */
    ZN_SLOT_NORM1_B,
    ZN_SLOT_QKV_W, /* q, k, v in one matrix, or … */
    ZN_SLOT_QKV_B,
    ZN_SLOT_Q_W, /* … in three */
    ZN_SLOT_Q_B,
    ZN_SLOT_K_W,
    ZN_SLOT_K_B,
    ZN_SLOT_V_W,
    ZN_SLOT_V_B,
    ZN_SLOT_QNORM_W,
    ZN_SLOT_KNORM_W,
    ZN_SLOT_O_W,
    ZN_SLOT_O_B,
    ZN_SLOT_POST1_W, /* norm after attention, before the residual is added */
    ZN_SLOT_NORM2_W, /* norm before the MLP */
    ZN_SLOT_NORM2_B,
    ZN_SLOT_GATE_UP_W, /* gate and up in one matrix, or … */
    ZN_SLOT_GATE_W,    /* … in two (gate only where the MLP is gated) */
    ZN_SLOT_GATE_B,
    ZN_SLOT_UP_W,
    ZN_SLOT_UP_B,
    ZN_SLOT_DOWN_W,
    ZN_SLOT_DOWN_B,
    ZN_SLOT_POST2_W, /* norm after the MLP */
    ZN_N_LAYER_SLOTS,
    /* of the embedding and the head */
    ZN_SLOT_WTE = ZN_N_LAYER_SLOTS,
    ZN_SLOT_WPE,
    ZN_SLOT_FINAL_W,
    ZN_SLOT_FINAL_B,
    ZN_SLOT_HEAD_W,
    ZN_SLOT_HEAD_B,
    ZN_N_SLOTS,
} zn_slot;

/* ---- reading config.json ---- */

/* Sticky: after the first error every read returns its fallback and the error stays. A key that is
 * missing or null gives the fallback. */
typedef struct zn_cfg {
    const json_t *root;
    const char *path;
    zinc_status status;
} zn_cfg;

void zn_cfg_fail(zn_cfg *cfg, zinc_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** An integer in [1, 2^31). */
int64_t zn_cfg_count(zn_cfg *cfg, const char *key, int64_t fallback);
double zn_cfg_real(zn_cfg *cfg, const char *key, double fallback);
bool zn_cfg_flag(zn_cfg *cfg, const char *key, bool fallback);
const char *zn_cfg_string(zn_cfg *cfg, const char *key, const char *fallback);
/** A token id; the first of a list; -1 for null. */
int32_t zn_cfg_token(zn_cfg *cfg, const char *key, int32_t fallback);
bool zn_cfg_is_null(const zn_cfg *cfg, const char *key);
/** A probability in [0, 1). */
float zn_cfg_dropout(zn_cfg *cfg, const char *key, double fallback);
zn_act zn_cfg_act(zn_cfg *cfg, const char *key, const char *fallback);

/* Defaults of a Hugging Face config class whose keys are llama's. */
typedef struct zn_family {
    int64_t V, C, F, L, H;
    int64_t K; /* 0: as H */
    int64_t D; /* 0: C / H */
    int64_t max_positions;
    double eps;
    bool tied;
    int32_t bos, eos, pad;
    const char *act_key, *act;
} zn_family;

/** Read what llama's relatives share: sizes, RMS norm, rotary positions, gated MLP, tied head. */
void zn_cfg_family(zn_cfg *cfg, const zn_family *family, zn_model_spec *spec);
/** rope_parameters, or rope_theta and rope_scaling. `partial`: share of a head that rotates. */
void zn_cfg_rope(zn_cfg *cfg, zn_model_spec *spec, double theta, double partial);
/** Set layer_windowed from layer_types where given; else layer i is windowed from `first` on, every
 *  `step`-th. Without spec->window none is. */
void zn_cfg_windows(zn_cfg *cfg, zn_model_spec *spec, int64_t first, int64_t step);

/* ---- architectures ---- */

/* One row of registry.c. A layer's parameter is called prefix layers N "." names[slot]; those of
 * the embedding and the final norm prefix names[slot]; those of the head names[slot]. */
typedef struct zn_arch {
    const char *model_type;
    void (*read)(zn_cfg *cfg, zn_model_spec *spec);
    const char *prefix; /* "model." */
    const char *layers; /* "layers." */
    const char *names[ZN_N_SLOTS];
} zn_arch;

extern const zn_arch zn_arch_gpt2, zn_arch_llama, zn_arch_mistral, zn_arch_qwen2, zn_arch_qwen3,
    zn_arch_gpt_neox, zn_arch_gemma2, zn_arch_phi3, zn_arch_olmo2;

extern const zn_arch *const zn_archs[];
extern const int zn_n_archs;

/** The architecture of a model_type, or NULL. */
const zn_arch *zn_arch_find(const char *model_type);

/** Shape of a slot under this spec; returns the number of dimensions, 0: the model has no such
 *  parameter. */
int zn_slot_shape(const zn_model_spec *spec, zn_slot slot, int64_t shape[2]);
/** Unit of a slot of layer `layer`. */
int zn_slot_unit(const zn_model_spec *spec, zn_slot slot, int64_t layer);

/* ---- memory of a pass ---- */

typedef enum zn_mode {
    ZN_MODE_EVAL,       /* nothing is kept */
    ZN_MODE_TRAIN,      /* every layer keeps what its backward reads */
    ZN_MODE_TRAIN_CKPT, /* every layer keeps its input; one layer's set is shared */
    ZN_MODE_TRAIN_HOST, /* the same, and the inputs wait on the host: two are on the device */
} zn_mode;

/* What one layer keeps for backward. Norm outputs and the activated MLP are not kept: they are
 * computed again from these, element-wise. In bf16 training att, up and gate are one buffer each
 * for all layers and a layer keeps them rounded to bf16; forward computes with what was not
 * rounded, so that only gradients see it, and the same with and without checkpointing. */
typedef struct zn_layer_acts {
    float *qkv;      /* fused: [N,QKV]; else q [N,HD], k [N,KD], v [N,KD] one after the other.
                        After q/k norm and rope */
    float *qk_pre;   /* q [N,HD], k [N,KD] before their norm; q/k norm only */
    float *qk_rstd;  /* [N*(H+K)] or [2N] */
    float *lse;      /* [B,H,T] */
    float *att;      /* [N,HD] attention output before the o projection */
    float *att_pre;  /* [N,C] attention block before its post norm; post norms only */
    float *att_rstd; /* [N] */
    float *x_mid;    /* [N,C] residual stream between attention and MLP */
    float *gate;     /* [N,F] before the activation; gated only */
    float *up;       /* [N,F] before the activation (not gated) or the product (gated) */
    float *mlp_pre;  /* [N,C] MLP before its post norm; post norms only */
    float *mlp_rstd; /* [N] */
    uint16_t *att_kept, *up_kept, *gate_kept; /* bf16, shapes as above; NULL: those are kept */
} zn_layer_acts;

/* One slab of ZN_MEM_ACTIVATIONS and one of ZN_MEM_BUFFERS hold everything below. */
typedef struct zn_acts {
    float **x;            /* [L+1] of [N,C]: input of layer i; the last is the final norm's input.
                             One buffer for all in evaluation, two by turns under ZN_MODE_TRAIN_HOST */
    zn_layer_acts *layer; /* [L]; all the same under checkpointing and evaluation */
    float *n;             /* [N,C] norm output, block output, and their gradients */
    float *work;          /* [N, max(F, HD + QKV)] activated MLP | gradients of att and qkv */
    float *dx;            /* [N,C] gradient of the residual stream */
    float *dres;          /* [N,C] its copy where both branches start from it */
    float *mean, *rstd;   /* [N] of the last norm */
    /* buffers */
    float *wide;         /* one matrix in fp32 */
    float *vec[3];       /* [max vector] norm weight, norm bias, unwanted gradients */
    float *tile;         /* [tile_rows, V] logits, rows tile_ld apart */
    float *row_loss;     /* [tile_rows] */
    float *norm_scratch; /* zn_norm_scratch(max C, HD) */
    float *attn_scratch;
    float *gemm_scratch; /* zn_gemm_bf16_scratch; NULL without bf16_gemm */
    int64_t tile_rows, tile_ld;
} zn_acts;

typedef struct zn_shape {
    int64_t B, T;
    zn_mode mode;
    zn_dtype param_dtype;
    bool bf16_gemm; /* matrices go into products as they are, activations rounded to bf16 */
    int n_threads;
} zn_shape;

/** Place everything for this shape. With bases NULL only the sizes are computed; x and layer of
 *  `acts` may then be NULL. */
void zn_acts_place(const zn_model_spec *spec, const zn_shape *shape, char *acts_base,
                   char *buffers_base, zn_acts *acts, size_t *acts_bytes, size_t *buffers_bytes);

/** How a model with these options trains. */
zn_mode zn_train_mode(const zn_model_options *opts);

struct zn_model {
    zn_model_spec spec;
    zn_model_options opts;
    zn_device *dev;
    const zn_kernels *kernels;
    int *layer_ids;      /* [L][ZN_N_LAYER_SLOTS] parameter id, -1: none */
    int ids[ZN_N_SLOTS]; /* of the embedding and the head */
    zn_acts acts;
    char *acts_slab, *buffers_slab;
    float *host_x; /* checkpoints_on_host: [L-1] of [N,C], inputs of all blocks but the last */
    size_t host_x_bytes;
    zn_event fetched;  /* the copy of a block's input back to the device */
    zn_event saved[2]; /* the copy to the host out of each of the two */
    size_t acts_bytes, buffers_bytes;
    float *rope_cos, *rope_sin; /* [tables_T, rotary/2] */
    int32_t *positions;         /* [tables_T] 0, 1, … ; learned positions */
    int64_t tables_T;
};

/** Cosines and sines for T positions into host memory [T, rotary/2] (rope.c). */
void zn_rope_table(const zn_model_spec *spec, int64_t T, float *cos_out, float *sin_out);

/* ---- one pass ---- */

struct zn_decode {
    zn_model *model;
    float *cache;   /* [L][2][capacity, K*D] keys (after norm and rope), values */
    float *scratch; /* [capacity] */
    int64_t n, capacity;
};

typedef struct zn_run {
    zn_model *m;
    const zn_model_spec *spec;
    const zn_kernels *k;
    zn_stream *s;
    const zn_model_batch *batch;
    const zn_param_hooks *hooks;
    const zn_acts *acts;
    int64_t N; /* B*T */
    float grad_scale;
    bool bf16_gemm;    /* as in zn_shape */
    bool dropout;      /* training */
    zn_decode *decode; /* generation: the batch's tokens follow `past` earlier ones; else NULL */
    int64_t past;
} zn_run;

/* A matrix inside a parameter: y[N,out] = x[N,in] W (+ bias). */
typedef struct zn_matrix {
    int param;
    int64_t offset; /* elements into the parameter */
    int64_t in, out;
    bool conv1d;      /* stored [in,out] instead of [out,in] */
    bool part;        /* the parameter holds another matrix too */
    int64_t n_groups; /* 0; or heads of a [heads,3,D,in] matrix that is used as [3,heads,D,in] */
} zn_matrix;

/** y = x W; rows of x and y are ldx, ldy apart. */
zinc_status zn_linear(const zn_run *run, const zn_matrix *w, const float *x, int64_t ldx, float *y,
                      int64_t ldy);
/** dx = dy W^T [+ dx]. */
zinc_status zn_linear_backward_x(const zn_run *run, const zn_matrix *w, const float *dy,
                                 int64_t lddy, float *dx, int64_t lddx, bool accumulate);
/** Gradient of W += x^T dy, through hooks->grad. */
zinc_status zn_linear_backward_w(const zn_run *run, const zn_matrix *w, const float *x, int64_t ldx,
                                 const float *dy, int64_t lddy);
/** x[N,C] += bias, param < 0: nothing. n_groups as in zn_matrix. */
zinc_status zn_bias(const zn_run *run, int param, int64_t n_groups, float *x, int64_t N, int64_t C);
zinc_status zn_bias_backward(const zn_run *run, int param, int64_t n_groups, const float *dy,
                             int64_t N, int64_t C);
/** The matrix as operands of zn_product: the parameter itself, or its widened copy, valid until the
 *  next call. As stored: trans is false. */
zinc_status zn_matrix_operand(const zn_run *run, const zn_matrix *w, zn_operand *out);
/** C[M,N] = A[M,K] B[K,N], or added: in fp32, or with operands rounded to bf16 where run->bf16_gemm
 *  (only there may an operand or C be bf16). */
zinc_status zn_product(const zn_run *run, int64_t M, int64_t N, int64_t K, zn_operand A,
                       zn_operand B, zn_result C);
/** Where the gradient of a whole matrix goes; p NULL: it is frozen. last: nothing is added to it
 *  later; n: the rows that its product sums over. */
zn_result zn_matrix_grad(const zn_run *run, int param, bool last, int64_t n, int64_t ld);
static inline zn_operand zn_rows(const float *p, int64_t ld)
{
    return (zn_operand){.p = p, .dtype = ZN_DTYPE_F32, .ld = ld};
}
static inline zn_result zn_into(float *p, int64_t ld)
{
    return (zn_result){.p = p, .dtype = ZN_DTYPE_F32, .ld = ld};
}
static inline zn_result zn_added_to(float *p, int64_t ld)
{
    return (zn_result){.p = p, .dtype = ZN_DTYPE_F32, .add = true, .ld = ld};
}
static inline zn_operand zn_transposed(zn_operand x)
{
    x.trans = !x.trans;
    return x;
}
/** A vector of n elements in fp32, widened into acts->vec[slot] where needed; NULL for -1. */
zinc_status zn_vector_f32(const zn_run *run, int param, int64_t n, int slot, const float **out);

/** out = norm(x) of [N,C] by the spec's norm kind; statistics go to rstd, and to from
 *  where the backward reads it. */
zinc_status zn_norm(const zn_run *run, int w, int b, const float *x, float *out, int64_t N,
                    float *rstd);
/** dx (+= or =) the norm's backward of dy; gradients of w and b are added. */
zinc_status zn_norm_backward(const zn_run *run, int w, int b, const float *dy, const float *x,
                             const float *rstd, float *dx, bool accumulate);

/** Seed of a dropout site: 0 embedding, 1 attention, 2 after attention, 3 after the MLP. */
uint64_t zn_dropout_seed(const zn_run *run, int64_t layer, uint64_t site);
/** The probability in this pass: 0 in evaluation. */
float zn_dropout_p(const zn_run *run, float p);
/** out = dropout(x) of [N,C]; out may be x. Backward is the same call on the gradient. */
zinc_status zn_drop(const zn_run *run, float *out, const float *x, float p, int64_t layer,
                    uint64_t site);

/** x[n] rounded to bf16 into `kept`, until zn_restore brings it back. NULL: nothing, x stays. */
zinc_status zn_keep(const zn_run *run, uint16_t *kept, const float *x, int64_t n);
zinc_status zn_restore(const zn_run *run, float *x, const uint16_t *kept, int64_t n);

/* checkpoints.c: where blocks' inputs wait on the host; all do nothing without
 * checkpoints_on_host. */
zinc_status zn_checkpoints_reserve(zn_model *m, int64_t N);
/** x[i] is complete: begin its copy to the host, and have x[i+1]'s buffer free. */
zinc_status zn_checkpoint_save(const zn_run *run, int64_t i);
/** Begin to bring back x[i]; the buffer it goes to is not needed any more. */
zinc_status zn_checkpoint_fetch(const zn_run *run, int64_t i);
/** Wait until x[i] is back. */
zinc_status zn_checkpoint_wait(const zn_run *run, int64_t i);

/** x[i] -> x[i+1]. With `again` (recomputation) x[i+1] is left alone. */
zinc_status zn_block_forward(const zn_run *run, int64_t i, bool again);
/** acts->dx: gradient of x[i+1] -> gradient of x[i]. */
zinc_status zn_block_backward(const zn_run *run, int64_t i);
zinc_status zn_attn_forward(const zn_run *run, int64_t i);
zinc_status zn_attn_backward(const zn_run *run, int64_t i, const float *dy);
zinc_status zn_mlp_forward(const zn_run *run, int64_t i, bool again);
zinc_status zn_mlp_backward(const zn_run *run, int64_t i, const float *dy);

/** Room in the cache for n more tokens. */
zinc_status zn_decode_reserve(zn_decode *decode, int64_t n);
/** Keep k and v of this pass (a->k, a->v, with their strides) as those of layer i, and attend: out
 *  [N,H*D]. lse and scratch are those of a pass of its own. */
zinc_status zn_decode_attention(const zn_run *run, int64_t i, const zn_attention *a, float *out,
                                float *lse, float *scratch);

/** Final norm, logits and loss; with `backward` also their gradients, leaving acts->dx. logits
 *  [N,V] where not NULL. The units are already in use. */
zinc_status zn_head(const zn_run *run, bool backward, double *loss_sum, float *logits);
/** Logits [B,V] of the last position of each row. */
zinc_status zn_head_last(const zn_run *run, float *logits);

static inline int zn_layer_param(const zn_run *run, int64_t layer, zn_slot slot)
{
    return run->m->layer_ids[layer * ZN_N_LAYER_SLOTS + (int)slot];
}

#endif
