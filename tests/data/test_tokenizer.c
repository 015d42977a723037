/* SPDX-License-Identifier: Apache-2.0 */
/* Components one by one. Whole words are tokens (ignore_merges), so the ids show how a text was
 * cut; the expected cuts are those of the documentation of Hugging Face tokenizers. */
#include "tokenizer_maker.h"

#include <pthread.h>

#define MARK "\xE2\x96\x81" /* U+2581 */

/* How the pre-tokenizer (and normalizer) cut `text`; `want` has the pieces, '|' between. */
static void check_cut(const char *normalizer, const char *pre_tokenizer, const char *text,
                      const char *want)
{
    zn_tokenizer *tokenizer = NULL;
    const maker m = {.normalizer = normalizer,
                     .pre_tokenizer = pre_tokenizer,
                     .model = "\"ignore_merges\":true,\"unk_token\":\"?\",",
                     .tokens = want};
    assert_ok(make(&m, &tokenizer));
    check_tokens(tokenizer, text, false, want);
    zn_tokenizer_destroy(tokenizer);
}

static void split_behaviors_keep_drop_or_join_the_delimiters(void **state)
{
    (void)state;
    static const struct {
        const char *behavior, *want;
    } rows[] = {
        {"Removed", "the|final|countdown"},
        {"Isolated", "the|-|final|-|-|countdown"},
        {"MergedWithPrevious", "the-|final-|-|countdown"},
        {"MergedWithNext", "the|-final|-|-countdown"},
        {"Contiguous", "the|-|final|--|countdown"},
    };
    char json[256];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(json, sizeof json,
                 "{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"%s\","
                 "\"invert\":false}",
                 rows[i].behavior);
        check_cut(NULL, json, "the-final--countdown", rows[i].want);
    }
}

static void an_inverted_split_keeps_what_matches(void **state)
{
    (void)state;
    check_cut(NULL,
              "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-z]+\"},\"behavior\":\"Removed\","
              "\"invert\":true}",
              "ab12cd", "ab|cd");
}

static void an_empty_match_cuts_without_taking_text(void **state)
{
    (void)state;
    check_cut(
        NULL,
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?=[A-Z])\"},\"behavior\":\"Isolated\"}",
        "aXbcYd", "a|Xbc|Yd");
}

static void digits_stand_alone_or_in_runs(void **state)
{
    (void)state;
    check_cut(NULL, "{\"type\":\"Digits\",\"individual_digits\":true}", "ab12cd", "ab|1|2|cd");
    check_cut(NULL, "{\"type\":\"Digits\",\"individual_digits\":false}", "ab12cd", "ab|12|cd");
}

static void whitespace_cuts_words_from_punctuation(void **state)
{
    (void)state;
    check_cut(NULL, "{\"type\":\"Whitespace\"}", "Hey man, how's it", "Hey|man|,|how|'|s|it");
    check_cut(NULL, "{\"type\":\"WhitespaceSplit\"}", "Hey man, how's it", "Hey|man,|how's|it");
    check_cut(NULL, "{\"type\":\"Punctuation\"}", "Hey, you!", "Hey|,| you|!");
}

static void metaspace_marks_words_by_its_scheme(void **state)
{
    (void)state;
    check_cut(NULL, "{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\"}", "Hey  you",
              MARK "Hey|" MARK "|" MARK "you");
    check_cut(NULL,
              "{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\",\"prepend_scheme\":\"never\"}",
              "Hey you", "Hey|" MARK "you");
    check_cut(NULL,
              "{\"type\":\"Metaspace\",\"replacement\":\"" MARK
              "\",\"prepend_scheme\":\"always\",\"split\":false}",
              "Hey you", MARK "Hey" MARK "you");
    check_cut(NULL,
              "{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\",\"add_prefix_space\":false}",
              "Hey you", "Hey|" MARK "you");
}

static void metaspace_first_marks_only_the_start_of_the_text(void **state)
{
    (void)state;
    zn_tokenizer *tokenizer = NULL;
    const maker m = {.pre_tokenizer = "{\"type\":\"Metaspace\",\"replacement\":\"" MARK
                                      "\",\"prepend_scheme\":\"first\"}",
                     .model = "\"ignore_merges\":true,",
                     .added = "[{\"id\":200,\"content\":\"<s>\",\"special\":true}]",
                     .tokens = MARK "Hey|you|" MARK "a"};
    assert_ok(make(&m, &tokenizer));
    check_tokens(tokenizer, "Hey<s>you a", false, MARK "Hey|<s>|you|" MARK "a");
    zn_tokenizer_destroy(tokenizer);
}

static void byte_level_takes_a_space_with_the_word_after_it(void **state)
{
    (void)state;
    check_cut(NULL, "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "I'll go\n\n x",
              "\xC4\xA0I|'ll|\xC4\xA0go|\xC4\x8A\xC4\x8A|\xC4\xA0x");
}

static void a_sequence_runs_its_members_in_order(void **state)
{
    (void)state;
    check_cut(NULL,
              "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},"
              "{\"type\":\"Digits\",\"individual_digits\":true}]}",
              "a12 b3", "a|1|2|b|3");
}

static void normalizers_change_the_text_before_it_is_cut(void **state)
{
    (void)state;
    static const char cut[] = "{\"type\":\"WhitespaceSplit\"}";
    check_cut("{\"type\":\"Lowercase\"}", cut, "HeY YOU", "hey|you");
    check_cut("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}", NULL, "  a b ",
              "a b ");
    check_cut("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"o+\"},\"content\":\"0\"}", cut,
              "fooo bo", "f0|b0");
    check_cut("{\"type\":\"NFC\"}", cut, "e\xCC\x81t abc e\xCC\x81", "\xC3\xA9t|abc|\xC3\xA9");
    check_cut("{\"type\":\"NFKC\"}", cut, "\xEF\xAC\x81x", "fix");
    check_cut("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":"
              "\"StripAccents\"},{\"type\":\"Prepend\",\"prepend\":\"_\"}]}",
              cut, "\xC3\xA9t\xC3\xA9", "_ete");
}

/* A form leaves ASCII alone, and the steps around it must not notice. */
static void a_normalizer_that_has_nothing_to_do_is_passed_by(void **state)
{
    (void)state;
    check_cut("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"_\"},"
              "{\"type\":\"NFC\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
              "\"content\":\"__\"},{\"type\":\"NFKC\"},{\"type\":\"Lowercase\"}]}",
              NULL, "A bC d", "_a__bc__d");
}

static void space_in_a_regex_is_what_unicode_calls_white_space(void **state)
{
    (void)state;
    static const char cut[] =
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s\"},\"behavior\":\"Removed\"}";
    check_cut(NULL, cut,
              "a\xC2\x85"
              "b\xE3\x80\x80"
              "c",
              "a|b|c");
    /* U+180E is none, though PCRE2 alone would take it for one */
    check_cut(NULL, cut,
              "a\xE1\xA0\x8E"
              "b",
              "a\xE1\xA0\x8E"
              "b");
}

static void added_tokens_are_cut_out_as_their_flags_say(void **state)
{
    (void)state;
    zn_tokenizer *tokenizer = NULL;
    const maker m = {
        .normalizer = "{\"type\":\"Lowercase\"}",
        .pre_tokenizer = "{\"type\":\"WhitespaceSplit\"}",
        .model = "\"ignore_merges\":true,",
        .added = "[{\"id\":200,\"content\":\"<l>\",\"special\":true,\"lstrip\":true},"
                 "{\"id\":201,\"content\":\"<r>\",\"special\":true,\"rstrip\":true},"
                 "{\"id\":202,\"content\":\"ing\",\"single_word\":true,\"normalized\":false},"
                 "{\"id\":203,\"content\":\"<l>>\",\"special\":true},"
                 "{\"id\":204,\"content\":\"NorM\",\"normalized\":true}]",
        .tokens = "ab|sing|ing_|_ing"};
    assert_ok(make(&m, &tokenizer));
    assert_int_equal(zn_tokenizer_vocab_size(tokenizer), 205);
    assert_int_equal(zn_tokenizer_id(tokenizer, "ing"), 202);
    check_tokens(tokenizer, "ab  <l> ab", false, "ab|<l>|ab");
    check_tokens(tokenizer, "ab<l>>ab", false, "ab|<l>>|ab");
    check_tokens(tokenizer, "<r>  ab<L>", false, "<r>|a|b|<|l|>");
    check_tokens(tokenizer, "sing ing", false, "sing|ing");
    check_tokens(tokenizer, "ing_ (ing)", false, "ing_|(|ing|)");
    check_tokens(tokenizer, "abnORm", false, "ab|NorM");
    zn_tokenizer_destroy(tokenizer);
}

static void templates_stand_around_the_text_and_wrap_one_another(void **state)
{
    (void)state;
#define TEMPLATE(a, b)                                                                             \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"" a                  \
    "\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":"    \
    "\"" b "\",\"type_id\":0}}],\"special_tokens\":{\"" a "\":{\"ids\":[0]},\"" b                  \
    "\":{\"ids\":[1]}}}"
    zn_tokenizer *tokenizer = NULL;
    const maker m = {.post_processor = "{\"type\":\"Sequence\",\"processors\":[" TEMPLATE(
                         "x", "y") ",{\"type\":\"ByteLevel\"}," TEMPLATE("p", "q") "]}"};
    assert_ok(make(&m, &tokenizer));
    check_tokens(tokenizer, "ab", true, " | |a|b|!|!");
    check_tokens(tokenizer, "ab", false, "a|b");
    check_tokens(tokenizer, "", true, " | |!|!");
    zn_tokenizer_destroy(tokenizer);
}

static void merges_go_by_rank_and_then_from_the_left(void **state)
{
    (void)state;
    zn_tokenizer *tokenizer = NULL;
    const maker m = {.merges = "[\"b c\",[\"a\",\"b\"],\"a a\",\"aa a\"]",
                     .tokens = "bc|ab|aa|aaa"};
    assert_ok(make(&m, &tokenizer));
    check_tokens(tokenizer, "abc", false, "a|bc");
    check_tokens(tokenizer, "abx", false, "ab|x");
    check_tokens(tokenizer, "aaaaa", false, "aa|aaa");
    zn_tokenizer_destroy(tokenizer);
}

static void prefix_and_suffix_mark_parts_of_a_word(void **state)
{
    (void)state;
    zn_tokenizer *tokenizer = NULL;
    const maker m = {.pre_tokenizer = "{\"type\":\"WhitespaceSplit\"}",
                     .decoder = "{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}",
                     .model =
                         "\"continuing_subword_prefix\":\"##\",\"end_of_word_suffix\":\"</w>\",",
                     .merges = "[\"a ##b</w>\"]",
                     .tokens = "##b</w>|ab</w>|a</w>|##b"};
    assert_ok(make(&m, &tokenizer));
    zn_ids ids = {0};
    zn_buf text = {0};
    assert_ok(zn_tokenizer_encode(tokenizer, "ab a", 4, false, &ids));
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.ids[0], zn_tokenizer_id(tokenizer, "ab</w>"));
    assert_int_equal(ids.ids[1], zn_tokenizer_id(tokenizer, "a</w>"));
    assert_ok(zn_tokenizer_decode(tokenizer, ids.ids, ids.n, false, &text));
    assert_string_equal(text.data, "ab a");
    zn_ids_fini(&ids);
    zn_buf_fini(&text);
    zn_tokenizer_destroy(tokenizer);
}

static void characters_without_a_token_become_unknown_or_an_error(void **state)
{
    (void)state;
    static const char text[] = "a\xC3\xA9\xC3\xA9z";
    zn_tokenizer *tokenizer = NULL;
    const maker fused = {.model = "\"unk_token\":\"<u>\",\"fuse_unk\":true,", .tokens = "<u>"};
    const maker single = {.model = "\"unk_token\":\"<u>\",", .tokens = "<u>"};
    const maker bytes = {.model = "\"byte_fallback\":true,", .tokens = "<0xC3>|<0xA9>"};
    const maker none = {0};
    assert_ok(make(&fused, &tokenizer));
    check_tokens(tokenizer, text, false, "a|<u>|z");
    zn_tokenizer_destroy(tokenizer);
    assert_ok(make(&single, &tokenizer));
    check_tokens(tokenizer, text, false, "a|<u>|<u>|z");
    zn_tokenizer_destroy(tokenizer);
    assert_ok(make(&bytes, &tokenizer));
    check_tokens(tokenizer, text, false, "a|<0xC3>|<0xA9>|<0xC3>|<0xA9>|z");
    zn_tokenizer_destroy(tokenizer);
    assert_ok(make(&none, &tokenizer));
    zn_ids ids = {0};
    assert_fails(zn_tokenizer_encode(tokenizer, text, strlen(text), false, &ids), ZINC_E_FORMAT,
                 "has no token");
    assert_int_equal(ids.n, 0);
    zn_ids_fini(&ids);
    zn_tokenizer_destroy(tokenizer);
}

/* Without a pre-tokenizer, a long text is cut where no token reaches across: the ids must be those
 * of merging it whole, which two halves with a joint that tokens do cross would not give. */
static void a_text_that_nothing_cuts_is_merged_as_a_whole(void **state)
{
    (void)state;
    zn_tokenizer *tokenizer = NULL;
    const maker m = {.merges = "[\"b a\",\"a b\",\"ab ab\",\"ba ba\"]",
                     .tokens = "ba|ab|abab|baba"};
    assert_ok(make(&m, &tokenizer));
    check_tokens(tokenizer, "ababxabzababab", false, "a|ba|b|x|ab|z|a|baba|b");
    zn_tokenizer_destroy(tokenizer);
}

static void decoders_put_the_text_together(void **state)
{
    (void)state;
    zn_tokenizer *tokenizer = NULL;
    const maker m = {.decoder =
                         "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
                         "{\"String\":\"" MARK "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},"
                         "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,"
                         "\"stop\":1}]}",
                     .tokens = MARK "ab|<0xC3>|<0xA9>|<0xFF>"};
    assert_ok(make(&m, &tokenizer));
    const int32_t a = zn_tokenizer_id(tokenizer, MARK "ab"), b = a + 1, c = a + 2, d = a + 3;
    const int32_t ids[] = {a, b, c, a, b, d, 0};
    zn_buf text = {0};
    assert_ok(zn_tokenizer_decode(tokenizer, ids, 7, false, &text));
    assert_string_equal(text.data, "ab\xC3\xA9 ab\xEF\xBF\xBD\xEF\xBF\xBD");
    zn_buf_fini(&text);
    const int32_t bad = 100000;
    assert_fails(zn_tokenizer_decode(tokenizer, &bad, 1, false, &text), ZINC_E_INVALID, "100000");
    zn_buf_fini(&text);
    zn_tokenizer_destroy(tokenizer);
}

static void text_that_is_not_utf8_is_read_with_replacement_characters(void **state)
{
    (void)state;
    zn_tokenizer *tokenizer = NULL;
    const maker m = {.model = "\"unk_token\":\"?\",", .tokens = "\xEF\xBF\xBD"};
    assert_ok(make(&m, &tokenizer));
    /* a truncated 3-byte form is one replacement, a stray byte another (Unicode, table 3-8) */
    check_tokens(tokenizer, "a\xE2\x82z\xFFy\xF0\x9F", false,
                 "a|\xEF\xBF\xBD|z|\xEF\xBF\xBD|y|\xEF\xBF\xBD");
    zn_tokenizer_destroy(tokenizer);
}

static void what_is_not_supported_is_named(void **state)
{
    (void)state;
    static const struct {
        maker m;
        const char *part;
    } rows[] = {
        {{.normalizer = "{\"type\":\"Precompiled\"}"}, "Precompiled"},
        {{.pre_tokenizer = "{\"type\":\"UnicodeScripts\"}"}, "UnicodeScripts"},
        {{.post_processor = "{\"type\":\"Odd\"}"}, "Odd"},
        {{.decoder = "{\"type\":\"CTC\"}"}, "CTC"},
        {{.model = "\"dropout\":0.1,"}, "dropout"},
        {{.pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},"
                           "\"behavior\":\"Isolated\"}"},
         "&&"},
        {{.pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a{1,3}+\"},"
                           "\"behavior\":\"Isolated\"}"},
         "{n,m}+"},
    };
    zn_tokenizer *tokenizer = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_fails(make(&rows[i].m, &tokenizer), ZINC_E_UNSUPPORTED, rows[i].part);
    const maker regex = {.pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},"
                                          "\"behavior\":\"Isolated\"}"};
    assert_fails(make(&regex, &tokenizer), ZINC_E_FORMAT, "does not compile");
    const maker merge = {.merges = "[\"a b\"]"};
    assert_fails(make(&merge, &tokenizer), ZINC_E_FORMAT, "\"ab\"");
    const char *model = "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}";
    assert_fails(load_text(model, strlen(model), &tokenizer), ZINC_E_UNSUPPORTED, "WordPiece");
    assert_fails(zn_tokenizer_load("/nonexistent/t.json", &tokenizer), ZINC_E_IO, "/nonexistent");
    assert_null(tokenizer);
}

static void a_regex_that_never_ends_is_an_error(void **state)
{
    (void)state;
    zn_tokenizer *tokenizer = NULL;
    const maker m = {.pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a|aa)+[bc]\"},"
                                      "\"behavior\":\"Isolated\"}"};
    assert_ok(make(&m, &tokenizer));
    char text[64];
    memset(text, 'a', sizeof text);
    zn_ids ids = {0};
    assert_fails(zn_tokenizer_encode(tokenizer, text, sizeof text, false, &ids), ZINC_E_FORMAT,
                 "regex");
    zn_ids_fini(&ids);
    zn_tokenizer_destroy(tokenizer);
}

typedef struct thread_job {
    const zn_tokenizer *tokenizer;
    int64_t n_ids;
    bool ok;
} thread_job;

static void *encode_often(void *context)
{
    thread_job *job = context;
    job->ok = true;
    for (int i = 0; i < 50; i++) {
        char text[256];
        zn_ids ids = {0};
        zn_buf back = {0};
        const int n = snprintf(text, sizeof text, "word%d and the other words of %d threads", i, i);
        job->ok = job->ok &&
                  zn_tokenizer_encode(job->tokenizer, text, (size_t)n, false, &ids) == ZINC_OK &&
                  zn_tokenizer_decode(job->tokenizer, ids.ids, ids.n, false, &back) == ZINC_OK &&
                  strcmp(back.data, text) == 0;
        job->n_ids += ids.n;
        zn_ids_fini(&ids);
        zn_buf_fini(&back);
    }
    return NULL;
}

static void several_threads_share_one_tokenizer(void **state)
{
    (void)state;
    zn_tokenizer *tokenizer = NULL;
    pthread_t threads[4];
    thread_job jobs[4] = {0};
    assert_ok(zn_tokenizer_load(ZN_TEST_DATA "/tokenizer/gpt2/tokenizer.json", &tokenizer));
    for (int i = 0; i < 4; i++) {
        jobs[i].tokenizer = tokenizer;
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++) {
        assert_true(jobs[i].ok);
        assert_int_equal(jobs[i].n_ids, jobs[0].n_ids);
    }
    zn_tokenizer_destroy(tokenizer);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(split_behaviors_keep_drop_or_join_the_delimiters),
    cmocka_unit_test(an_inverted_split_keeps_what_matches),
    cmocka_unit_test(an_empty_match_cuts_without_taking_text),
    cmocka_unit_test(digits_stand_alone_or_in_runs),
    cmocka_unit_test(whitespace_cuts_words_from_punctuation),
    cmocka_unit_test(metaspace_marks_words_by_its_scheme),
    cmocka_unit_test(metaspace_first_marks_only_the_start_of_the_text),
    cmocka_unit_test(byte_level_takes_a_space_with_the_word_after_it),
    cmocka_unit_test(a_sequence_runs_its_members_in_order),
    cmocka_unit_test(normalizers_change_the_text_before_it_is_cut),
    cmocka_unit_test(a_normalizer_that_has_nothing_to_do_is_passed_by),
    cmocka_unit_test(space_in_a_regex_is_what_unicode_calls_white_space),
    cmocka_unit_test(added_tokens_are_cut_out_as_their_flags_say),
    cmocka_unit_test(templates_stand_around_the_text_and_wrap_one_another),
    cmocka_unit_test(merges_go_by_rank_and_then_from_the_left),
    cmocka_unit_test(prefix_and_suffix_mark_parts_of_a_word),
    cmocka_unit_test(characters_without_a_token_become_unknown_or_an_error),
    cmocka_unit_test(a_text_that_nothing_cuts_is_merged_as_a_whole),
    cmocka_unit_test(decoders_put_the_text_together),
    cmocka_unit_test(text_that_is_not_utf8_is_read_with_replacement_characters),
    cmocka_unit_test(what_is_not_supported_is_named),
    cmocka_unit_test(a_regex_that_never_ends_is_an_error),
    cmocka_unit_test(several_threads_share_one_tokenizer),
};

ZN_TEST_MAIN(tests)
