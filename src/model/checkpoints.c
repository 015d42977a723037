/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoints.c — the inputs of blocks on the host (activation_checkpointing.cpu_checkpointing).
 *
 *   forward   x[i] is copied out while block i reads it; x[i+1] goes into the other buffer
 *   backward  x[i-1] comes back while block i is computed again and differentiated
 *
 * The last block's input and output are still there when backward begins, so blocks 0 to L-2 make
 * the journey. Copies run on the two copy engines of the device, each way at the link's speed. */
#include "model/model_internal.h"

static bool is_away(const zn_run *run, int64_t i)
{
    return run->m->opts.checkpoints_on_host && run->dropout && i >= 0 && i < run->spec->L - 1;
}

static size_t input_bytes(const zn_model *m, int64_t N)
{
    return (size_t)(N * m->spec.C) * sizeof(float);
}

/* The copy comes after what the compute stream has been given so far. */
static zinc_status after_compute(const zn_run *run, bool to_device, zn_stream **link)
{
    zn_event computed = {0};
    *link = zn_device_link(run->m->dev, to_device);
    if (!*link)
        ZN_FAIL(ZINC_E_DEVICE, "the device has no copy engine");
    ZN_TRY(zn_stream_point(run->s, &computed));
    return zn_stream_wait_event(*link, computed);
}

zinc_status zn_checkpoints_reserve(zn_model *m, int64_t N)
{
    const size_t n_bytes = (size_t)(m->spec.L - 1) * input_bytes(m, N);
    if (!m->opts.checkpoints_on_host || n_bytes <= m->host_x_bytes)
        return ZINC_OK;
    zn_device_free(m->dev, m->host_x);
    m->host_x = NULL;
    m->host_x_bytes = 0;
    ZN_TRY(zn_device_alloc(m->dev, ZN_PLACE_HOST, ZN_MEM_ACTIVATIONS, n_bytes,
                           "inputs of blocks, for backward", &m->host_x));
    m->host_x_bytes = n_bytes;
    return ZINC_OK;
}

zinc_status zn_checkpoint_save(const zn_run *run, int64_t i)
{
    zn_model *m = run->m;
    zn_stream *link = NULL;
    if (is_away(run, i)) {
        ZN_TRY(after_compute(run, false, &link));
        ZN_TRY(zn_device_copy(link, m->host_x + i * run->N * m->spec.C, run->acts->x[i],
                              input_bytes(m, run->N), &m->saved[i % 2]));
    }
    return is_away(run, i - 1) ? zn_event_wait(m->saved[(i + 1) % 2], -1) : ZINC_OK;
}

zinc_status zn_checkpoint_fetch(const zn_run *run, int64_t i)
{
    zn_model *m = run->m;
    zn_stream *link = NULL;
    if (!is_away(run, i))
        return ZINC_OK;
    ZN_TRY(after_compute(run, true, &link));
    ZN_TRY(zn_stream_wait_event(link, m->saved[i % 2]));
    return zn_device_copy(link, run->acts->x[i], m->host_x + i * run->N * m->spec.C,
                          input_bytes(m, run->N), &m->fetched);
}

zinc_status zn_checkpoint_wait(const zn_run *run, int64_t i)
{
    return is_away(run, i) ? zn_event_wait(run->m->fetched, -1) : ZINC_OK;
}
