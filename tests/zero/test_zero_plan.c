/* SPDX-License-Identifier: Apache-2.0 */
/* What is planned is what is allocated and sent: the toy model's account and counters beside
 * zn_zero_plan_make, byte for byte. */
#include "zero_toy.h"

#include <time.h>

#include "zero/zero_plan.h"

#define TOY_UNITS 5

/* Every byte takes a second: a stream works as many seconds as it moves bytes. */
static zn_zero_plan plan_of(const toy_job *job)
{
    static const double compute[TOY_UNITS] = {1, 10, 10, 10, 100};
    const zn_zero_costs costs = {.forward = compute,
                                 .backward = compute,
                                 .group_byte = 1,
                                 .secondary_byte = 1,
                                 .replica_byte = 1,
                                 .link_byte = 1,
                                 .disk_byte = 1,
                                 .step = {.clip = job->clip, .unchecked = job->unchecked}};
    zn_zero_plan plan;
    zn_param_list list = {0};
    zn_zero_params zero = job->p;
    zero.gradient_accumulation_steps = job->accumulation;
    const zn_zero_plan_params params = {.zero = &zero,
                                        .n_ranks = job->n_ranks,
                                        .shared = job->p.share_parameters,
                                        .tied = !job->untied,
                                        .costs = &costs};
    assert_ok(toy_list(job, &list, NULL));
    assert_ok(zn_zero_plan_make(&params, &list, &plan));
    zn_param_list_fini(&list);
    return plan;
}

/* What is timed is what is counted; nothing is faster than the stream that works longest, or slower
 * than all of them in turn. */
static void assert_timed(const zn_zero_plan *plan)
{
    const double *busy = plan->busy_s;
    double sum = 0, most = 0;
    for (int i = 0; i < ZN_ZERO_N_STREAMS; i++) {
        sum += busy[i];
        most = busy[i] > most ? busy[i] : most;
    }
    assert_int_equal(llround(busy[ZN_ZERO_SENDS]),
                     llround(plan->reduce_bytes + plan->gather_bytes + plan->replica_bytes +
                             plan->secondary_bytes));
    assert_int_equal(llround(busy[ZN_ZERO_SENDS_UP]), plan->to_device_bytes);
    assert_int_equal(llround(busy[ZN_ZERO_SENDS_DOWN]), plan->to_host_bytes);
    assert_int_equal(llround(busy[ZN_ZERO_USES_DISK]),
                     plan->disk_read_bytes + plan->disk_written_bytes);
    assert_true(plan->step_s >= most * 0.999 && plan->step_s <= sum * 1.001);
}

static void assert_planned(const toy_job *job)
{
    const zn_zero_plan plan = plan_of(job);
    const int64_t *now = job->memory.now;
    const int scale = sizeof(float); /* the gradient scale */
    assert_timed(&plan);
    assert_int_equal(plan.padded_elems, job->stats.padded_elems);
    assert_int_equal(plan.parameters[ZN_ZERO_ON_DEVICE], now[ZN_MEM_PARAMETERS]);
    assert_int_equal(plan.masters[ZN_ZERO_ON_DEVICE], now[ZN_MEM_MASTERS]);
    assert_int_equal(plan.optimizer_state[ZN_ZERO_ON_DEVICE], now[ZN_MEM_OPTIMIZER_STATE]);
    assert_int_equal(plan.gradients[ZN_ZERO_ON_DEVICE] + plan.unit_gradients,
                     now[ZN_MEM_GRADIENTS]);
    assert_int_equal(plan.buckets + plan.live_units + scale, now[ZN_MEM_BUFFERS]);
    /* the comm's counts have those of its groups in them: half of what goes to replicas each way */
    const int64_t S = plan.shard_ranks, to_replicas = job->stats.replica_bytes / 2;
    assert_int_equal((int64_t)plan.replica_bytes, job->stats.replica_bytes);
    assert_int_equal((int64_t)plan.secondary_bytes, job->stats.secondary_bytes);
    assert_int_equal(plan.reduce_elems * (S - 1) / S,
                     job->comm.reduce_scatter_elems - to_replicas / 4);
    assert_int_equal((int64_t)plan.reduce_bytes, job->comm.reduce_scatter_bytes - to_replicas);
    assert_int_equal((int64_t)plan.gather_bytes,
                     job->comm.all_gather_bytes - to_replicas - job->stats.secondary_bytes);
    if (job->stats.secondary_bytes == 0)
        assert_int_equal(plan.gather_elems * (S - 1) / S,
                         job->comm.all_gather_elems - to_replicas / 4);
}

static void plans_equal_the_account_at_every_stage_world_size_and_precision(void **state)
{
    (void)state;
    static const zn_dtype dtypes[] = {ZN_DTYPE_F32, ZN_DTYPE_BF16};
    for (int i = 0; i < 64; i++) {
        toy_job job = toy_job_new(1 + i / 4 % 4, i % 4);
        job.untied = true;
        job.p.param_dtype = job.p.wire_dtype = dtypes[i / 16 % 2];
        job.accumulation = i < 32 ? 1 : 3;
        job.decoder_order = true;
        toy_run(&job);
        assert_planned(&job);
        toy_free(&job);
    }
}

static void plans_equal_the_account_whatever_the_knobs(void **state)
{
    (void)state;
    for (int i = 0; i < 24; i++) {
        toy_job job = toy_job_new(3, 1 + i % 3);
        job.untied = true;
        job.p.param_dtype = job.p.wire_dtype = i < 12 ? ZN_DTYPE_BF16 : ZN_DTYPE_F32;
        job.p.overlap_comm = i / 3 % 2 == 1;
        job.p.reduce_bucket = i / 6 % 2 ? 700 : 500000000;
        job.p.prefetch_bucket = 2500;
        job.p.persistence_threshold = 10;
        job.decoder_order = true;
        toy_run(&job);
        assert_planned(&job);
        toy_free(&job);
    }
}

static void groups_second_copies_and_joined_units_are_planned_as_they_run(void **state)
{
    (void)state;
    for (int i = 0; i < 48; i++) {
        toy_job job = toy_job_new(4, 1 + i % 3);
        job.untied = true;
        job.decoder_order = true;
        job.accumulation = i / 3 % 2 ? 3 : 1;
        job.p.param_dtype = job.p.wire_dtype = i / 6 % 2 ? ZN_DTYPE_BF16 : ZN_DTYPE_F32;
        job.p.prefetch_bucket = 2500;
        job.p.persistence_threshold = 10;
        if (i / 12 == 0)
            job.p.shard_ranks = 2;
        else if (i / 12 == 1 && job.p.stage == 3)
            job.p.secondary_ranks = 2;
        else if (i / 12 == 2 && job.p.stage == 3)
            job.p.keep_for_backward = true;
        else
            job.p.min_unit_elems = i % 2 ? 1500 : INT64_MAX;
        toy_run(&job);
        assert_planned(&job);
        toy_free(&job);
    }
}

static void a_small_live_budget_and_no_reuse_are_followed(void **state)
{
    (void)state;
    toy_job job = toy_job_new(2, 3);
    job.untied = true;
    job.p.max_live = 5000;
    job.decoder_order = true;
    toy_run(&job);
    const zn_zero_plan plan = plan_of(&job);
    assert_int_equal(plan.live_peak, job.stats.live_peak);
    toy_free(&job);
}

static void shared_parameters_cost_their_slices(void **state)
{
    (void)state;
    toy_job job = toy_job_new(4, 2);
    job.untied = true;
    job.p.share_parameters = true;
    job.decoder_order = true;
    toy_run(&job);
    assert_planned(&job);
    toy_free(&job);
}

static void assert_planned_off_the_device(const toy_job *job)
{
    const zn_zero_plan plan = plan_of(job);
    const int64_t *host = job->host.now;
    assert_int_equal(plan.parameters[ZN_ZERO_ON_HOST], host[ZN_MEM_PARAMETERS]);
    assert_int_equal(plan.gradients[ZN_ZERO_ON_HOST], host[ZN_MEM_GRADIENTS]);
    assert_int_equal(plan.masters[ZN_ZERO_ON_HOST], host[ZN_MEM_MASTERS]);
    assert_int_equal(plan.optimizer_state[ZN_ZERO_ON_HOST], host[ZN_MEM_OPTIMIZER_STATE]);
    assert_int_equal(plan.staging, host[ZN_MEM_BUFFERS]);
    assert_int_equal(plan.to_host_bytes, job->stats.to_host_bytes);
    assert_int_equal(plan.disk_written_bytes, job->stats.disk_written_bytes);
    assert_in_range(plan.disk_read_bytes, job->stats.disk_read_bytes * 99 / 100,
                    job->stats.disk_read_bytes * 101 / 100);
}

/* Back to the device go the pieces without the padding between them, which is why the plan may say
 * a little more. */
static void offloaded_states_are_where_the_plan_says(void **state)
{
    (void)state;
    for (int i = 0; i < 48; i++) {
        toy_job job = toy_job_new(1 + i % 3, 1 + i / 3 % 3);
        job.untied = true;
        job.p.param_dtype = job.p.wire_dtype = i % 2 ? ZN_DTYPE_BF16 : ZN_DTYPE_F32;
        job.accumulation = i / 9 % 2 ? 3 : 1;
        job.p.optimizer_tier = i / 18 % 2 ? ZN_ZERO_ON_DISK : ZN_ZERO_ON_HOST;
        if (job.p.stage == 3)
            job.p.param_tier = i % 4 == 0   ? ZN_ZERO_ON_HOST
                               : i % 4 == 1 ? ZN_ZERO_ON_DISK
                                            : ZN_ZERO_ON_DEVICE;
        job.p.param_disk_path = "/tmp";
        job.p.max_param_on_host = i % 8 < 4 ? 0 : 3000;
        job.p.n_param_buffers = 1 + i % 3;
        job.p.host_bytes = i % 5 < 3 ? 1 : 0;
        job.p.persistence_threshold = i % 5 ? 0 : 10;
        job.p.offload_ratio = i % 7 ? 1 : 0.4;
        job.p.disk_path = "/tmp";
        job.decoder_order = true;
        toy_run(&job);
        assert_planned(&job);
        assert_planned_off_the_device(&job);
        const zn_zero_plan plan = plan_of(&job);
        assert_in_range(job.stats.to_device_bytes, plan.to_device_bytes * 95 / 100,
                        plan.to_device_bytes);
        toy_free(&job);
    }
}

static double step_of(const toy_job *job, const zn_zero_costs *costs)
{
    static const double nothing[TOY_UNITS];
    zn_zero_plan plan;
    zn_param_list list = {0};
    zn_zero_params zero = job->p;
    zn_zero_costs c = *costs;
    zero.gradient_accumulation_steps = job->accumulation;
    c.forward = c.forward ? c.forward : nothing;
    c.backward = c.backward ? c.backward : nothing;
    const zn_zero_plan_params params = {.zero = &zero, .n_ranks = job->n_ranks, .costs = &c};
    assert_ok(toy_list(job, &list, NULL));
    assert_ok(zn_zero_plan_make(&params, &list, &plan));
    zn_param_list_fini(&list);
    return plan.step_s;
}

static void computation_alone_adds_up(void **state)
{
    (void)state;
    static const double forward[] = {1, 10, 10, 10, 0}, backward[] = {5, 20, 20, 20, 100};
    const zn_zero_costs costs = {.forward = forward, .backward = backward};
    for (int accumulation = 1; accumulation < 12; accumulation += 5) {
        toy_job job = toy_job_new(2, 3);
        job.accumulation = accumulation;
        /* the embedding's backward is next to nothing and uses no parameters */
        assert_int_equal(llround(step_of(&job, &costs)), llround(accumulation * 191.0));
        toy_free(&job);
    }
}

/* Gradients, 4 bytes, go down unit by unit; new parameters, 2 bytes, come back: after the norm all
 * of them, without it each unit's while the next one's gradients go down. */
static void gradients_and_parameters_are_in_series_only_where_the_norm_is_needed(void **state)
{
    (void)state;
    zn_param_list list = {0};
    toy_job job = toy_job_new(1, 2);
    job.p.param_dtype = job.p.wire_dtype = ZN_DTYPE_BF16;
    job.p.optimizer_tier = ZN_ZERO_ON_HOST;
    assert_ok(zn_optim_find("adamw", &job.p.optim));
    const zn_zero_plan plan = plan_of(&job);
    const double down = (double)plan.to_host_bytes, up = (double)plan.to_device_bytes;
    zn_zero_costs costs = {.link_byte = 1, .step = {.clip = 1, .unchecked = true}};
    assert_int_equal(llround(step_of(&job, &costs)), llround(down + up));
    costs.step.clip = 0;
    assert_ok(toy_list(&job, &list, NULL));
    const int64_t embed = (list.specs[0].n_elems + ZN_ZERO_ALIGN - 1) / ZN_ZERO_ALIGN;
    assert_int_equal(llround(step_of(&job, &costs)),
                     llround(down + 2.0 * (double)(embed * ZN_ZERO_ALIGN)));
    costs.step.unchecked = false;
    assert_int_equal(llround(step_of(&job, &costs)), llround(down + up));
    zn_param_list_fini(&list);
    toy_free(&job);
}

/* Parameters on the host: while one unit computes the next comes up, and nobody waits. */
static void a_link_that_is_faster_than_computation_costs_the_first_unit(void **state)
{
    (void)state;
    static const double forward[] = {1e4, 1e4, 1e4, 1e4, 0};
    static const double backward[] = {0, 2e4, 2e4, 2e4, 1e4};
    toy_job job = toy_job_new(1, 3);
    job.untied = true;
    job.p.param_dtype = job.p.wire_dtype = ZN_DTYPE_BF16;
    job.p.param_tier = job.p.optimizer_tier = ZN_ZERO_ON_HOST;
    job.p.persistence_threshold = 0;
    job.embed_elems = 1000;
    assert_ok(zn_optim_find("adamw", &job.p.optim));
    zn_zero_costs costs = {.forward = forward,
                           .backward = backward,
                           .link_byte = 1,
                           .step = {.clip = 1, .unchecked = true}};
    /* the embedding's gradient is ready as soon as layer.0's is */
    const double first_up = 1024 * 2, last_down = (1024 + 1120) * 4;
    assert_int_equal(llround(step_of(&job, &costs)), llround(11e4 + first_up + last_down));
    job.accumulation = 10; /* the next micro-batch begins while the last gradients go down */
    assert_int_equal(llround(step_of(&job, &costs)), llround(10 * (11e4 + first_up) + last_down));
    costs.link_byte =
        100; /* and one that is slower: gradients down and parameters up, side by side */
    job.accumulation = 1;
    const zn_zero_plan plan = plan_of(&job);
    const double step = step_of(&job, &costs);
    assert_true(step > 100.0 * (double)plan.to_host_bytes);
    assert_true(step < 11e4 + 100.0 * (double)(plan.to_host_bytes + plan.to_device_bytes));
    toy_free(&job);
}

/* 70 billion elements in 82 units on 1,024 ranks: 16,700 chunks, but no slice is ever listed. */
static void seventy_billion_elements_on_1024_ranks_take_no_time(void **state)
{
    (void)state;
    zn_param_list list = {0};
    zn_zero_params p;
    zn_zero_plan plan;
    zn_zero_params_defaults(&p);
    p.stage = 3;
    p.param_dtype = p.wire_dtype = ZN_DTYPE_BF16;
    assert_ok(zn_optim_find("adamw", &p.optim));
    for (int u = 0; u < 82; u++) {
        char name[] = "w";
        assert_ok(zn_param_list_add_unit(&list, "unit", NULL));
        const zn_param_spec spec = {
            .name = name, .n_dims = 1, .shape = {855638016}, .unit = u, .trainable = true};
        assert_ok(zn_param_list_add(&list, &spec, NULL));
    }
    const zn_zero_plan_params params = {.zero = &p, .n_ranks = 1024};
    const clock_t start = clock();
    assert_ok(zn_zero_plan_make(&params, &list, &plan));
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 0.5);
    const int64_t n = 82 * INT64_C(855638016);
    assert_in_range(plan.optimizer_state[0], 8 * n / 1024, 8 * n / 1024 * 101 / 100);
    zn_param_list_fini(&list);
}

static void what_cannot_be_planned_is_named(void **state)
{
    (void)state;
    zn_param_list list = {0};
    zn_zero_plan plan;
    toy_job job = toy_job_new(2, 2);
    assert_ok(toy_list(&job, &list, NULL));
    zn_zero_plan_params params = {.zero = &job.p, .n_ranks = 2};
    job.p.param_tier = ZN_ZERO_ON_HOST;
    assert_fails(zn_zero_plan_make(&params, &list, &plan), ZINC_E_INVALID, "needs stage 3");
    job.p.param_tier = ZN_ZERO_ON_DEVICE;
    params.n_ranks = 1 << 20;
    assert_fails(zn_zero_plan_make(&params, &list, &plan), ZINC_E_INVALID, "1048576 ranks");
    params.n_ranks = 2;
    job.p.stage = 0;
    job.p.optimizer_tier = ZN_ZERO_ON_HOST;
    assert_fails(zn_zero_plan_make(&params, &list, &plan), ZINC_E_INVALID, "needs stage 1");
    zn_param_list_fini(&list);
}

static void a_failed_allocation_leaves_nothing_behind(void **state)
{
    (void)state;
    zn_param_list list = {0};
    zn_zero_plan plan;
    zinc_status status = ZINC_E_NOMEM;
    toy_job job = toy_job_new(2, 3);
    assert_ok(toy_list(&job, &list, NULL));
    const zn_zero_plan_params params = {.zero = &job.p, .n_ranks = 2};
    int n = 0;
    while (status == ZINC_E_NOMEM) {
        zn_mem_fail_after(n++);
        status = zn_zero_plan_make(&params, &list, &plan);
        zn_mem_fail_after(-1);
    }
    assert_int_equal(status, ZINC_OK);
    assert_true(n > 5);
    zn_param_list_fini(&list);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(plans_equal_the_account_at_every_stage_world_size_and_precision),
    cmocka_unit_test(plans_equal_the_account_whatever_the_knobs),
    cmocka_unit_test(groups_second_copies_and_joined_units_are_planned_as_they_run),
    cmocka_unit_test(a_small_live_budget_and_no_reuse_are_followed),
    cmocka_unit_test(shared_parameters_cost_their_slices),
    cmocka_unit_test(offloaded_states_are_where_the_plan_says),
    cmocka_unit_test(computation_alone_adds_up),
    cmocka_unit_test(gradients_and_parameters_are_in_series_only_where_the_norm_is_needed),
    cmocka_unit_test(a_link_that_is_faster_than_computation_costs_the_first_unit),
    cmocka_unit_test(seventy_billion_elements_on_1024_ranks_take_no_time),
    cmocka_unit_test(what_cannot_be_planned_is_named),
    cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
};

ZN_TEST_MAIN(tests)
