/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "optim/optim_internal.h"

static const zn_optim_ops *const optimizers[] = {
    &zn_optim_adamw, &zn_optim_sgd, &zn_optim_adagrad, &zn_optim_lion, &zn_optim_lamb,
};
#define N_OPTIMIZERS ((int)(sizeof optimizers / sizeof optimizers[0]))

#define NAMES "adam, adamw, sgd, adagrad, lion, lamb"

/* What DeepSpeed and torch have and Zinc does not. Names are lower case. */
static const struct {
    const char *name, *reason;
} refused[] = {
    {"muon", "it orthogonalises whole matrices, and a shard holds only pieces of them"},
    {"muadam", "it needs the width multipliers of the mup package; use adamw"},
    {"muadamw", "it needs the width multipliers of the mup package; use adamw"},
    {"musgd", "it needs the width multipliers of the mup package; use sgd"},
    {"onebitadam", "gradients are always sent whole, and DeepSpeed dropped it after 0.19.6; use "
                   "adamw"},
    {"zerooneadam", "gradients are always sent whole, and DeepSpeed dropped it after 0.19.6; use "
                    "adamw"},
    {"onebitlamb", "gradients are always sent whole, and DeepSpeed dropped it after 0.19.6; use "
                   "lamb"},
    {"rmsprop", "it is torch's own, which DeepSpeed only passes through; use adagrad or adamw"},
    {"adadelta", "it is torch's own, which DeepSpeed only passes through; use adagrad or adamw"},
    {"adamax", "it is torch's own, which DeepSpeed only passes through; use adamw"},
    {"nadam", "it is torch's own, which DeepSpeed only passes through; use adamw"},
    {"radam", "it is torch's own, which DeepSpeed only passes through; use adamw"},
    {"asgd", "it is torch's own, which DeepSpeed only passes through; use sgd"},
    {"rprop", "it is torch's own, which DeepSpeed only passes through; use sgd"},
    {"sparseadam", "gradients here are dense; use adamw"},
    {"lbfgs", "it evaluates the loss several times a step; use adamw"},
    {"adafactor", "it keeps row and column statistics of whole matrices; use adamw"},
};
#define N_REFUSED ((int)(sizeof refused / sizeof refused[0]))

#define MAX_NAME 32

/* Lower-case copy; false if the name is too long to be one of ours. */
static bool lower(const char *name, char out[MAX_NAME])
{
    const size_t n = strlen(name);
    if (n >= MAX_NAME)
        return false;
    for (size_t i = 0; i <= n; i++)
        out[i] = (char)tolower((unsigned char)name[i]);
    return true;
}

/* Whether `word` is one of the space-separated words of `list`. */
static bool has_word(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = list; n > 0 && (p = strstr(p, word)) != NULL; p += n)
        if ((p == list || p[-1] == ' ') && (p[n] == '\0' || p[n] == ' '))
            return true;
    return false;
}

/* Levenshtein distance of two names shorter than MAX_NAME. */
static int edit_distance(const char *a, const char *b)
{
    int row[MAX_NAME + 1];
    const int n_a = (int)strlen(a), n_b = (int)strlen(b);
    for (int j = 0; j <= n_b; j++)
        row[j] = j;
    for (int i = 1; i <= n_a; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n_b; j++) {
            const int replace = diagonal + (a[i - 1] != b[j - 1]);
            const int shift = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = replace < shift ? replace : shift;
        }
    }
    return row[n_b];
}

/* Nearest canonical name within two edits, or NULL. */
static const char *nearest(const char *name)
{
    static const char *const names[] = {"adam", "adamw", "sgd", "adagrad", "lion", "lamb"};
    const char *best = NULL;
    int best_distance = 3;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const int distance = edit_distance(name, names[i]);
        if (distance < best_distance && distance < (int)strlen(names[i])) {
            best_distance = distance;
            best = names[i];
        }
    }
    return best;
}

zinc_status zn_optim_find(const char *name, const zn_optim_ops **out)
{
    char key[MAX_NAME];
    if (!lower(name, key))
        ZN_FAIL(ZINC_E_CONFIG, "no optimizer named \"%.64s\"; there are: %s", name, NAMES);
    for (int i = 0; i < N_OPTIMIZERS; i++)
        if (strcmp(optimizers[i]->name, key) == 0 || has_word(optimizers[i]->aliases, key)) {
            *out = optimizers[i];
            return ZINC_OK;
        }
    for (int i = 0; i < N_REFUSED; i++)
        if (strcmp(refused[i].name, key) == 0)
            ZN_FAIL(ZINC_E_UNSUPPORTED, "optimizer \"%s\" is not supported: %s (there are: %s)",
                    name, refused[i].reason, NAMES);
    const char *near = nearest(key);
    if (near)
        ZN_FAIL(ZINC_E_CONFIG, "no optimizer named \"%s\"; did you mean \"%s\"? (there are: %s)",
                name, near, NAMES);
    ZN_FAIL(ZINC_E_CONFIG, "no optimizer named \"%s\"; there are: %s", name, NAMES);
}

const char *zn_optim_names(void)
{
    return NAMES;
}

const zn_optim_ops *zn_optim_lean(const zn_optim_ops *ops, const zn_optim_hyper *groups,
                                  int n_groups)
{
    if (ops != &zn_optim_sgd)
        return ops;
    for (int i = 0; i < n_groups; i++)
        if (groups[i].momentum != 0.0)
            return ops;
    return &zn_optim_sgd_plain;
}

zn_update_args zn_optim_args(const zn_optim_step *step, const zn_optim_segment *segment)
{
    const zn_optim_hyper *hyper = &step->groups[segment->group];
    return (zn_update_args){
        .n = segment->n,
        .master = segment->master,
        .low = segment->low,
        .state = {segment->state[0], segment->state[1]},
        .grad = segment->grad,
        .grad_dtype = segment->grad_dtype,
        .out16 = segment->out16,
        .out_dtype = segment->out_dtype,
        .grad_scale = step->grad_scale,
        .lr = (float)hyper->lr,
        .weight_decay = (float)hyper->weight_decay,
        .eps = (float)hyper->eps,
        .beta1 = (float)hyper->beta1,
        .beta2 = (float)hyper->beta2,
        .bias1 = 1.0f,
        .bias2 = 1.0f,
    };
}

double zn_optim_bias(double beta, int64_t t)
{
    return 1.0 - pow((double)(float)beta, (double)t);
}
