/* SPDX-License-Identifier: Apache-2.0 */
/* windows.c — walks over the elements that this rank updates, with what is on disk brought in
 * window by window.
 *
 *   window k-1: written      window k: worked on      window k+1: read
 *
 * A window holds window_elems positions of every run that is on disk: masters, states, gradients,
 * parameters (tiers.c). Three buffers go round. */
#include "zero/zero_internal.h"

/* How many positions of a run a walk comes to. */
static int64_t run_end(const zn_zero *zero, const zn_zero_walk *walk, int run)
{
    return run != ZN_ZERO_RUN_PARAMS ? zero->offloaded_elems
           : walk->frozen            ? zero->params_end
                                     : zero->trainable_params_end;
}

/* Transfer the parts of one window that lie in one file. */
static zinc_status transfer(zn_zero *zero, const zn_zero_walk *walk, zn_zero_file file,
                            int64_t index, bool write)
{
    zn_zero_window *window = &zero->windows[index % ZN_ZERO_N_WINDOWS];
    zn_disk_run runs[ZN_ZERO_N_RUNS];
    int n_runs = 0;
    const int64_t first = index * zero->window_elems;
    const unsigned wanted = write ? walk->write : walk->read;
    for (int k = 0; k < ZN_ZERO_N_RUNS; k++) {
        const zn_zero_run *run = &zero->runs[k];
        int64_t n = run_end(zero, walk, k) - first;
        if (run->elem_bytes == 0 || run->file != file || !(wanted >> k & 1u) || n <= 0)
            continue;
        n = n < zero->window_elems ? n : zero->window_elems;
        runs[n_runs++] =
            (zn_disk_run){.memory = window->buffer + run->in_window,
                          .offset = run->in_file + first * run->elem_bytes,
                          .n_bytes = zn_zero_round_up(n, ZN_ZERO_BLOCK) * run->elem_bytes};
        *(write ? &zero->stats.disk_written_bytes : &zero->stats.disk_read_bytes) +=
            n * run->elem_bytes;
    }
    if (n_runs == 0)
        return ZINC_OK;
    if (write) {
        ZN_TRY(zn_disk_submit(zero->disks[file], true, runs, n_runs, (zn_event){0},
                              &window->written[file]));
        zero->last_write[file] = window->written[file];
        return ZINC_OK;
    }
    /* the first read of a walk comes after every write of the walks before */
    const zn_event after = walk->next_read == 0 ? zero->last_write[file] : window->written[file];
    return zn_disk_submit(zero->disks[file], false, runs, n_runs, after, &window->ready[file]);
}

static zinc_status read_window(zn_zero *zero, zn_zero_walk *walk, int64_t index)
{
    const int64_t end = walk->frozen ? zero->params_end : zero->offloaded_elems;
    if (walk->next_read > index || index * zero->window_elems >= end)
        return ZINC_OK;
    for (int file = 0; file < ZN_ZERO_N_FILES; file++)
        ZN_TRY(transfer(zero, walk, (zn_zero_file)file, index, false));
    walk->next_read = index + 1;
    return ZINC_OK;
}

static zinc_status open_window(zn_zero *zero, zn_zero_walk *walk, int64_t index)
{
    zn_zero_window *window = &zero->windows[index % ZN_ZERO_N_WINDOWS];
    if (walk->read) {
        ZN_TRY(read_window(zero, walk, index));
        ZN_TRY(read_window(zero, walk, index + 1));
    }
    for (int file = 0; file < ZN_ZERO_N_FILES; file++) {
        ZN_TRY(zn_event_wait(window->written[file], -1));
        ZN_TRY(zn_event_wait(window->ready[file], -1));
    }
    zero->window = window;
    zero->window_index = index;
    return ZINC_OK;
}

static zinc_status close_window(zn_zero *zero, const zn_zero_walk *walk)
{
    if (!zero->window)
        return ZINC_OK;
    zero->window = NULL;
    for (int file = 0; walk->write && file < ZN_ZERO_N_FILES; file++)
        ZN_TRY(transfer(zero, walk, (zn_zero_file)file, zero->window_index, true));
    return ZINC_OK;
}

static void *in_window(const zn_zero *zero, int run, const zn_zero_piece *piece, int64_t offset)
{
    const int64_t first = zero->window_index * zero->window_elems;
    return zero->window->buffer + zero->runs[run].in_window +
           (zn_zero_position(zero, piece, offset) - first) * zero->runs[run].elem_bytes;
}

float *zn_zero_state_at(const zn_zero *zero, int what, const zn_zero_piece *piece, int64_t offset)
{
    const zn_zero_region *region = &zero->regions[piece->region];
    const zn_zero_view *view = what == ZN_ZERO_MASTERS ? &region->master : &region->state[what];
    if (view->base)
        return zn_zero_piece_at(view, piece, offset);
    return in_window(zero, ZN_ZERO_RUN_MASTERS + what - ZN_ZERO_MASTERS, piece, offset);
}

void *zn_zero_grad_at(const zn_zero *zero, const zn_zero_piece *piece, int64_t offset)
{
    const zn_zero_view *view = &zero->regions[piece->region].grad;
    return view->base ? zn_zero_piece_at(view, piece, offset)
                      : in_window(zero, ZN_ZERO_RUN_GRADS, piece, offset);
}

void *zn_zero_param_at(const zn_zero *zero, const zn_zero_piece *piece, int64_t offset)
{
    const zn_zero_region *region = &zero->regions[piece->region];
    return region->param_on_disk ? in_window(zero, ZN_ZERO_RUN_PARAMS, piece, offset)
                                 : zn_zero_piece_at(&region->param, piece, offset);
}

/* ---- the walk ---- */

static bool has_position(const zn_zero_region *region)
{
    return region->offloaded || (region->param_on_disk && !region->trainable);
}

/* Cut the part at the end of its window, and have that window open. */
static zinc_status enter_part(zn_zero *zero, zn_zero_walk *walk)
{
    if (walk->most > 0 && walk->n > walk->most)
        walk->n = walk->most;
    if (!has_position(&zero->regions[walk->piece->region]))
        return ZINC_OK;
    const int64_t position = zn_zero_position(zero, walk->piece, walk->offset);
    const int64_t index = position / zero->window_elems;
    const int64_t left = (index + 1) * zero->window_elems - position;
    if (walk->n > left)
        walk->n = left;
    if (zero->window_bytes == 0 || (zero->window && zero->window_index == index))
        return ZINC_OK;
    ZN_TRY(close_window(zero, walk));
    return open_window(zero, walk, index);
}

static bool is_wanted(const zn_zero *zero, const zn_zero_walk *walk, const zn_zero_piece *piece)
{
    const zn_zero_region *region = &zero->regions[piece->region];
    if (walk->only && walk->only != region)
        return false;
    if (!walk->frozen)
        return zn_zero_updates_here(zero, piece);
    return region->param_on_disk && !region->trainable && piece->rank == zero->rank;
}

bool zn_zero_walk_next(zn_zero *zero, zn_zero_walk *walk)
{
    int64_t done = walk->piece ? walk->offset + walk->n : 0;
    if (!walk->piece)
        zero->window = NULL; /* of a walk that was left before its end */
    while (walk->index < zero->n_pieces) {
        const zn_zero_piece *piece = &zero->pieces[walk->index];
        if (is_wanted(zero, walk, piece) && done < piece->n) {
            walk->piece = piece;
            walk->offset = done;
            walk->n = piece->n - done;
            walk->status = enter_part(zero, walk);
            return walk->status == ZINC_OK;
        }
        walk->index++;
        done = 0;
    }
    walk->status = close_window(zero, walk);
    return false;
}

zinc_status zn_zero_disk_wait(zn_zero *zero)
{
    for (int file = 0; file < ZN_ZERO_N_FILES; file++)
        ZN_TRY(zn_event_wait(zero->last_write[file], -1));
    return ZINC_OK;
}

/* ---- the buffers ---- */

zinc_status zn_zero_windows_alloc(zn_zero *zero)
{
    static const char *const what[] = {"optimizer state", "parameter shards"};
    const char *const dirs[] = {zero->p.disk_path, zero->p.param_disk_path};
    for (int file = 0; file < ZN_ZERO_N_FILES; file++) {
        const zn_disk_params params = {.dir = dirs[file],
                                       .n_bytes = zero->file_bytes[file],
                                       .what = what[file],
                                       .io = zero->p.disk_io};
        if (params.n_bytes > 0)
            ZN_TRY(zn_disk_open(zero->p.dev, &params, &zero->disks[file]));
    }
    for (int i = 0; zero->window_bytes > 0 && i < ZN_ZERO_N_WINDOWS; i++)
        ZN_TRY(zn_zero_host_alloc(zero, ZN_MEM_BUFFERS, zero->window_bytes,
                                  "a window of what is on disk", &zero->windows[i].buffer));
    return ZINC_OK;
}

void zn_zero_windows_free(zn_zero *zero)
{
    for (int file = 0; file < ZN_ZERO_N_FILES; file++)
        zn_disk_close(zero->disks[file]); /* before the memory that it reads and writes */
    for (int i = 0; i < ZN_ZERO_N_WINDOWS; i++)
        zn_device_free(zero->p.dev, zero->windows[i].buffer);
}
