/* SPDX-License-Identifier: Apache-2.0 */
/* What is built on the small collectives, the same for every backend: agreement, splitting, and
 * memory that all ranks see. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* MADV_HUGEPAGE */
#endif
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "comm/comm_internal.h"

/* ---- agreement ---- */

/* The lowest rank whose word is not OK; n_ranks if all are. */
static int lowest_failing(const zn_comm *comm)
{
    int rank = 0;
    while (rank < comm->n_ranks && comm->words[rank] == ZINC_OK)
        rank++;
    return rank;
}

zinc_status zn_comm_agree(zn_comm *comm, zinc_status status)
{
    const int64_t word = status;
    zn_error mine, agreed;
    memset(&mine, 0, sizeof mine);
    if (status != ZINC_OK)
        zn_error_save(&mine, status);
    agreed = mine;
    zinc_status result = zn_comm_exchange(comm, &word, sizeof word, comm->words, "agree");
    const int failing = result == ZINC_OK ? lowest_failing(comm) : comm->n_ranks;
    if (result == ZINC_OK && failing == comm->n_ranks)
        return ZINC_OK;
    if (result == ZINC_OK)
        result = zn_comm_broadcast_now(comm, &agreed, sizeof agreed, failing, "agree");
    if (result != ZINC_OK) /* this rank's own failure says more than that of the comm */
        return status != ZINC_OK ? zn_error_restore(&mine) : result;
    (void)zn_error_restore(&agreed);
    if (failing != comm->rank)
        zn_error_prefix("rank %d: ", failing);
    return agreed.status;
}

/* ---- splitting ---- */

static bool comes_before(const int64_t *words, int a, int b)
{
    const int64_t key_a = words[2 * a + 1], key_b = words[2 * b + 1];
    return key_a < key_b || (key_a == key_b && a < b);
}

/* group [n_ranks]: the ranks of this rank's color, ordered by (key, rank). Returns how many. */
static int collect_group(const zn_comm *comm, int *group, int *my_rank)
{
    int n = 0;
    for (int r = 0; r < comm->n_ranks; r++) {
        if (comm->words[2 * r] != comm->words[2 * comm->rank])
            continue;
        int at = n++;
        for (; at > 0 && comes_before(comm->words, r, group[at - 1]); at--)
            group[at] = group[at - 1];
        group[at] = r;
    }
    for (int i = 0; i < n; i++)
        if (group[i] == comm->rank)
            *my_rank = i;
    return n;
}

/* The child of this rank, without the backend's state. Not collective. */
static zinc_status create_child(zn_comm *comm, int **group, zn_comm **out)
{
    zn_comm *child = NULL;
    ZN_TRY(zn_alloc_array(group, (size_t)comm->n_ranks, sizeof **group, "ranks of a group"));
    ZN_TRY(zn_comm_handle_create(comm->ops, comm->dev, comm->timeout_ms, &child));
    *out = child;
    child->parent = comm;
    child->n_ranks = collect_group(comm, *group, &child->rank);
    return zn_comm_handle_size(child);
}

zinc_status zn_comm_split(zn_comm *comm, int color, int key, zn_comm **out)
{
    const int64_t mine[2] = {color, key};
    zinc_status status;
    zn_comm *child = NULL;
    int *group = NULL;
    ZN_TRY(zn_comm_exchange(comm, mine, sizeof mine, comm->words, "split"));
    ZN_TRY_GOTO(zn_comm_agree(comm, create_child(comm, &group, &child)));
    ZN_TRY_GOTO(comm->ops->split(comm, group, child));
    ZN_TRY_GOTO(zn_comm_barrier(child, "split"));
    zn_free(group);
    *out = child;
    return ZINC_OK;
fail:
    zn_free(group);
    zn_comm_handle_destroy(child);
    return status;
}

/* ---- shared memory ---- */

/* One page in front of the memory that the ranks see. The last rank to free it unmaps both. */
typedef struct shared_head {
    _Atomic int n_users;
    size_t n_mapped;
} shared_head;

#define HEAD_BYTES ((size_t)4096)

static zinc_status map_shared(size_t n_bytes, int n_users, void **out)
{
    if (n_bytes > (size_t)INT64_MAX / 2)
        ZN_FAIL(ZINC_E_NOMEM, "a shared buffer of %zu bytes is more than any machine has", n_bytes);
    const size_t n_mapped = n_bytes + HEAD_BYTES;
    void *const map =
        mmap(NULL, n_mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        ZN_FAIL(ZINC_E_NOMEM, "the system has no %zu bytes for a buffer shared by %d ranks",
                n_bytes, n_users);
    (void)madvise(map, n_mapped, MADV_HUGEPAGE); /* a wish */
    shared_head *const head = map;
    head->n_users = n_users;
    head->n_mapped = n_mapped;
    *out = (char *)map + HEAD_BYTES;
    return ZINC_OK;
}

static void unmap_shared(void *ptr)
{
    void *const map = (char *)ptr - HEAD_BYTES;
    shared_head *const head = map;
    if (atomic_fetch_sub(&head->n_users, 1) == 1)
        munmap(map, head->n_mapped);
}

zinc_status zn_comm_alloc_shared(zn_comm *comm, size_t n_bytes, void *out)
{
    zinc_status status = ZINC_OK;
    void *ptr = NULL;
    if (!comm->ops->shares_memory)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "ranks of the %s backend do not share memory", comm->ops->name);
    if (comm->rank == 0)
        status = map_shared(n_bytes, comm->n_ranks, &ptr);
    ZN_TRY_GOTO(zn_comm_agree(comm, status));
    const int64_t word = (int64_t)(uintptr_t)ptr;
    ZN_TRY_GOTO(zn_comm_exchange(comm, &word, sizeof word, comm->words, "alloc_shared"));
    ptr = (char *)(uintptr_t)comm->words[0]; /* rank 0's */
    memcpy(out, &ptr, sizeof ptr);
    return ZINC_OK;
fail:
    /* Ranks that have the pointer already may use it: it stays mapped. Only a failing comm gets
     * here, and its job ends. */
    return status;
}

void zn_comm_free_shared(zn_comm *comm, void *ptr)
{
    (void)comm;
    if (ptr)
        unmap_shared(ptr);
}
