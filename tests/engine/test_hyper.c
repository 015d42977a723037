/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <math.h>

#include "engine/hyper.h"

#define NOT_GIVEN ((double)NAN)

/* A resolved configuration that gives nothing. */
static zn_config_values nothing_given(void)
{
    return (zn_config_values){
        .adam_w_mode = true,
        .bias_correction = true,
        .lr = NOT_GIVEN,
        .weight_decay = NOT_GIVEN,
        .beta1 = NOT_GIVEN,
        .beta2 = NOT_GIVEN,
        .eps = NOT_GIVEN,
        .momentum = NOT_GIVEN,
        .dampening = NOT_GIVEN,
        .lamb_min_coeff = NOT_GIVEN,
        .lamb_max_coeff = NOT_GIVEN,
        .warmup_min_lr = NOT_GIVEN,
        .warmup_max_lr = NOT_GIVEN,
        .warmup_min_ratio = NOT_GIVEN,
        .cos_min_ratio = NOT_GIVEN,
        .warmup_num_steps = -1,
        .total_num_steps = -1,
        .cycle_min_lr = NOT_GIVEN,
        .cycle_max_lr = NOT_GIVEN,
        .decay_lr_rate = NOT_GIVEN,
        .cycle_min_mom = NOT_GIVEN,
        .cycle_max_mom = NOT_GIVEN,
        .decay_mom_rate = NOT_GIVEN,
        .cycle_first_step_size = -1,
        .cycle_second_step_size = -1,
        .decay_step_size = -1,
        .cycle_first_stair_count = -1,
        .cycle_second_stair_count = -1,
        .cycle_momentum = -1,
        .lr_range_test_min_lr = NOT_GIVEN,
        .lr_range_test_step_rate = NOT_GIVEN,
        .lr_range_test_step_size = -1,
        .lr_range_test_staircase = -1,
    };
}

/* Assign a literal to a field that the configuration owns elsewhere. */
static char *text(char *buffer, const char *value)
{
    return strcpy(buffer, value);
}

static void adam_is_adamw_unless_adam_w_mode_is_false(void **state)
{
    (void)state;
    char name[32];
    zn_config_values v = nothing_given();
    const zn_optim_ops *ops = NULL;
    zn_optim_hyper h;
    v.optimizer_type = text(name, "Adam");
    assert_ok(zn_optim_hyper_from_config(&v, &ops, &h));
    assert_string_equal(ops->name, "adamw");
    assert_true(h.decoupled_decay && h.lr == 1e-3 && h.beta2 == 0.999 && h.weight_decay == 0.0);
    v.torch_adam = true;
    assert_ok(zn_optim_hyper_from_config(&v, &ops, &h));
    assert_true(h.weight_decay == 0.01);
    v.adam_w_mode = false;
    assert_ok(zn_optim_hyper_from_config(&v, &ops, &h));
    assert_true(!h.decoupled_decay && h.weight_decay == 0.0);
    v.optimizer_type = text(name, "AdamW");
    assert_ok(zn_optim_hyper_from_config(&v, &ops, &h));
    assert_true(h.decoupled_decay);
}

static void without_an_optimizer_block_the_trainers_adamw_runs(void **state)
{
    (void)state;
    zn_config_values v = nothing_given();
    const zn_optim_ops *ops = NULL;
    zn_optim_hyper h;
    v.adam_w_mode = false;
    assert_ok(zn_optim_hyper_from_config(&v, &ops, &h));
    assert_true(h.decoupled_decay && h.lr == 5e-5);
    v.lr = 3e-4;
    v.beta2 = 0.95;
    assert_ok(zn_optim_hyper_from_config(&v, &ops, &h));
    assert_true(h.lr == 3e-4 && h.beta2 == 0.95);
}

static void hyper_parameters_out_of_range_name_their_key(void **state)
{
    (void)state;
    char name[32];
    zn_config_values v = nothing_given();
    const zn_optim_ops *ops = NULL;
    zn_optim_hyper h;
    v.optimizer_type = text(name, "Muon");
    assert_fails(zn_optim_hyper_from_config(&v, &ops, &h), ZINC_E_UNSUPPORTED, "optimizer.type: ");
    v.optimizer_type = text(name, "SGD");
    v.nesterov = true;
    assert_fails(zn_optim_hyper_from_config(&v, &ops, &h), ZINC_E_CONFIG,
                 "optimizer.params.nesterov");
    v.momentum = 0.9;
    assert_ok(zn_optim_hyper_from_config(&v, &ops, &h));
    v.lr = -1.0;
    assert_fails(zn_optim_hyper_from_config(&v, &ops, &h), ZINC_E_CONFIG, "optimizer.params.lr");
    v = nothing_given();
    v.beta2 = 1.0;
    assert_fails(zn_optim_hyper_from_config(&v, &ops, &h), ZINC_E_CONFIG,
                 "optimizer.params.betas[1]: expected a number in [0, 1)");
}

static void a_schedule_takes_what_was_given_and_keeps_defaults(void **state)
{
    (void)state;
    char name[32], type[32];
    zn_config_values v = nothing_given();
    const zn_optim_ops *ops = NULL;
    zn_optim_hyper h;
    zn_lr_schedule s;
    v.optimizer_type = text(name, "AdamW");
    v.lr = 2e-3;
    assert_ok(zn_optim_hyper_from_config(&v, &ops, &h));
    assert_ok(zn_lr_from_config(&v, ops, &h, &s));
    assert_true(s.kind == ZN_LR_FIXED && zn_lr_at(&s, 7) == 2e-3);
    v.scheduler_type = text(type, "WarmupLR");
    assert_ok(zn_lr_from_config(&v, ops, &h, &s));
    assert_int_equal(s.warmup_num_steps, 1000);
    assert_true(zn_lr_at(&s, 5000) == 2e-3);
    v.scheduler_type = text(type, "WarmupDecayLR");
    assert_fails(zn_lr_from_config(&v, ops, &h, &s), ZINC_E_CONFIG,
                 "scheduler.params.total_num_steps");
    v.total_num_steps = 40;
    v.warmup_num_steps = -3;
    assert_fails(zn_lr_from_config(&v, ops, &h, &s), ZINC_E_CONFIG,
                 "scheduler.params.warmup_num_steps");
    v.scheduler_type = text(type, "cosine");
    assert_fails(zn_lr_from_config(&v, ops, &h, &s), ZINC_E_CONFIG, "--lr_scheduler_type cosine");
    v.scheduler_type = text(type, "StepLR");
    assert_fails(zn_lr_from_config(&v, ops, &h, &s), ZINC_E_CONFIG, "scheduler.type: ");
}

static void momentum_is_cycled_only_for_optimizers_with_betas(void **state)
{
    (void)state;
    char name[32], type[32];
    zn_config_values v = nothing_given();
    const zn_optim_ops *ops = NULL;
    zn_optim_hyper h;
    zn_lr_schedule s;
    double beta1 = 0, beta2 = 0;
    v.scheduler_type = text(type, "OneCycle");
    v.cycle_min_lr = 1e-4;
    v.cycle_max_lr = 1e-3;
    v.optimizer_type = text(name, "Lion");
    assert_ok(zn_optim_hyper_from_config(&v, &ops, &h));
    assert_ok(zn_lr_from_config(&v, ops, &h, &s));
    assert_true(zn_lr_betas_at(&s, 1, &beta1, &beta2));
    v.optimizer_type = text(name, "SGD");
    assert_ok(zn_optim_hyper_from_config(&v, &ops, &h));
    assert_ok(zn_lr_from_config(&v, ops, &h, &s));
    assert_false(zn_lr_betas_at(&s, 1, &beta1, &beta2));
}

static void the_trainers_schedules_come_from_its_arguments(void **state)
{
    (void)state;
    zn_lr_schedule s;
    assert_ok(zn_lr_from_trainer("linear", 2, 10, 0.01, &s));
    assert_true(zn_lr_at(&s, 3) == 0.01);
    assert_fails(zn_lr_from_trainer("WarmupLR", 2, 10, 0.01, &s), ZINC_E_CONFIG, "scheduler block");
    assert_fails(zn_lr_from_trainer("cosin", 2, 10, 0.01, &s), ZINC_E_CONFIG,
                 "--lr_scheduler_type: ");
}

static void the_loss_scaler_is_static_dynamic_or_absent(void **state)
{
    (void)state;
    zn_config_values v = nothing_given();
    v.fp16.initial_scale_power = 12;
    v.fp16.loss_scale_window = 100;
    v.fp16.hysteresis = 2;
    v.fp16.min_loss_scale = 1;
    zn_loss_scaler scaler = zn_loss_scaler_from_config(&v);
    assert_true(!scaler.dynamic && scaler.scale == 1.0);
    v.fp16.enabled = true;
    scaler = zn_loss_scaler_from_config(&v);
    assert_true(scaler.dynamic && scaler.scale == 4096.0 && scaler.window == 100);
    v.fp16.loss_scale = 128.0;
    scaler = zn_loss_scaler_from_config(&v);
    assert_true(!scaler.dynamic && scaler.scale == 128.0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(adam_is_adamw_unless_adam_w_mode_is_false),
    cmocka_unit_test(without_an_optimizer_block_the_trainers_adamw_runs),
    cmocka_unit_test(hyper_parameters_out_of_range_name_their_key),
    cmocka_unit_test(a_schedule_takes_what_was_given_and_keeps_defaults),
    cmocka_unit_test(momentum_is_cycled_only_for_optimizers_with_betas),
    cmocka_unit_test(the_trainers_schedules_come_from_its_arguments),
    cmocka_unit_test(the_loss_scaler_is_static_dynamic_or_absent),
};

ZN_TEST_MAIN(tests)
