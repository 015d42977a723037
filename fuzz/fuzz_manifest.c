/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the JSON files of a checkpoint: a manifest, and behind each NUL a shard-*.json; what
 * is accepted is looked through. Layer: ckpt. */
#include "fuzz.h"

#include <string.h>

#include "ckpt/checkpoint_internal.h"

static void look(zn_ckpt *ckpt)
{
    for (int i = 0; i < zn_ckpt_n(ckpt); i++)
        for (int what = ZN_CKPT_MASTER; what < zn_ckpt_get_meta(ckpt)->n_states; what++) {
            const int64_t n = zn_ckpt_n_elems(ckpt, i);
            if (zn_ckpt_want(ckpt, i, what, 0, n) == ZINC_OK &&
                zn_ckpt_want(ckpt, i, what, n - 1, 1) != ZINC_OK)
                __builtin_trap();
            (void)zn_ckpt_find(ckpt, zn_ckpt_at(ckpt, i).name);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data;
    const uint8_t *end = n ? memchr(data, 0, n) : NULL;
    size_t at = end ? (size_t)(end - data) : n;
    zn_ckpt *ckpt = NULL;
    if (zn_alloc(&ckpt, sizeof *ckpt, "a checkpoint") != ZINC_OK ||
        zn_strdup("input", &ckpt->dir) != ZINC_OK ||
        zn_manifest_parse(text, at, "input", &ckpt->manifest) != ZINC_OK ||
        zn_alloc_array(&ckpt->found, (size_t)ckpt->manifest.n_files, sizeof *ckpt->found,
                       "files") != ZINC_OK) {
        zn_ckpt_close(ckpt);
        return 0;
    }
    while (at < n) {
        const uint8_t *next = memchr(data + at + 1, 0, n - at - 1);
        const size_t stop = next ? (size_t)(next - data) : n;
        if (zn_ckpt_add_ranges(ckpt, text + at + 1, stop - at - 1, "part") != ZINC_OK)
            break;
        at = stop;
    }
    if (zn_ckpt_arrange(ckpt) == ZINC_OK)
        look(ckpt);
    zn_ckpt_close(ckpt);
    return 0;
}
