/* SPDX-License-Identifier: Apache-2.0 */
/* Finding rows of the key table, and the nearest name to one that is not there. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "config/config_internal.h"

#define MAX_NEAR_BYTES 64

int zn_key_find(const char *path)
{
    for (int i = 0; i < zn_n_keys; i++)
        if (strcmp(zn_keys[i].path, path) == 0)
            return i;
    return -1;
}

bool zn_key_is_in(int i, const char *parent, const char **name)
{
    const char *path = zn_keys[i].path;
    const char *dot = strrchr(path, '.');
    const size_t n_parent = strlen(parent);
    *name = dot ? dot + 1 : path;
    if (!dot)
        return n_parent == 0;
    return (size_t)(dot - path) == n_parent && memcmp(path, parent, n_parent) == 0;
}

int zn_key_find_in(const char *parent, const char *name, size_t n)
{
    for (int i = 0; i < zn_n_keys; i++) {
        const char *last;
        if (zn_key_is_in(i, parent, &last) && strlen(last) == n && memcmp(last, name, n) == 0)
            return i;
    }
    return -1;
}

bool zn_word_at(const char *words, int i, const char **out, size_t *n)
{
    const char *p = words;
    for (;; i--) {
        p += strspn(p, " ");
        if (*p == '\0')
            return false;
        *n = strcspn(p, " ");
        if (i == 0)
            break;
        p += *n;
    }
    *out = p;
    return true;
}

bool zn_word_in(const char *words, const char *word, bool no_case)
{
    const char *p;
    size_t n;
    for (int i = 0; zn_word_at(words, i, &p, &n); i++)
        if (strlen(word) == n && (no_case ? strncasecmp(p, word, n) == 0 : memcmp(p, word, n) == 0))
            return true;
    return false;
}

static int minimum(int a, int b)
{
    return a < b ? a : b;
}

/* Letters that differ in case, and '-' and '_', are the same. */
static bool same_letter(char a, char b)
{
    a = a == '-' ? '_' : a;
    b = b == '-' ? '_' : b;
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Edit distance with swaps of neighbours (optimal string alignment). */
static int edit_distance(const char *a, int n_a, const char *b, int n_b)
{
    int rows[3][MAX_NEAR_BYTES + 1];
    int *before = rows[0], *last = rows[1], *row = rows[2];
    for (int j = 0; j <= n_b; j++)
        last[j] = before[j] = j;
    for (int i = 1; i <= n_a; i++) {
        row[0] = i;
        for (int j = 1; j <= n_b; j++) {
            row[j] = minimum(last[j - 1] + (same_letter(a[i - 1], b[j - 1]) ? 0 : 1),
                             minimum(last[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) &&
                same_letter(a[i - 2], b[j - 1]))
                row[j] = minimum(row[j], before[j - 2] + 1);
        }
        int *spare = before;
        before = last;
        last = row;
        row = spare;
    }
    return last[n_b];
}

/* How far `name` is from a known name; large if it is not near. A name that was cut short, or
 * whose beginning was left out, counts as two edits. */
static int near_cost(const char *name, const char *known, int n_known)
{
    const int n = (int)strlen(name);
    const int limit = n <= 3 ? 1 : n <= 6 ? 2 : minimum(n / 3 + 1, 6);
    if (n >= MAX_NEAR_BYTES || n_known >= MAX_NEAR_BYTES)
        return MAX_NEAR_BYTES;
    int cost = edit_distance(name, n, known, n_known);
    if (n >= 4 && n < n_known &&
        (strncasecmp(name, known, (size_t)n) == 0 ||
         strncasecmp(name, known + n_known - n, (size_t)n) == 0))
        cost = minimum(cost, 2);
    return cost <= limit ? cost : MAX_NEAR_BYTES;
}

const char *zn_nearest_name(const char *name, const char *const *names, int n)
{
    const char *best = NULL;
    int best_cost = MAX_NEAR_BYTES;
    for (int i = 0; i < n; i++) {
        const int cost = near_cost(name, names[i], (int)strlen(names[i]));
        if (cost < best_cost) {
            best_cost = cost;
            best = names[i];
        }
    }
    return best;
}

const char *zn_nearest_word(const char *name, const char *words, char *buf, size_t n_buf)
{
    int best_cost = MAX_NEAR_BYTES;
    const char *p;
    size_t n;
    for (int i = 0; zn_word_at(words, i, &p, &n); i++) {
        const int cost = near_cost(name, p, (int)n);
        if (cost < best_cost) {
            best_cost = cost;
            snprintf(buf, n_buf, "%.*s", (int)n, p);
        }
    }
    return best_cost < MAX_NEAR_BYTES ? buf : NULL;
}

static void bounds_text(const zn_key *key, char *buf, size_t n)
{
    snprintf(buf, n, " %s %.15g", key->flags & ZN_KEY_POSITIVE ? ">" : ">=", key->min);
    const size_t used = strlen(buf);
    if (key->max != 0)
        snprintf(buf + used, n - used, " and %s %.15g",
                 key->flags & ZN_KEY_BELOW_MAX ? "<" : "<=", key->max);
}

void zn_key_type_text(const zn_key *key, char *buf, size_t n)
{
    char bounds[80];
    bounds_text(key, bounds, sizeof bounds);
    buf[0] = '\0';
    switch (key->type) {
    case ZN_KEY_BOOL:
        snprintf(buf, n, "true or false");
        break;
    case ZN_KEY_INT:
        snprintf(buf, n, "an integer%s", bounds);
        break;
    case ZN_KEY_REAL:
        snprintf(buf, n, "a number%s", bounds);
        break;
    case ZN_KEY_PAIR:
        snprintf(buf, n, "a list of two numbers%s", bounds);
        break;
    case ZN_KEY_TEXT:
        snprintf(buf, n, "text in double quotes");
        break;
    case ZN_KEY_CHOICE: {
        const char *p;
        size_t n_word, used = 0;
        for (int i = 0; zn_word_at(key->words, i, &p, &n_word) && used + n_word + 16 < n; i++)
            used += (size_t)snprintf(buf + used, n - used, "%s\"%.*s\"", i ? ", " : "one of ",
                                     (int)n_word, p);
        break;
    }
    case ZN_KEY_ANY:
        snprintf(buf, n, "anything");
        break;
    case ZN_KEY_BLOCK:
    case ZN_KEY_NAMES:
        snprintf(buf, n, "an object {…}");
        break;
    }
}

int zn_config_n_keys(void)
{
    return zn_n_keys;
}

void zn_config_key(int i, zn_config_key_info *out)
{
    static const char *const types[] = {"boolean", "integer", "number", "text", "choice",
                                        "pair",    "any",     "block",  "block"};
    static const char *const statuses[] = {"honoured", "accepted", "refused", "removed", "alias"};
    const zn_key *key = &zn_keys[i];
    out->path = key->path;
    out->type = types[key->type];
    out->default_text = key->type == ZN_KEY_NAMES ? NULL : key->default_text;
    out->status = statuses[key->status];
    out->doc = key->doc;
}
