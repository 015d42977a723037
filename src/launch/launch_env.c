/* SPDX-License-Identifier: Apache-2.0 */
/* launch_env.c — environment variables: those of this process, of files and of --export. */
#include "launch/launch_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"

extern char **environ;

const char *zn_launch_getenv(const char *name)
{
    return getenv(name);
}

static bool is_name(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(isalpha((unsigned char)text[i]) || text[i] == '_' ||
              (i > 0 && isdigit((unsigned char)text[i]))))
            return false;
    return n > 0;
}

zinc_status zn_env_parse(const char *text, size_t n_bytes, const char *path, zn_words *out)
{
    zinc_status status = ZINC_OK;
    zn_buf line = {0};
    int number = 0;
    for (size_t begin = 0, end; begin < n_bytes; begin = end + 1) {
        for (end = begin; end < n_bytes && text[end] != '\n'; end++) {
        }
        number++;
        size_t first = begin, last = end;
        while (first < last && isspace((unsigned char)text[first]))
            first++;
        if (last > first && text[last - 1] == '\r')
            last--;
        if (last - first > 7 && strncmp(text + first, "export ", 7) == 0)
            first += 7;
        if (first == last || text[first] == '#')
            continue;
        line.n = 0;
        ZN_TRY_GOTO(zn_buf_append(&line, text + first, last - first));
        const char *equals = strchr(line.data, '=');
        if (!equals || !is_name(line.data, (size_t)(equals - line.data)) ||
            strlen(line.data) != line.n)
            ZN_FAIL_GOTO(ZINC_E_CONFIG,
                         "%s:%d: expected NAME=VALUE, a comment or a blank line; found \"%s\"",
                         path, number, line.data);
        ZN_TRY_GOTO(zn_words_set(out, line.data));
    }
fail:
    zn_buf_fini(&line);
    return status;
}

static zinc_status read_file(const char *folder, const char *name, zn_words *out)
{
    zinc_status status = ZINC_OK;
    char *path = NULL;
    zn_buf text = {0};
    ZN_TRY(zn_fs_join(folder, name, &path));
    if (zn_fs_exists(path) && !zn_fs_is_dir(path)) {
        ZN_TRY_GOTO(zn_fs_read(path, 1 << 20, &text));
        ZN_TRY_GOTO(zn_env_parse(text.data, text.n, path, out));
    }
fail:
    zn_buf_fini(&text);
    zn_free(path);
    return status;
}

static zinc_status add_export(const char *text, zn_words *out)
{
    const size_t n = strcspn(text, "=");
    if (!is_name(text, n))
        ZN_FAIL(ZINC_E_INVALID, "--export \"%s\": expected NAME=VALUE or NAME", text);
    if (text[n] == '=')
        return zn_words_set(out, text);
    const char *value = getenv(text);
    if (!value)
        ZN_FAIL(ZINC_E_INVALID, "--export %s: it has no value here; write --export %s=VALUE", text,
                text);
    zinc_status status;
    char *assignment;
    ZN_TRY(zn_format(&assignment, "%s=%s", text, value));
    status = zn_words_set(out, assignment);
    zn_free(assignment);
    return status;
}

zinc_status zn_env_collect(const char *const *exports, int n_exports, zn_words *out)
{
    const char *home = getenv("HOME"), *name = getenv("DS_ENV_FILE");
    const char *const files[] = {name && *name ? name : ".deepspeed_env", ".zinc_env"};
    for (int i = 0; i < 2; i++) {
        if (files[i][0] == '/') {
            ZN_TRY(read_file("/", files[i] + 1, out));
            continue;
        }
        if (home && *home)
            ZN_TRY(read_file(home, files[i], out));
        ZN_TRY(read_file(".", files[i], out));
    }
    for (int i = 0; i < n_exports; i++)
        ZN_TRY(add_export(exports[i], out));
    return ZINC_OK;
}

zinc_status zn_env_forward(zn_words *out)
{
    static const char *const names[] = {"PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX",
                                        "LANG", "LC_ALL",          "TZ"};
    static const char *const prefixes[] = {
        "ZINC_",  "PYTHON", "OMP_", "MKL_",          "NCCL_", "UCX_",      "MV2",
        "MLFLOW", "WANDB_", "HF_",  "TRANSFORMERS_", "TORCH", "CUDA_HOME", "DEEPSPEED_"};
    for (char **e = environ; e && *e; e++) {
        const size_t n = strcspn(*e, "=");
        bool wanted = false;
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
            wanted = wanted || (strlen(names[i]) == n && strncmp(*e, names[i], n) == 0);
        for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
            wanted = wanted || strncmp(*e, prefixes[i], strlen(prefixes[i])) == 0;
        if (wanted)
            ZN_TRY(zn_words_set(out, *e));
    }
    return ZINC_OK;
}
