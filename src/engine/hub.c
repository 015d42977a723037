/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/hub.h"

#include <ctype.h>
#include <string.h>

#include "base/fs.h"
#include "base/sys.h"

/* "name" or "org/name" of letters, digits, '-', '_' and '.', as the hub allows them. */
static bool is_hub_name(const char *model)
{
    const char *slash = strchr(model, '/');
    if (model[0] == '.' || model[0] == '/' || (slash && (!slash[1] || strchr(slash + 1, '/'))))
        return false;
    for (const char *p = model; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("-_./", *p))
            return false;
    return *model != '\0' && !strstr(model, "..");
}

/* The cache's folder, and what of the environment decided it. */
static zinc_status cache_folder(char **out)
{
    const char *cache = zn_sys_env("HF_HUB_CACHE"), *home = zn_sys_env("HF_HOME");
    const char *user = zn_sys_env("HOME");
    if (cache && *cache)
        return zn_strdup(cache, out);
    if (home && *home)
        return zn_fs_join(home, "hub", out);
    return zn_format(out, "%s/.cache/huggingface/hub", user ? user : "");
}

/* models--org--name below the cache. */
static zinc_status model_folder(const char *cache, const char *model, char **out)
{
    const char *slash = strchr(model, '/');
    if (!slash)
        return zn_format(out, "%s/models--%s", cache, model);
    return zn_format(out, "%s/models--%.*s--%s", cache, (int)(slash - model), model, slash + 1);
}

/* The snapshot that refs/main names, or NULL in *out. */
static zinc_status snapshot(const char *folder, char **out)
{
    zinc_status status = ZINC_OK;
    char *ref = NULL, *path = NULL;
    zn_buf commit = {0};
    ZN_TRY_GOTO(zn_fs_join(folder, "refs/main", &ref));
    if (!zn_fs_exists(ref))
        goto fail;
    ZN_TRY_GOTO(zn_fs_read(ref, 4096, &commit));
    while (commit.n > 0 && strchr(" \r\n", commit.data[commit.n - 1]))
        commit.data[--commit.n] = '\0';
    ZN_TRY_GOTO(zn_format(&path, "%s/snapshots/%s", folder, commit.data ? commit.data : ""));
    if (commit.n > 0 && zn_fs_is_dir(path)) {
        *out = path;
        path = NULL;
    }
fail:
    zn_free(ref);
    zn_free(path);
    zn_buf_fini(&commit);
    return status;
}

zinc_status zn_hub_model_path(const char *model, char **out)
{
    zinc_status status;
    char *cache = NULL, *folder = NULL, *found = NULL;
    if (zn_fs_exists(model) || !is_hub_name(model))
        return zn_strdup(model, out);
    ZN_TRY_GOTO(cache_folder(&cache));
    ZN_TRY_GOTO(model_folder(cache, model, &folder));
    ZN_TRY_GOTO(snapshot(folder, &found));
    if (!found)
        ZN_FAIL_GOTO(ZINC_E_IO,
                     "%s: no such folder, and no model of that name in %s. Download it with: "
                     "python3 -c 'import huggingface_hub; "
                     "print(huggingface_hub.snapshot_download(\"%s\"))'",
                     model, cache, model);
    *out = found;
    found = NULL;
fail:
    zn_free(cache);
    zn_free(folder);
    zn_free(found);
    return status;
}
