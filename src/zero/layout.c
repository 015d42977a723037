/* SPDX-License-Identifier: Apache-2.0 */
/* layout.c — units to regions, regions to chunks, chunks to slices, slices to pieces. */
#include "zero/zero_internal.h"
#include "zero/zero_plan.h"

static bool is_persistent(const zn_zero *zero, const zn_param_spec *spec, int64_t *budget)
{
    if (spec->n_elems > zero->p.persistence_threshold || spec->n_elems > *budget)
        return false;
    *budget -= spec->n_elems;
    return true;
}

/* Equal chunks of at most ZN_ZERO_CHUNK elements, each a multiple of W parts of aligned length:
 * of S slices, each of which R replicas cut once more. */
static void cut_region(zn_zero_region *region, int64_t n_ranks, int64_t n_replicas)
{
    const int64_t step = n_ranks * n_replicas * ZN_ZERO_ALIGN;
    const int64_t most = ZN_ZERO_CHUNK / step * step;
    region->n_chunks = (region->n_elems + most - 1) / most;
    region->chunk_elems =
        zn_zero_round_up((region->n_elems + region->n_chunks - 1) / region->n_chunks, step);
    region->slice_elems = region->chunk_elems / n_ranks;
    region->padded_elems = region->n_chunks * region->chunk_elems;
}

/* Open the region {unit, trainable, persistent} and place its parameters; none: no region. */
static void place_region(zn_zero *zero, int unit, bool trainable, bool persistent,
                         const bool *persists, int *n_placed)
{
    zn_zero_region region = {
        .unit = unit, .trainable = trainable, .persistent = persistent, .first_piece = *n_placed};
    for (int i = 0; i < zero->list.n_specs; i++) {
        const zn_param_spec *spec = &zero->list.specs[i];
        if (spec->unit != unit || spec->trainable != trainable || persists[i] != persistent)
            continue;
        const int64_t offset = zn_zero_round_up(region.n_elems, ZN_ZERO_ALIGN);
        zero->places[i] = (zn_zero_place){
            .param = i, .region = zero->n_regions, .offset = offset, .n_elems = spec->n_elems};
        zero->placed[(*n_placed)++] = i;
        region.n_elems = offset + spec->n_elems;
        region.tied |= spec->tied;
        region.n_params++;
    }
    if (region.n_params == 0)
        return;
    cut_region(&region, zero->n_ranks, zero->n_replicas);
    if (trainable) {
        region.first_chunk = zero->n_chunks;
        zero->n_chunks += region.n_chunks;
    }
    zn_zero_unit *u = &zero->units[unit];
    u->regions[u->n_regions++] = zero->n_regions;
    zero->regions[zero->n_regions++] = region;
}

/* Call with out NULL to count. Pieces of slice (chunk, rank) in order of offset. */
static int64_t cut_slice(const zn_zero *zero, int r, int64_t chunk, int rank, zn_zero_piece *out)
{
    const zn_zero_region *region = &zero->regions[r];
    const int64_t begin = chunk * region->chunk_elems + rank * region->slice_elems;
    const int64_t end = begin + region->slice_elems;
    int64_t n = 0;
    for (int k = 0; k < region->n_params; k++) {
        const zn_zero_place *place = &zero->places[zero->placed[region->first_piece + k]];
        const int64_t from = place->offset > begin ? place->offset : begin;
        const int64_t place_end = place->offset + place->n_elems;
        const int64_t to = place_end < end ? place_end : end;
        if (from >= to)
            continue;
        if (out)
            out[n] = (zn_zero_piece){.param = place->param,
                                     .region = r,
                                     .rank = rank,
                                     .chunk = chunk,
                                     .in_slice = from - begin,
                                     .n = to - from,
                                     .param_offset = from - place->offset};
        n++;
    }
    return n;
}

static int64_t cut_all(const zn_zero *zero, zn_zero_piece *out)
{
    int64_t n = 0;
    for (int r = 0; r < zero->n_regions; r++)
        for (int64_t chunk = 0; chunk < zero->regions[r].n_chunks; chunk++)
            for (int rank = 0; rank < zero->n_ranks; rank++)
                n += cut_slice(zero, r, chunk, rank, out ? out + n : NULL);
    return n;
}

static void count(zn_zero *zero)
{
    zn_zero_stats *stats = &zero->stats;
    for (int r = 0; r < zero->n_regions; r++) {
        const zn_zero_region *region = &zero->regions[r];
        stats->padded_elems += region->padded_elems;
        if (region->trainable)
            stats->trainable_padded += region->padded_elems;
        if (region->persistent && zero->p.stage == 3)
            stats->persistent_elems += region->padded_elems;
    }
    for (int m = 0; m < zero->n_members; m++)
        zero->units[zero->members[m].unit].n_members++;
    for (int u = 0; u < zero->list.n_units; u++)
        if (zn_zero_unit_elems(zero, u) > stats->largest_unit)
            stats->largest_unit = zn_zero_unit_elems(zero, u);
}

zinc_status zn_zero_layout_regions(zn_zero *zero)
{
    const size_t n_specs = (size_t)zero->list.n_specs;
    const size_t n_units = (size_t)zero->list.n_units;
    zinc_status status;
    bool *persists = NULL;
    ZN_TRY_GOTO(zn_alloc_array(&persists, n_specs, sizeof *persists, "persistence flags"));
    ZN_TRY_GOTO(zn_alloc_array(&zero->regions, 4 * n_units, sizeof *zero->regions, "regions"));
    ZN_TRY_GOTO(zn_alloc_array(&zero->units, n_units, sizeof *zero->units, "units"));
    ZN_TRY_GOTO(zn_alloc_array(&zero->places, n_specs, sizeof *zero->places, "places"));
    ZN_TRY_GOTO(zn_alloc_array(&zero->placed, n_specs, sizeof *zero->placed, "places"));

    int64_t budget = zero->p.model_persistence_threshold;
    for (size_t i = 0; i < n_specs; i++)
        persists[i] = is_persistent(zero, &zero->list.specs[i], &budget);
    int n_placed = 0;
    for (int unit = 0; unit < zero->list.n_units; unit++)
        for (int kind = 0; kind < 4; kind++)
            place_region(zero, unit, kind < 2, kind % 2 == 1, persists, &n_placed);
    count(zero);
    status = ZINC_OK;
fail:
    zn_free(persists);
    return status;
}

zinc_status zn_zero_layout(zn_zero *zero)
{
    ZN_TRY(zn_zero_layout_regions(zero));
    zero->n_pieces = cut_all(zero, NULL);
    ZN_TRY(zn_alloc_array(&zero->pieces, (size_t)zero->n_pieces, sizeof *zero->pieces, "pieces"));
    cut_all(zero, zero->pieces);
    return ZINC_OK;
}
