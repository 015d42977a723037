/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/ask.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <termios.h>
#include <unistd.h>

#define MAX_LINE 1024

enum { KEY_CTRL_C = 3, KEY_CTRL_D = 4, KEY_ESCAPE = 27 };

static zinc_status interrupted(void)
{
    ZN_FAIL(ZINC_E_ABORTED, "interrupted; nothing was written");
}

/* The line without its end. A terminal's Ctrl-C ends the process by the signal itself. */
static zinc_status read_line(const char *question, char *line)
{
    size_t n = 0;
    for (;;) {
        char c;
        const ssize_t got = read(STDIN_FILENO, &c, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0 && n == 0)
            ZN_FAIL(ZINC_E_CONFIG, "the answers end before \"%s\" (--yes takes the defaults)",
                    question);
        if (got <= 0 || c == '\n')
            break;
        if (c != '\r' && n + 1 < MAX_LINE)
            line[n++] = c;
    }
    line[n] = '\0';
    return ZINC_OK;
}

/* Say what is wrong and, on a terminal, ask again. */
static zinc_status wrong(const zn_asker *asker, const char *question, const char *line,
                         const char *wanted)
{
    if (!asker->terminal)
        ZN_FAIL(ZINC_E_CONFIG, "\"%s\" is no answer to \"%s\": %s", line, question, wanted);
    fprintf(stderr, "  %s\n", wanted);
    return ZINC_OK;
}

/* Print the question and read a line; with a pipe the answer is shown after it. */
static zinc_status ask_line(const zn_asker *asker, const char *question, const char *shown,
                            char *line)
{
    fprintf(stderr, "%s%s%s%s ", question, shown ? " [" : "", shown ? shown : "",
            shown ? "]:" : "");
    fflush(stderr);
    ZN_TRY(read_line(question, line));
    if (!asker->terminal)
        fprintf(stderr, "%s\n", line);
    return ZINC_OK;
}

zinc_status zn_ask_text(const zn_asker *asker, const char *question, const char *fallback,
                        char *out, size_t n)
{
    char line[MAX_LINE];
    for (;;) {
        if (asker->defaults && fallback)
            line[0] = '\0';
        else
            ZN_TRY(ask_line(asker, question, fallback && *fallback ? fallback : NULL, line));
        const char *text = *line ? line : fallback;
        if (text && strlen(text) < n) {
            snprintf(out, n, "%s", text);
            return ZINC_OK;
        }
        ZN_TRY(wrong(asker, question, line, text ? "that is too long" : "this needs an answer"));
    }
}

zinc_status zn_ask_yes(const zn_asker *asker, const char *question, bool fallback, bool *out)
{
    char line[MAX_LINE];
    *out = fallback;
    while (!asker->defaults) {
        ZN_TRY(ask_line(asker, question, fallback ? "YES/no" : "yes/NO", line));
        if (!*line)
            return ZINC_OK;
        const bool yes = strcasecmp(line, "yes") == 0 || strcasecmp(line, "y") == 0 ||
                         strcasecmp(line, "true") == 0;
        const bool no = strcasecmp(line, "no") == 0 || strcasecmp(line, "n") == 0 ||
                        strcasecmp(line, "false") == 0;
        *out = yes;
        if (yes || no)
            return ZINC_OK;
        ZN_TRY(wrong(asker, question, line, "yes or no, please"));
    }
    return ZINC_OK;
}

static zinc_status ask_number(const zn_asker *asker, const char *question, double fallback,
                              double min, double max, bool whole, double *out)
{
    char line[MAX_LINE], shown[40], wanted[120];
    snprintf(shown, sizeof shown, "%.15g", fallback);
    snprintf(wanted, sizeof wanted, "a%s number from %.15g to %.15g, please", whole ? " whole" : "",
             min, max);
    *out = fallback;
    while (!asker->defaults) {
        char *end;
        ZN_TRY(ask_line(asker, question, shown, line));
        if (!*line)
            return ZINC_OK;
        const double x = strtod(line, &end);
        const bool fits = x >= min && x <= max;
        if (end != line && !*end && fits && (!whole || x == (double)(int64_t)x)) {
            *out = x;
            return ZINC_OK;
        }
        ZN_TRY(wrong(asker, question, line, wanted));
    }
    return ZINC_OK;
}

zinc_status zn_ask_int(const zn_asker *asker, const char *question, int64_t fallback, int64_t min,
                       int64_t max, int64_t *out)
{
    double x;
    ZN_TRY(ask_number(asker, question, (double)fallback, (double)min, (double)max, true, &x));
    *out = (int64_t)x;
    return ZINC_OK;
}

zinc_status zn_ask_real(const zn_asker *asker, const char *question, double fallback, double *out)
{
    return ask_number(asker, question, fallback, 0, 1e300, false, out);
}

/* ---- choices ---- */

/* The index of a word or of its number; -1: neither. */
static int find_choice(const char *line, const char *const *words, int n_words)
{
    char *end;
    const long number = strtol(line, &end, 10);
    for (int i = 0; i < n_words; i++)
        if (strcasecmp(line, words[i]) == 0)
            return i;
    return end != line && !*end && number >= 0 && number < n_words ? (int)number : -1;
}

static zinc_status choose_by_line(const zn_asker *asker, const char *question,
                                  const char *const *words, int n_words, int fallback, int *out)
{
    char line[MAX_LINE], wanted[400];
    size_t used = 0;
    for (int i = 0; i < n_words && used < sizeof wanted; i++)
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, "%s%s", i ? ", " : "one of ",
                                 words[i]);
    ZN_TRY(ask_line(asker, question, words[fallback], line));
    *out = *line ? find_choice(line, words, n_words) : fallback;
    return *out >= 0 ? ZINC_OK : wrong(asker, question, line, wanted);
}

static void draw(const char *const *words, int n_words, int at, bool again)
{
    if (again)
        fprintf(stderr, "\x1b[%dA", n_words);
    for (int i = 0; i < n_words; i++)
        fprintf(stderr, "\r\x1b[K %s %d  %s\r\n", i == at ? ">" : " ", i, words[i]);
    fflush(stderr);
}

/* One key press; the arrows as 'k' (up) and 'j' (down), the end of input as Ctrl-D. */
static int read_key(void)
{
    unsigned char c = 0, more[2];
    ssize_t got;
    do {
        got = read(STDIN_FILENO, &c, 1);
    } while (got < 0 && errno == EINTR);
    if (got <= 0)
        return KEY_CTRL_D;
    if (c != KEY_ESCAPE)
        return c;
    for (int i = 0; i < 2; i++) /* an arrow comes as three bytes at once */
        if (read(STDIN_FILENO, &more[i], 1) != 1)
            return KEY_CTRL_D;
    return more[0] != '[' && more[0] != 'O' ? 0 : more[1] == 'A' ? 'k' : more[1] == 'B' ? 'j' : 0;
}

static zinc_status follow_keys(const char *const *words, int n_words, int *at)
{
    for (;;) {
        draw(words, n_words, *at, true);
        const int key = read_key();
        if (key == '\r' || key == '\n')
            return ZINC_OK;
        if (key == KEY_CTRL_C || key == KEY_CTRL_D)
            return interrupted();
        if (key == 'k' && *at > 0)
            (*at)--;
        if (key == 'j' && *at < n_words - 1)
            (*at)++;
        if (key >= '0' && key < '0' + n_words)
            *at = key - '0';
    }
}

/* The terminal gives keys as they are pressed meanwhile, Ctrl-C too, so that it is put back. */
static zinc_status choose_by_keys(const char *question, const char *const *words, int n_words,
                                  int fallback, int *out)
{
    struct termios before, raw;
    fprintf(stderr, "%s (arrow keys or a number, then Enter)\n", question);
    draw(words, n_words, fallback, false);
    if (tcgetattr(STDIN_FILENO, &before) != 0)
        ZN_FAIL(ZINC_E_IO, "cannot ask the terminal: %s", strerror(errno));
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    *out = fallback;
    const zinc_status status = follow_keys(words, n_words, out);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
    return status;
}

zinc_status zn_ask_choice(const zn_asker *asker, const char *question, const char *const *words,
                          int n_words, int fallback, int *out)
{
    *out = fallback;
    if (asker->defaults)
        return ZINC_OK;
    return asker->terminal ? choose_by_keys(question, words, n_words, fallback, out)
                           : choose_by_line(asker, question, words, n_words, fallback, out);
}
