/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_env_hosts.c — `zinc env --hostfile F`: every host's rows, side by side where they differ. */
#include "cli/cmd_env.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "launch/launch.h"

/* What one host says of one name; texts are borrowed from the host's parsed rows. */
typedef struct cell {
    const char *name, *unit;
    char *shown; /* owned */
    bool done;   /* printed with an earlier host's */
} cell;

typedef struct host_rows {
    const char *host; /* borrowed */
    json_t *rows;     /* array of the objects of its lines */
    cell *cells;      /* [json_array_size(rows)] */
} host_rows;

static const char *text_of(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text ? text : "";
}

/* As people read it: memory that differs by a few pages is the same. */
static zinc_status show_value(const json_t *row, char **out)
{
    const json_t *value = json_object_get(row, "value");
    if (json_is_string(value))
        return zn_strdup(json_string_value(value), out);
    if (strcmp(text_of(row, "unit"), "bytes") == 0)
        return zn_format(out, "%.1f GiB", json_number_value(value) / 0x1p30);
    return zn_format(out, "%.15g", json_number_value(value));
}

static zinc_status read_host(const zn_host_text *host, host_rows *out)
{
    zinc_status status = ZINC_OK;
    json_t *row = NULL;
    out->host = host->host;
    out->rows = json_array();
    for (const char *at = host->text.n ? host->text.data : ""; *at;) {
        const size_t n = strcspn(at, "\n");
        ZN_TRY_GOTO(zn_json_parse(at, n, host->host, &row));
        if (!out->rows || json_array_append_new(out->rows, row) != 0)
            ZN_FAIL_GOTO(ZINC_E_NOMEM, "out of memory for the rows of %s", host->host);
        at += n + (at[n] == '\n');
    }
    const size_t n = json_array_size(out->rows);
    ZN_TRY_GOTO(zn_alloc_array(&out->cells, n, sizeof *out->cells, "rows"));
    for (size_t i = 0; i < n; i++) {
        const json_t *found = json_array_get(out->rows, i);
        out->cells[i].name = text_of(found, "name");
        out->cells[i].unit = text_of(found, "unit");
        ZN_TRY_GOTO(show_value(found, &out->cells[i].shown));
    }
fail:
    return status;
}

static cell *find_cell(const host_rows *host, const char *name)
{
    for (size_t i = 0; i < json_array_size(host->rows); i++)
        if (strcmp(host->cells[i].name, name) == 0)
            return &host->cells[i];
    return NULL;
}

static const char *shown_by(const host_rows *host, const char *name)
{
    const cell *found = find_cell(host, name);
    return found ? found->shown : "(not reported)";
}

static bool all_agree(const host_rows *hosts, int n, const char *name)
{
    for (int i = 1; i < n; i++)
        if (strcmp(shown_by(&hosts[0], name), shown_by(&hosts[i], name)) != 0)
            return false;
    return true;
}

static zinc_status add_hosts(const host_rows *hosts, int n, const char *name, const char *value,
                             bool json, zn_buf *out)
{
    const char *gap = "";
    for (int i = 0; i < n; i++) {
        if (strcmp(shown_by(&hosts[i], name), value) != 0)
            continue;
        ZN_TRY(zn_buf_puts(out, gap));
        ZN_TRY(json ? zn_json_append_string(out, hosts[i].host, strlen(hosts[i].host))
                    : zn_buf_puts(out, hosts[i].host));
        gap = json ? "," : " ";
    }
    return ZINC_OK;
}

/* One line for a value and the hosts that have it. */
static zinc_status add_value(const host_rows *hosts, int n, const char *name, const char *value,
                             bool first, bool json, zn_buf *out)
{
    if (!json) {
        ZN_TRY(zn_buf_printf(out, "%-18s %-44s ", first ? name : "", value));
        ZN_TRY(add_hosts(hosts, n, name, value, false, out));
        return zn_buf_puts(out, "\n");
    }
    ZN_TRY(zn_buf_puts(out, "{\"name\":"));
    ZN_TRY(zn_json_append_string(out, name, strlen(name)));
    ZN_TRY(zn_buf_puts(out, ",\"value\":"));
    ZN_TRY(zn_json_append_string(out, value, strlen(value)));
    ZN_TRY(zn_buf_puts(out, ",\"hosts\":["));
    ZN_TRY(add_hosts(hosts, n, name, value, true, out));
    return zn_buf_printf(out, "],\"same\":%s}\n", all_agree(hosts, n, name) ? "true" : "false");
}

/* All values of a name, each once, in the order of the hosts. */
static zinc_status add_name(const host_rows *hosts, int n, const char *name, bool json, zn_buf *out)
{
    bool first = true;
    for (int i = 0; i < n; i++) {
        const char *value = shown_by(&hosts[i], name);
        bool seen = false;
        for (int k = 0; k < i && !seen; k++)
            seen = strcmp(shown_by(&hosts[k], name), value) == 0;
        if (seen)
            continue;
        ZN_TRY(add_value(hosts, n, name, value, first, json, out));
        first = false;
    }
    return ZINC_OK;
}

static zinc_status add_all(const host_rows *hosts, int n, bool json, zn_buf *out)
{
    int n_same = 0, n_rows = 0;
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < json_array_size(hosts[i].rows); k++) {
            const char *name = hosts[i].cells[k].name;
            bool done = hosts[i].cells[k].done;
            for (int h = i; h < n && !done; h++) {
                cell *other = find_cell(&hosts[h], name);
                if (other)
                    other->done = true;
            }
            if (done)
                continue;
            const bool same = all_agree(hosts, n, name);
            n_rows++;
            n_same += same;
            if (json || !same) {
                if (!json && n_rows - n_same == 1)
                    ZN_TRY(zn_buf_printf(out, "%-18s %-44s %s\n", "name", "value", "hosts"));
                ZN_TRY(add_name(hosts, n, name, json, out));
            }
        }
    return json ? ZINC_OK
                : zn_buf_printf(out, "%s%d of %d rows are the same on %d %s\n",
                                n_same < n_rows ? "\n" : "", n_same, n_rows, n,
                                n == 1 ? "host" : "hosts");
}

static zinc_status compare(const zn_host_text *texts, int n, bool json, zn_buf *out)
{
    zinc_status status;
    host_rows *hosts = NULL;
    ZN_TRY_GOTO(zn_alloc_array(&hosts, (size_t)n, sizeof *hosts, "hosts"));
    for (int i = 0; i < n; i++)
        ZN_TRY_GOTO(read_host(&texts[i], &hosts[i]));
    ZN_TRY_GOTO(add_all(hosts, n, json, out));
fail:
    for (int i = 0; hosts && i < n; i++) {
        for (size_t k = 0; hosts[i].cells && k < json_array_size(hosts[i].rows); k++)
            zn_free(hosts[i].cells[k].shown);
        zn_free(hosts[i].cells);
        json_decref(hosts[i].rows);
    }
    zn_free(hosts);
    return status;
}

int zn_env_hosts(const zn_args *args)
{
    zinc_status status;
    static const char *const program[] = {"zinc", "env", "--json"};
    zn_launch_options o = {.hostfile = zn_args_get(args, "hostfile"),
                           .num_ranks = 1, /* a host */
                           .launcher = zn_args_get(args, "launcher"),
                           .launcher_args = zn_args_get(args, "launcher_args"),
                           .node_rank = -1,
                           .connect_timeout_s = 20,
                           .grace_s = 5,
                           .program = program,
                           .n_program = 3};
    zn_host_text *texts = NULL;
    zn_buf out = {0};
    int n = 0, code = 0;
    ZN_TRY_GOTO(zn_args_int(args, "ssh_port", 1, 65535, &o.ssh_port));
    ZN_TRY_GOTO(zn_args_real(args, "connect_timeout", 0.1, 1e9, &o.connect_timeout_s));
    ZN_TRY_GOTO(zn_launch_collect(&o, &texts, &n, &code));
    if (code == 0 || code == ZN_EXIT_LOST_HOST) {
        ZN_TRY_GOTO(compare(texts, n, zn_args_flag(args, "json", false), &out));
        fwrite(out.data, 1, out.n, stdout);
    }
fail:
    zn_host_texts_destroy(texts, n);
    zn_buf_fini(&out);
    return status == ZINC_OK ? code : zn_cli_fail("env", status);
}
