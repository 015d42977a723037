/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <math.h>

#include "base/json.h"
#include "optim/lr_schedule.h"

/* The peer computes in fp64 with the same formulas; a few ulp remain. */
#define TOLERANCE 1e-12

static void set_number(const json_t *params, const char *key, double *field)
{
    const json_t *value = json_object_get(params, key);
    if (value)
        *field = json_number_value(value);
}

static void set_count(const json_t *params, const char *key, int64_t *field)
{
    const json_t *value = json_object_get(params, key);
    if (value)
        *field = (int64_t)json_number_value(value);
}

static void set_flag(const json_t *params, const char *key, bool *field)
{
    const json_t *value = json_object_get(params, key);
    if (value)
        *field = json_is_true(value);
}

static zn_lr_schedule schedule_of(const json_t *c)
{
    zn_lr_kind kind;
    zn_lr_schedule s;
    assert_ok(zn_lr_find(json_string_value(json_object_get(c, "type")), &kind));
    zn_lr_defaults(kind, &s);
    s.base_lr = json_number_value(json_object_get(c, "optimizer_lr"));
    const json_t *p = json_object_get(c, "params");
    set_number(p, "warmup_min_lr", &s.warmup_min_lr);
    set_number(p, "warmup_max_lr", &s.warmup_max_lr);
    set_number(p, "warmup_min_ratio", &s.warmup_min_ratio);
    set_number(p, "cos_min_ratio", &s.cos_min_ratio);
    set_count(p, "warmup_num_steps", &s.warmup_num_steps);
    set_count(p, "total_num_steps", &s.total_num_steps);
    const char *type = json_string_value(json_object_get(p, "warmup_type"));
    s.warmup_linear = type && strcmp(type, "linear") == 0;
    set_number(p, "cycle_min_lr", &s.cycle_min_lr);
    set_number(p, "cycle_max_lr", &s.cycle_max_lr);
    set_number(p, "decay_lr_rate", &s.decay_lr_rate);
    set_number(p, "decay_mom_rate", &s.decay_mom_rate);
    set_number(p, "cycle_min_mom", &s.cycle_min_mom);
    set_number(p, "cycle_max_mom", &s.cycle_max_mom);
    set_count(p, "cycle_first_step_size", &s.cycle_first_step_size);
    set_count(p, "cycle_second_step_size", &s.cycle_second_step_size);
    set_count(p, "cycle_first_stair_count", &s.cycle_first_stair_count);
    set_count(p, "cycle_second_stair_count", &s.cycle_second_stair_count);
    set_count(p, "decay_step_size", &s.decay_step_size);
    set_flag(p, "cycle_momentum", &s.cycle_momentum);
    set_number(p, "lr_range_test_min_lr", &s.lr_range_test_min_lr);
    set_number(p, "lr_range_test_step_rate", &s.lr_range_test_step_rate);
    set_count(p, "lr_range_test_step_size", &s.lr_range_test_step_size);
    set_flag(p, "lr_range_test_staircase", &s.lr_range_test_staircase);
    return s;
}

static void close_to(double got, double want, const char *name, int64_t step)
{
    if (!(fabs(got - want) <= TOLERANCE * fabs(want)))
        fail_msg("%s step %lld: %.17g, want %.17g", name, (long long)step, got, want);
}

static bool is_overflow_step(const json_t *c, int64_t step)
{
    const json_t *steps = json_object_get(c, "overflow_steps");
    for (size_t i = 0; i < json_array_size(steps); i++)
        if (json_integer_value(json_array_get(steps, i)) == step)
            return true;
    return false;
}

static void check_rates(const json_t *c, const char *name)
{
    const zn_lr_schedule s = schedule_of(c);
    assert_ok(zn_lr_check(&s));
    const json_t *lr = json_object_get(c, "lr");
    const json_t *beta1 = json_object_get(c, "beta1"), *beta2 = json_object_get(c, "beta2");
    int64_t applied = 0;
    for (int64_t step = 1; step <= (int64_t)json_array_size(lr); step++) {
        const size_t k = (size_t)step - 1;
        close_to(zn_lr_at(&s, applied + 1), json_number_value(json_array_get(lr, k)), name, step);
        double b1 = 0.9, b2 = 0.999;
        assert_int_equal(zn_lr_betas_at(&s, applied + 1, &b1, &b2),
                         s.kind == ZN_LR_ONE_CYCLE && s.cycle_momentum);
        if (beta1) {
            close_to(b1, json_number_value(json_array_get(beta1, k)), name, step);
            close_to(b2, json_number_value(json_array_get(beta2, k)), name, step);
        }
        if (!is_overflow_step(c, step))
            applied++;
    }
}

static void deepspeed_schedules_give_the_peers_rate_at_every_step(void **state)
{
    (void)state;
    json_t *cases = NULL;
    assert_ok(zn_json_load(ZN_TEST_DATA "/optim/lr_cases.json", &cases));
    int n_checked = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        if (!json_is_true(json_object_get(c, "ok")))
            continue;
        check_rates(c, json_string_value(json_object_get(c, "name")));
        n_checked++;
    }
    assert_true(n_checked >= 30);
    json_decref(cases);
}

/* A wrong type and an unknown key are the configuration reader's to refuse. */
static void what_the_peer_refuses_to_build_is_refused(void **state)
{
    (void)state;
    json_t *cases = NULL;
    assert_ok(zn_json_load(ZN_TEST_DATA "/optim/lr_cases.json", &cases));
    int n_refused = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const char *name = json_string_value(json_object_get(c, "name"));
        if (json_is_true(json_object_get(c, "ok")) || strcmp(name, "warmup_steps_float") == 0 ||
            strcmp(name, "warmup_unknown_param") == 0)
            continue;
        const zn_lr_schedule s = schedule_of(c);
        assert_fails(zn_lr_check(&s), ZINC_E_CONFIG, "scheduler.params.");
        n_refused++;
    }
    assert_true(n_refused >= 6);
    json_decref(cases);
}

typedef struct trainer_case {
    zn_lr_kind kind;
    int64_t warmup, total;
    double num_cycles, power, lr_end; /* 0: the default */
    int n;
    double lr[12]; /* steps 1.., base rate 0.01 */
} trainer_case;

/* By hand from the formulas of transformers/optimization.py; cos(pi/4) = 0.7071067811865476. */
static const trainer_case trainer_cases[] = {
    {.kind = ZN_LR_HF_CONSTANT, .warmup = 3, .n = 3, .lr = {0.01, 0.01, 0.01}},
    {.kind = ZN_LR_HF_CONSTANT_WITH_WARMUP,
     .warmup = 4,
     .n = 6,
     .lr = {0.0, 0.0025, 0.005, 0.0075, 0.01, 0.01}},
    {.kind = ZN_LR_HF_LINEAR,
     .warmup = 2,
     .total = 6,
     .n = 8,
     .lr = {0.0, 0.005, 0.01, 0.0075, 0.005, 0.0025, 0.0, 0.0}},
    {.kind = ZN_LR_HF_LINEAR, .warmup = 0, .total = 4, .n = 4, .lr = {0.01, 0.0075, 0.005, 0.0025}},
    {.kind = ZN_LR_HF_COSINE,
     .warmup = 1,
     .total = 5,
     .n = 7,
     .lr = {0.0, 0.01, 0.008535533905932738, 0.005, 0.001464466094067262, 0.0,
            0.001464466094067262}},
    {.kind = ZN_LR_HF_COSINE_WITH_RESTARTS,
     .total = 8,
     .num_cycles = 2,
     .n = 10,
     .lr = {0.01, 0.008535533905932738, 0.005, 0.001464466094067262, 0.01, 0.008535533905932738,
            0.005, 0.001464466094067262, 0.0, 0.0}},
    {.kind = ZN_LR_HF_POLYNOMIAL,
     .warmup = 2,
     .total = 6,
     .power = 2.0,
     .lr_end = 0.002,
     .n = 8,
     .lr = {0.0, 0.005, 0.01, 0.0065, 0.004, 0.0025, 0.002, 0.002}},
    {.kind = ZN_LR_HF_INVERSE_SQRT,
     .warmup = 4,
     .n = 6,
     .lr = {0.0, 0.0025, 0.005, 0.0075, 0.01, 0.008944271909999158}},
};

static void trainer_schedules_follow_their_formulas_without_an_offset(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof trainer_cases / sizeof trainer_cases[0]; i++) {
        const trainer_case *c = &trainer_cases[i];
        zn_lr_schedule s;
        zn_lr_defaults(c->kind, &s);
        s.base_lr = 0.01;
        s.warmup_num_steps = c->warmup;
        s.total_num_steps = c->total;
        s.num_cycles = c->num_cycles > 0 ? c->num_cycles : s.num_cycles;
        s.power = c->power > 0 ? c->power : s.power;
        s.lr_end = c->lr_end > 0 ? c->lr_end : s.lr_end;
        assert_ok(zn_lr_check(&s));
        for (int k = 0; k < c->n; k++)
            if (!(fabs(zn_lr_at(&s, k + 1) - c->lr[k]) <= 1e-15))
                fail_msg("kind %d step %d: %.17g, want %.17g", (int)c->kind, k + 1,
                         zn_lr_at(&s, k + 1), c->lr[k]);
    }
}

static void every_kind_is_finite_far_past_its_end(void **state)
{
    (void)state;
    for (int kind = ZN_LR_FIXED; kind <= ZN_LR_HF_INVERSE_SQRT; kind++) {
        zn_lr_schedule s;
        zn_lr_defaults((zn_lr_kind)kind, &s);
        s.total_num_steps = 100;
        s.cycle_min_lr = 1e-4;
        s.cycle_max_lr = 1e-3;
        s.warmup_num_steps = 100; /* the warm-up ends where the run does */
        assert_ok(zn_lr_check(&s));
        const int64_t steps[] = {1, 2, 99, 100, 101, 102, 5000, 1000000000000};
        for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
            const double lr = zn_lr_at(&s, steps[i]);
            if (!isfinite(lr) || lr < 0.0)
                fail_msg("kind %d step %lld: %g", kind, (long long)steps[i], lr);
        }
    }
}

static void a_schedule_that_cannot_be_is_named_by_its_key(void **state)
{
    (void)state;
    zn_lr_schedule s;
    zn_lr_kind kind;
    assert_fails(zn_lr_find("WarmupCosinLR", &kind), ZINC_E_CONFIG, "WarmupCosineLR");
    zn_lr_defaults(ZN_LR_ONE_CYCLE, &s);
    s.cycle_min_lr = 0.1;
    assert_fails(zn_lr_check(&s), ZINC_E_CONFIG, "cycle_max_lr: OneCycle needs it");
    zn_lr_defaults(ZN_LR_HF_POLYNOMIAL, &s);
    s.total_num_steps = 10;
    s.base_lr = 1e-8;
    assert_fails(zn_lr_check(&s), ZINC_E_CONFIG, "lr_end");
    zn_lr_defaults(ZN_LR_HF_LINEAR, &s);
    assert_fails(zn_lr_check(&s), ZINC_E_CONFIG, "--max_steps");
    zn_lr_defaults(ZN_LR_WARMUP, &s);
    s.warmup_max_lr = INFINITY;
    assert_fails(zn_lr_check(&s), ZINC_E_CONFIG, "scheduler.params.warmup_max_lr");
    zn_lr_defaults(ZN_LR_FIXED, &s);
    s.base_lr = -1.0;
    assert_fails(zn_lr_check(&s), ZINC_E_CONFIG, "optimizer.params.lr");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(deepspeed_schedules_give_the_peers_rate_at_every_step),
    cmocka_unit_test(what_the_peer_refuses_to_build_is_refused),
    cmocka_unit_test(trainer_schedules_follow_their_formulas_without_an_offset),
    cmocka_unit_test(every_kind_is_finite_far_past_its_end),
    cmocka_unit_test(a_schedule_that_cannot_be_is_named_by_its_key),
};

ZN_TEST_MAIN(tests)
