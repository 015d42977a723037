/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "zn_test.h"

#include "base/copy.h"
#include "base/hash.h"
#include "base/mem.h"

#define ROOM 192 /* bytes around a copy that must stay */

static void a_copy_of_any_size_and_alignment_is_whole_and_ends_where_it_should(void **state)
{
    (void)state;
    static const size_t sizes[] = {
        0, 1, 4097, ZN_COPY_PAST_CACHES - 1, ZN_COPY_PAST_CACHES, ZN_COPY_PAST_CACHES + 16384 + 77};
    static const size_t places[] = {0, 1, 63, 64, 97};
    const size_t n_bytes = ZN_COPY_PAST_CACHES + 16384 + 77 + 2 * ROOM;
    unsigned char *from = NULL, *to = NULL, *want = NULL;
    assert_ok(zn_alloc(&from, n_bytes, "source"));
    assert_ok(zn_alloc(&to, n_bytes, "copy"));
    assert_ok(zn_alloc(&want, n_bytes, "copy"));
    for (size_t i = 0; i < n_bytes; i++)
        from[i] = (unsigned char)zn_hash_mix(i);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t p = 0; p < 5; p++) {
            const size_t at = places[p], source = places[(p + s) % 5];
            memset(to, 0x5a, n_bytes);
            memset(want, 0x5a, n_bytes);
            memcpy(want + at, from + source, sizes[s]);
            zn_copy(to + at, from + source, sizes[s]);
            assert_true(memcmp(to, want, n_bytes) == 0);
        }
    zn_free(from);
    zn_free(to);
    zn_free(want);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_copy_of_any_size_and_alignment_is_whole_and_ends_where_it_should),
};

ZN_TEST_MAIN(tests)
