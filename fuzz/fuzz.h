/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz.h — what a fuzz target is, and a file for parsers that read files.
 *
 * A target feeds any bytes to one parser. It must neither crash, leak nor hang; errors are fine. */
#ifndef ZN_FUZZ_H
#define ZN_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Write the bytes to a file of this process and extension; path must hold 64 bytes. Returns 0, or
 * -1 if the disk does not take them. */
static inline int fuzz_put_file(const uint8_t *data, size_t n, const char *extension, char *path)
{
    snprintf(path, 64, "/tmp/zinc-fuzz-%ld.%s", (long)getpid(), extension);
    FILE *file = fopen(path, "wb");
    if (!file)
        return -1;
    const size_t written = fwrite(data, 1, n, file);
    return fclose(file) == 0 && written == n ? 0 : -1;
}

#endif
