/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/launch_internal.h"

#include <ctype.h>
#include <string.h>

/* Words of these characters alone mean themselves in every POSIX shell. */
static bool is_plain(const char *word)
{
    for (const char *c = word; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("_@%+:,./-", *c))
            return false;
    return word[0] != '\0' && (unsigned char)word[0] < 0x80;
}

zinc_status zn_shell_quote(const char *word, zn_buf *out)
{
    if (is_plain(word))
        return zn_buf_puts(out, word);
    ZN_TRY(zn_buf_puts(out, "'"));
    for (const char *c = word; *c; c++)
        if (*c == '\'')
            ZN_TRY(zn_buf_puts(out, "'\\''"));
        else
            ZN_TRY(zn_buf_append(out, c, 1));
    return zn_buf_puts(out, "'");
}

zinc_status zn_shell_command(const zn_words *words, zn_buf *out)
{
    for (int i = 0; i < words->n; i++) {
        if (i > 0)
            ZN_TRY(zn_buf_puts(out, " "));
        ZN_TRY(zn_shell_quote(words->items[i], out));
    }
    return ZINC_OK;
}

/* Take one word of shell text from *text into `word`. Returns false at an open quote. */
static zinc_status split_one(const char **text, const char *option, zn_buf *word)
{
    const char *c = *text;
    char quote = '\0';
    for (; *c && (quote || !isspace((unsigned char)*c)); c++) {
        if (quote ? *c == quote : *c == '\'' || *c == '"') {
            quote = quote ? '\0' : *c;
            continue;
        }
        if (*c == '\\' && c[1] && (quote != '\'') && (!quote || strchr("\"\\$`", c[1])))
            c++;
        ZN_TRY(zn_buf_append(word, c, 1));
    }
    if (quote)
        ZN_FAIL(ZINC_E_INVALID, "--%s: a quote (%c) is not closed", option, quote);
    *text = c;
    return ZINC_OK;
}

zinc_status zn_shell_split(const char *text, const char *option, zn_words *out)
{
    zinc_status status = ZINC_OK;
    zn_buf word = {0};
    for (;;) {
        while (isspace((unsigned char)*text))
            text++;
        if (!*text)
            break;
        word.n = 0;
        ZN_TRY_GOTO(zn_buf_puts(&word, ""));
        ZN_TRY_GOTO(split_one(&text, option, &word));
        ZN_TRY_GOTO(zn_words_add_n(out, word.data, word.n));
    }
fail:
    zn_buf_fini(&word);
    return status;
}
