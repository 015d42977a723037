/* SPDX-License-Identifier: Apache-2.0 */
#include "train/loader.h"

#include "base/mem.h"

/* The micro-batches of one step. */
typedef struct step_set {
    int64_t step; /* -1: of none */
    zn_batch *batches;
    zn_event ready;
} step_set;

struct zn_loader {
    zn_loader_params p;
    zn_stream *stream;
    step_set sets[2]; /* the one that is used, and the next; step % 2 */
    int64_t *rows;    /* [micro_batch] scratch of who assembles */
    int64_t n_on_the_spot;
};

typedef struct assembly {
    zn_loader *loader;
    step_set *set;
} assembly;

zinc_status zn_loader_create(const zn_loader_params *params, zn_loader **out)
{
    zinc_status status;
    zn_loader *loader = NULL;
    ZN_TRY(zn_alloc(&loader, sizeof *loader, "a loader"));
    loader->p = *params;
    for (int i = 0; i < 2; i++) {
        loader->sets[i].step = -1;
        ZN_TRY_GOTO(zn_alloc_array(&loader->sets[i].batches, (size_t)params->accumulation,
                                   sizeof(zn_batch), "batches"));
    }
    ZN_TRY_GOTO(zn_alloc_array(&loader->rows, (size_t)params->micro_batch, sizeof *loader->rows,
                               "row numbers"));
    ZN_TRY_GOTO(zn_stream_create(params->dev, "data", &loader->stream));
    *out = loader;
    return ZINC_OK;
fail:
    zn_loader_destroy(loader);
    return status;
}

void zn_loader_destroy(zn_loader *loader)
{
    if (!loader)
        return;
    zn_stream_destroy(loader->stream);
    for (int i = 0; i < 2; i++) {
        for (int64_t m = 0; loader->sets[i].batches && m < loader->p.accumulation; m++)
            zn_batch_fini(&loader->sets[i].batches[m]);
        zn_free(loader->sets[i].batches);
    }
    zn_free(loader->rows);
    zn_free(loader);
}

/* On the loader's thread, or on the caller's while that one has nothing to do. */
static zinc_status assemble(void *arg)
{
    const assembly *a = arg;
    const zn_loader *loader = a->loader;
    const zn_loader_params *p = &loader->p;
    const int64_t n_rows = zn_dataset_n_rows(p->dataset), mb = p->micro_batch;
    for (int64_t m = 0; m < p->accumulation; m++) {
        const int64_t in_batch = (m * p->n_ranks + p->rank) * mb;
        const int64_t first = a->set->step * p->accumulation * p->n_ranks * mb + in_batch;
        for (int64_t i = 0; i < mb; i++)
            loader->rows[i] = zn_sampler_row(n_rows, p->seed, p->shuffle, first + i);
        ZN_TRY(zn_batch_fill(&a->set->batches[m], p->dataset, loader->rows, mb, in_batch));
    }
    return ZINC_OK;
}

static zinc_status begin(zn_loader *loader, int64_t step)
{
    const assembly a = {.loader = loader, .set = &loader->sets[step % 2]};
    a.set->step = step;
    return zn_stream_submit(loader->stream, assemble, &a, sizeof a, &a.set->ready);
}

static zinc_status assemble_now(zn_loader *loader, int64_t step)
{
    assembly a = {.loader = loader, .set = &loader->sets[step % 2]};
    ZN_TRY(zn_stream_sync(loader->stream, -1));
    a.set->step = step;
    loader->n_on_the_spot += loader->p.accumulation;
    return assemble(&a);
}

zinc_status zn_loader_step(zn_loader *loader, int64_t step, zn_batch **out)
{
    step_set *const set = &loader->sets[step % 2];
    ZN_TRY(set->step == step ? zn_event_wait(set->ready, -1) : assemble_now(loader, step));
    if (step + 1 < loader->p.end)
        ZN_TRY(begin(loader, step + 1));
    *out = set->batches;
    return ZINC_OK;
}

int64_t zn_loader_n_on_the_spot(const zn_loader *loader)
{
    return loader->n_on_the_spot;
}
