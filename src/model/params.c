/* SPDX-License-Identifier: Apache-2.0 */
/* params.c — which parameters a spec has, how they are called, and what a stored name means. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/model_internal.h"

static int vector_of(bool present, int64_t n, int64_t shape[2])
{
    shape[0] = n;
    shape[1] = 1;
    return present ? 1 : 0;
}

static int matrix_of(const zn_model_spec *spec, bool present, int64_t in, int64_t out,
                     int64_t shape[2])
{
    shape[0] = spec->conv1d ? in : out;
    shape[1] = spec->conv1d ? out : in;
    return present ? 2 : 0;
}

static int attention_shape(const zn_model_spec *m, zn_slot slot, int64_t shape[2])
{
    const int64_t HD = m->H * m->D, KD = m->K * m->D, QKV = HD + 2 * KD;
    const bool split = !m->qkv_fused, qk = m->qk_norm || m->qk_norm_full;
    switch (slot) {
    case ZN_SLOT_QKV_W:
        return matrix_of(m, !split, m->C, QKV, shape);
    case ZN_SLOT_QKV_B:
        return vector_of(!split && m->q_bias, QKV, shape);
    case ZN_SLOT_Q_W:
        return matrix_of(m, split, m->C, HD, shape);
    case ZN_SLOT_Q_B:
        return vector_of(split && m->q_bias, HD, shape);
    case ZN_SLOT_K_W:
    case ZN_SLOT_V_W:
        return matrix_of(m, split, m->C, KD, shape);
    case ZN_SLOT_K_B:
        return vector_of(split && m->k_bias, KD, shape);
    case ZN_SLOT_V_B:
        return vector_of(split && m->v_bias, KD, shape);
    case ZN_SLOT_QNORM_W:
        return vector_of(qk, m->qk_norm_full ? HD : m->D, shape);
    case ZN_SLOT_KNORM_W:
        return vector_of(qk, m->qk_norm_full ? KD : m->D, shape);
    case ZN_SLOT_O_W:
        return matrix_of(m, true, HD, m->C, shape);
    default:
        return vector_of(m->o_bias, m->C, shape);
    }
}

static int mlp_shape(const zn_model_spec *m, zn_slot slot, int64_t shape[2])
{
    const bool fused = m->gate_up_fused;
    switch (slot) {
    case ZN_SLOT_GATE_UP_W:
        return matrix_of(m, fused, m->C, 2 * m->F, shape);
    case ZN_SLOT_GATE_W:
        return matrix_of(m, m->gated_mlp && !fused, m->C, m->F, shape);
    case ZN_SLOT_GATE_B:
        return vector_of(m->gated_mlp && !fused && m->mlp_bias, m->F, shape);
    case ZN_SLOT_UP_W:
        return matrix_of(m, !fused, m->C, m->F, shape);
    case ZN_SLOT_UP_B:
        return vector_of(!fused && m->mlp_bias, m->F, shape);
    case ZN_SLOT_DOWN_W:
        return matrix_of(m, true, m->F, m->C, shape);
    default:
        return vector_of(m->mlp_bias, m->C, shape);
    }
}

int zn_slot_shape(const zn_model_spec *m, zn_slot slot, int64_t shape[2])
{
    switch (slot) {
    case ZN_SLOT_NORM1_W:
    case ZN_SLOT_NORM2_W:
        return vector_of(m->pre_norms, m->C, shape);
    case ZN_SLOT_NORM1_B:
    case ZN_SLOT_NORM2_B:
        return vector_of(m->pre_norms && m->norm_bias, m->C, shape);
    case ZN_SLOT_POST1_W:
    case ZN_SLOT_POST2_W:
        return vector_of(m->post_norms, m->C, shape);
    case ZN_SLOT_FINAL_W:
        return vector_of(true, m->C, shape);
    case ZN_SLOT_FINAL_B:
        return vector_of(m->norm_bias, m->C, shape);
    case ZN_SLOT_HEAD_B:
        return vector_of(m->head_bias, m->V, shape);
    case ZN_SLOT_WTE:
    case ZN_SLOT_HEAD_W: /* never transposed, not even in GPT-2 */
        shape[0] = m->V;
        shape[1] = m->C;
        return slot == ZN_SLOT_WTE || !m->tied ? 2 : 0;
    case ZN_SLOT_WPE:
        shape[0] = m->max_positions;
        shape[1] = m->C;
        return m->learned_positions ? 2 : 0;
    default:
        return slot <= ZN_SLOT_O_B ? attention_shape(m, slot, shape) : mlp_shape(m, slot, shape);
    }
}

int zn_slot_unit(const zn_model_spec *spec, zn_slot slot, int64_t layer)
{
    if (slot < ZN_N_LAYER_SLOTS)
        return (int)(1 + layer);
    return slot == ZN_SLOT_WTE || slot == ZN_SLOT_WPE ? 0 : (int)(1 + spec->L);
}

/* The canonical name of a slot into buf; its length, as snprintf. */
static int slot_name(const zn_arch *arch, zn_slot slot, int64_t layer, char *buf, size_t n)
{
    if (slot < ZN_N_LAYER_SLOTS)
        return snprintf(buf, n, "%s%s%lld.%s", arch->prefix, arch->layers, (long long)layer,
                        arch->names[slot]);
    const bool head = slot == ZN_SLOT_HEAD_W || slot == ZN_SLOT_HEAD_B;
    return snprintf(buf, n, "%s%s", head ? "" : arch->prefix, arch->names[slot]);
}

/* Matrices start normal. Those that write into GPT-2's residual stream start narrower, by the root
 * of how many there are (Radford et al. 2019, section 2.3; transformers does so for gpt2 only). */
static void set_init(const zn_model_spec *spec, zn_slot slot, zn_param_spec *param)
{
    const bool bias = slot == ZN_SLOT_NORM1_B || slot == ZN_SLOT_NORM2_B ||
                      slot == ZN_SLOT_FINAL_B || slot == ZN_SLOT_QKV_B || slot == ZN_SLOT_Q_B ||
                      slot == ZN_SLOT_K_B || slot == ZN_SLOT_V_B || slot == ZN_SLOT_O_B ||
                      slot == ZN_SLOT_GATE_B || slot == ZN_SLOT_UP_B || slot == ZN_SLOT_DOWN_B ||
                      slot == ZN_SLOT_HEAD_B;
    if (param->n_dims == 2) {
        param->init = ZN_INIT_NORMAL;
        param->init_std = spec->init_std;
        if (spec->conv1d && (slot == ZN_SLOT_O_W || slot == ZN_SLOT_DOWN_W))
            param->init_std = (float)(spec->init_std / sqrt(2.0 * (double)spec->L));
    } else {
        param->init = bias || spec->norm_offset > 0 ? ZN_INIT_ZEROS : ZN_INIT_ONES;
        param->no_decay = true;
    }
}

static zinc_status add_slots(const zn_model_spec *spec, const zn_arch *arch, int64_t layer,
                             const zn_slot range[2], zn_param_list *list)
{
    for (int s = (int)range[0]; s <= (int)range[1]; s++) {
        const zn_slot slot = (zn_slot)s;
        char name[256];
        zn_param_spec param = {.name = name, .trainable = true};
        param.n_dims = zn_slot_shape(spec, slot, param.shape);
        if (param.n_dims == 0)
            continue;
        ZN_ASSERT(arch->names[slot]);
        (void)slot_name(arch, slot, layer, name, sizeof name);
        param.unit = zn_slot_unit(spec, slot, layer);
        param.tied = slot == ZN_SLOT_WTE && spec->tied;
        set_init(spec, slot, &param);
        ZN_TRY(zn_param_list_add(list, &param, NULL));
    }
    return ZINC_OK;
}

static zinc_status fill_list(const zn_model_spec *spec, const zn_arch *arch, zn_param_list *list)
{
    static const zn_slot embed[2] = {ZN_SLOT_WTE, ZN_SLOT_WPE};
    static const zn_slot layer[2] = {ZN_SLOT_NORM1_W, ZN_SLOT_POST2_W};
    static const zn_slot head[2] = {ZN_SLOT_FINAL_W, ZN_SLOT_HEAD_B};
    ZN_TRY(zn_param_list_add_unit(list, "embed", NULL));
    ZN_TRY(add_slots(spec, arch, 0, embed, list));
    for (int64_t i = 0; i < spec->L; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "layer.%lld", (long long)i);
        ZN_TRY(zn_param_list_add_unit(list, name, NULL));
        ZN_TRY(add_slots(spec, arch, i, layer, list));
    }
    ZN_TRY(zn_param_list_add_unit(list, "head", NULL));
    return add_slots(spec, arch, 0, head, list);
}

zinc_status zn_model_param_list(const zn_model_spec *spec, zn_param_list *out)
{
    const zn_arch *arch = zn_arch_find(spec->model_type);
    if (!arch)
        ZN_FAIL(ZINC_E_INVALID, "no architecture is called \"%s\"", spec->model_type);
    zn_param_list list = {0};
    const zinc_status status = fill_list(spec, arch, &list);
    if (status != ZINC_OK) {
        zn_param_list_fini(&list);
        return status;
    }
    *out = list;
    return ZINC_OK;
}

/* Text after `prefix`, or NULL if it does not start so. */
static const char *after(const char *text, const char *prefix)
{
    const size_t n = strlen(prefix);
    return strncmp(text, prefix, n) == 0 ? text + n : NULL;
}

/* A layer number without sign or leading zeros, below L; NULL if there is none. */
static const char *parse_layer(const char *text, int64_t L, int64_t *layer)
{
    int64_t value = 0;
    int digits = 0;
    for (; text[digits] >= '0' && text[digits] <= '9' && digits < 6; digits++)
        value = value * 10 + (text[digits] - '0');
    if (digits == 0 || text[digits] != '.' || (digits > 1 && text[0] == '0') || value >= L)
        return NULL;
    *layer = value;
    return text + digits + 1;
}

/* Buffers that checkpoints carry although they are constants. */
static bool is_constant(const char *rest)
{
    static const char *const suffixes[] = {
        "attn.bias",           "attn.masked_bias", "attention.bias", "attention.masked_bias",
        "rotary_emb.inv_freq",
    };
    const size_t n = strlen(rest);
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        const size_t k = strlen(suffixes[i]);
        if (n >= k && strcmp(rest + n - k, suffixes[i]) == 0 && (n == k || rest[n - k - 1] == '.'))
            return true;
    }
    return false;
}

const char *zn_model_tensor_name(const zn_model_spec *spec, const char *stored, char *buf, size_t n,
                                 bool *known)
{
    const zn_arch *arch = zn_arch_find(spec->model_type);
    int64_t shape[2], layer = 0;
    *known = false;
    if (!arch)
        return NULL;
    const char *bare = after(stored, arch->prefix);
    if (!bare)
        bare = stored;
    const char *numbered = after(bare, arch->layers);
    const char *rest = numbered ? parse_layer(numbered, spec->L, &layer) : NULL;
    const int first = rest ? 0 : ZN_N_LAYER_SLOTS, last = rest ? ZN_N_LAYER_SLOTS : ZN_N_SLOTS;
    for (int s = first; s < last; s++) {
        if (!arch->names[s] || strcmp(rest ? rest : bare, arch->names[s]) != 0)
            continue;
        const bool exists = zn_slot_shape(spec, (zn_slot)s, shape) > 0;
        *known = exists || s == ZN_SLOT_HEAD_W;
        if (!exists || slot_name(arch, (zn_slot)s, layer, buf, n) >= (int)n)
            return NULL;
        return buf;
    }
    *known = is_constant(rest ? rest : bare);
    return NULL;
}
