/* SPDX-License-Identifier: Apache-2.0 */
/* Shard groups and replicas, the secondary copy, parameters kept for backward, joined units: what
 * each is worth in bits, bytes and memory. */
#include "zero_toy.h"

#define W 4

static toy_job job_of(int stage, int shard_ranks, zn_dtype dtype, int accumulation)
{
    toy_job job = toy_job_new(W, stage);
    job.p.shard_ranks = shard_ranks;
    job.p.param_dtype = job.p.wire_dtype = dtype;
    job.accumulation = accumulation;
    return job;
}

/* Relative distance of the weights, in the L2 norm. */
static double distance(const toy_job *a, const toy_job *b)
{
    double off = 0, all = 0;
    for (int64_t i = 0; i < a->n_elems; i++) {
        const double d = (double)a->masters[i] - (double)b->masters[i];
        off += d * d;
        all += (double)a->masters[i] * (double)a->masters[i];
    }
    return sqrt(off / all);
}

/* Two-level sums differ from flat ones by rounding alone: 2^-24 an addition, a few steps. */
#define ROUNDING 1e-6

static void one_group_of_all_ranks_changes_no_bit(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        toy_job flat = job_of(stage, 0, ZN_DTYPE_BF16, 2);
        toy_job whole = job_of(stage, W, ZN_DTYPE_BF16, 2);
        toy_run(&flat);
        toy_run(&whole);
        assert_same_bits(&flat, &whole);
        assert_int_equal(whole.stats.replica_bytes, 0);
        assert_memory_equal(&flat.comm, &whole.comm, offsetof(zn_comm_stats, in_flight));
        toy_free(&flat);
        toy_free(&whole);
    }
}

static void replicas_train_as_all_ranks_at_every_stage_and_repeat_their_bits(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        const int S = i % 2 ? 2 : 1, accumulation = i / 2 % 2 ? 4 : 1;
        const zn_dtype dtype = i / 4 ? ZN_DTYPE_BF16 : ZN_DTYPE_F32;
        toy_job flat = job_of(3, 0, dtype, accumulation);
        toy_job flat_one = job_of(1, 0, dtype, accumulation); /* adds micro-batches up first */
        toy_job first = job_of(3, S, dtype, accumulation);
        toy_job again = first, two = job_of(2, S, dtype, accumulation);
        toy_job one = job_of(1, S, dtype, accumulation);
        toy_run(&flat);
        toy_run(&flat_one);
        toy_run(&first);
        toy_run(&again);
        toy_run(&two);
        toy_run(&one);
        assert_same_bits(&first, &again);
        assert_same_bits(&first, &two);
        if (accumulation == 1)
            assert_same_bits(&first, &one);
        assert_true(distance(&flat, &first) < ROUNDING);
        assert_true(distance(&flat_one, &one) < ROUNDING);
        for (int s = 0; s < 3; s++)
            assert_true(fabs(flat.norms[s] / first.norms[s] - 1) < ROUNDING);
        toy_free(&flat);
        toy_free(&flat_one);
        toy_free(&first);
        toy_free(&again);
        toy_free(&two);
        toy_free(&one);
    }
}

/* The fault that hybrid sharding is known for: each group learns alone. */
static void replicas_do_not_train_as_one_group_would_alone(void **state)
{
    (void)state;
    for (int S = 1; S <= 2; S++) {
        toy_job all = job_of(3, S, ZN_DTYPE_F32, 1), alone = toy_job_new(S, 3);
        toy_run(&all);
        toy_run(&alone);
        assert_true(distance(&all, &alone) > 1e-3);
        toy_free(&all);
        toy_free(&alone);
    }
}

static void knobs_sharing_and_offload_change_no_bit_of_replicas(void **state)
{
    (void)state;
    toy_job base = job_of(3, 2, ZN_DTYPE_BF16, 3);
    toy_run(&base);
    for (int i = 0; i < 12; i++) {
        toy_job job = job_of(i % 2 ? 3 : 2, 2, ZN_DTYPE_BF16, 3);
        job.p.overlap_comm = i / 2 % 2;
        job.p.reduce_bucket = i % 3 ? 500000000 : 700;
        job.p.share_parameters = i / 4 == 1;
        job.p.optimizer_tier = i / 4 == 2 ? ZN_ZERO_ON_HOST : ZN_ZERO_ON_DEVICE;
        job.p.param_tier = i / 4 == 2 && i % 2 ? ZN_ZERO_ON_HOST : ZN_ZERO_ON_DEVICE;
        toy_run(&job);
        assert_same_bits(&base, &job);
        toy_free(&job);
    }
    toy_free(&base);
}

static void disk_offload_changes_no_bit_of_replicas(void **state)
{
    (void)state;
    toy_job base = job_of(3, 2, ZN_DTYPE_BF16, 3);
    toy_run(&base);
    for (int i = 0; i < 4; i++) {
        toy_job job = job_of(3, 2, ZN_DTYPE_BF16, 3);
        job.p.optimizer_tier = ZN_ZERO_ON_DISK;
        job.p.param_tier = i % 2 ? ZN_ZERO_ON_DISK : ZN_ZERO_ON_HOST;
        job.p.disk_path = job.p.param_disk_path = "/tmp";
        job.p.host_bytes = i / 2; /* little: gradients would go to the disk if nobody summed them */
        toy_run(&job);
        assert_same_bits(&base, &job);
        toy_free(&job);
    }
    toy_free(&base);
}

static void groups_that_cannot_be_are_refused_on_every_rank(void **state)
{
    (void)state;
    static const struct {
        int stage, shard, last, second;
        const char *part;
    } cases[] = {
        {3, 3, 0, 0, "4 ranks cannot be cut into shard groups of 3"},
        {0, 2, 0, 0, "stage 0 shards nothing"},
        {3, 2, 1, 0, "rank 0 has 2 and rank 3 has 1"},
        {3, 2, 0, 2, "zero_hpz_partition_size 2"},
        {2, 0, 0, 2, "zero_hpz_partition_size 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        toy_job job = job_of(cases[i].stage, cases[i].shard, ZN_DTYPE_F32, 1);
        job.p.secondary_ranks = cases[i].second;
        job.last_rank_shard = cases[i].last;
        job.may_fail = true;
        toy_run(&job);
        assert_int_equal(job.error.status, ZINC_E_CONFIG);
        assert_non_null(strstr(job.error.message, cases[i].part));
        toy_free(&job);
    }
}

static void sums_of_an_optimizer_are_right_over_groups(void **state)
{
    (void)state;
    toy_job flat = job_of(2, 0, ZN_DTYPE_F32, 1), job = job_of(3, 2, ZN_DTYPE_F32, 1);
    flat.optimizer = job.optimizer = "lamb";
    toy_run(&flat);
    toy_run(&job);
    assert_true(distance(&flat, &job) < ROUNDING);
    toy_free(&flat);
    toy_free(&job);
}

static void an_overflow_in_one_group_is_seen_by_all(void **state)
{
    (void)state;
    for (int S = 1; S <= 2; S++) {
        toy_job before = job_of(3, S, ZN_DTYPE_BF16, 1), after = job_of(3, S, ZN_DTYPE_BF16, 1);
        before.steps = 2;
        after.poison_step = 3; /* of rank 0: the other group's ranks have finite gradients */
        toy_run(&before);
        toy_run(&after);
        assert_true(after.overflow[2]);
        assert_int_equal(after.bad_param, 4);
        assert_memory_equal(before.masters, after.masters, (size_t)before.n_elems * sizeof(float));
        toy_free(&before);
        toy_free(&after);
    }
}

/* Inside the group 3 Psi (S-1)/S as stage 3 has, and between groups the fp32 shard, there and back:
 * 2 (R-1)/R Psi/S, once a step whatever the accumulation. */
static void bytes_across_groups_follow_the_formula(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        const int S = i % 2 ? 2 : 1, R = W / S, stage = i / 2 % 2 ? 3 : 2;
        toy_job job = job_of(stage, S, ZN_DTYPE_BF16, i / 4 ? 3 : 1);
        job.untied = true;
        job.p.max_reuse_distance = 0;
        toy_run(&job);
        const int64_t trainable = job.stats.trainable_padded, all = job.stats.padded_elems;
        const int64_t gathers = stage == 3 ? 2 * all * job.accumulation : trainable;
        const int64_t between = trainable / S * (R - 1) / R;
        assert_int_equal(job.stats.replica_bytes, 2 * between * 4);
        assert_int_equal(job.comm.all_gather_elems, gathers / S * (S - 1) + between);
        assert_int_equal(job.comm.reduce_scatter_elems,
                         trainable * job.accumulation / S * (S - 1) + between);
        toy_free(&job);
    }
}

static void a_group_holds_its_state_once_and_accumulates_into_the_shard(void **state)
{
    (void)state;
    int64_t grads[2];
    for (int i = 0; i < 2; i++) {
        toy_job job = job_of(3, 2, ZN_DTYPE_BF16, i ? 4 : 1);
        toy_run(&job);
        const int64_t trainable = job.stats.trainable_padded;
        assert_int_equal(job.memory.now[ZN_MEM_PARAMETERS], job.stats.padded_elems);
        assert_int_equal(job.memory.now[ZN_MEM_MASTERS], trainable / 2 * 2); /* low halves */
        assert_int_equal(job.memory.now[ZN_MEM_OPTIMIZER_STATE], trainable / 2 * 8);
        grads[i] = job.memory.peak[ZN_MEM_GRADIENTS];
        toy_free(&job);
    }
    assert_int_equal(grads[0], grads[1]);
}

static void a_run_goes_on_in_every_other_layout(void **state)
{
    (void)state;
    static const struct {
        int n_ranks, stage, shard, second;
        bool keep;
    } layouts[] = {{4, 0, 0, 0, false}, {4, 2, 0, 0, false}, {4, 3, 0, 0, true},
                   {4, 3, 2, 0, false}, {4, 3, 1, 0, false}, {4, 3, 0, 2, false},
                   {2, 3, 1, 0, true},  {3, 3, 0, 0, false}};
    enum { N = sizeof layouts / sizeof layouts[0] };
    for (int from = 0; from < N; from++) {
        for (int to = 0; to < N; to++) {
            toy_job jobs[2];
            for (int i = 0; i < 2; i++) {
                const int k = i ? to : from;
                jobs[i] = toy_job_new(layouts[k].n_ranks, layouts[k].stage);
                jobs[i].p.shard_ranks = layouts[k].shard;
                jobs[i].p.secondary_ranks = layouts[k].second;
                jobs[i].p.keep_for_backward = layouts[k].keep;
                jobs[i].optimizer = "sgd";
                jobs[i].steps = i ? 2 : 1;
            }
            toy_run(&jobs[0]);
            toy_job read = jobs[1];
            read.from = &jobs[0]; /* no step: what was put back is what is seen */
            read.first_step = read.steps;
            toy_run(&read);
            assert_memory_equal(read.masters, jobs[0].masters,
                                (size_t)read.n_elems * sizeof(float));
            jobs[1].from = &jobs[0];
            jobs[1].first_step = 1;
            toy_run(&jobs[1]);
            assert_true(jobs[1].norms[1] > 0 && isfinite(jobs[1].norms[1]));
            toy_free(&read);
            toy_free(&jobs[0]);
            toy_free(&jobs[1]);
        }
    }
}

static void kept_parameters_give_the_bits_of_stage_2_and_are_gathered_once(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        toy_job two = job_of(2, 0, i % 2 ? ZN_DTYPE_BF16 : ZN_DTYPE_F32, 1 + i / 2);
        toy_job kept = job_of(3, 0, two.p.param_dtype, 1 + i / 2);
        two.untied = kept.untied = true;
        kept.p.keep_for_backward = true;
        kept.p.max_live = 1; /* means nothing here */
        toy_run(&two);
        toy_run(&kept);
        assert_same_bits(&two, &kept);
        const int64_t all = kept.stats.padded_elems;
        assert_int_equal(kept.comm.all_gather_elems, kept.accumulation * all / W * (W - 1));
        assert_int_equal(kept.stats.live_peak, all);
        assert_int_equal(kept.memory.now[ZN_MEM_PARAMETERS],
                         all / W * (int64_t)zn_dtype_size(two.p.param_dtype));
        toy_free(&two);
        toy_free(&kept);
    }
}

/* The first gather of a step reads all ranks, later ones the secondary group. */
static void a_secondary_copy_serves_every_gather_but_the_first(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        const int second = i % 2 ? 4 : 2;
        toy_job plain = job_of(3, 0, i / 2 % 2 ? ZN_DTYPE_BF16 : ZN_DTYPE_F32, 1 + i / 4 * 2);
        plain.untied = true;
        plain.p.max_reuse_distance = 0;
        toy_job job = plain;
        job.p.secondary_ranks = second;
        toy_run(&plain);
        toy_run(&job);
        assert_same_bits(&plain, &job);
        const int64_t size = (int64_t)zn_dtype_size(job.p.param_dtype);
        const int64_t all = job.stats.padded_elems, frozen = all - job.stats.trainable_padded;
        const int64_t first = all - frozen, later = 2 * all * job.accumulation - first;
        assert_int_equal(job.stats.secondary_bytes, later / second * (second - 1) * size);
        assert_int_equal(job.comm.all_gather_bytes - job.stats.secondary_bytes,
                         first / W * (W - 1) * size);
        assert_int_equal(job.memory.now[ZN_MEM_PARAMETERS], (all / W + all / second) * size);
        toy_free(&plain);
        toy_free(&job);
    }
}

static void a_secondary_copy_changes_no_bit_whatever_the_knobs(void **state)
{
    (void)state;
    toy_job base = job_of(3, 0, ZN_DTYPE_BF16, 2);
    base.p.persistence_threshold = 10;
    toy_run(&base);
    for (int i = 0; i < 12; i++) {
        toy_job job = job_of(3, 0, ZN_DTYPE_BF16, 2);
        job.p.persistence_threshold = 10;
        job.p.secondary_ranks = 2;
        job.p.overlap_comm = i % 2;
        job.p.prefetch_bucket = i % 3 ? 1500 : 50000000;
        job.p.max_live = i / 2 % 2 ? 3000 : 1000000000;
        job.p.param_tier = i / 8 ? ZN_ZERO_ON_HOST : ZN_ZERO_ON_DEVICE;
        job.eval_between = i % 2;
        toy_run(&job);
        assert_same_bits(&base, &job);
        toy_free(&job);
    }
    toy_free(&base);
}

static void joined_units_train_alike_and_are_gathered_together(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1000, 1500, INT64_MAX};
    static const int64_t gathers[] = {5, 4, 2, 1}; /* of a forward pass */
    toy_job base = job_of(3, 0, ZN_DTYPE_F32, 1);
    base.untied = true;
    base.clip = 0; /* the norm adds up by unit: with clipping its last bit may count */
    toy_run(&base);
    for (int i = 0; i < 8; i++) {
        toy_job job = job_of(i % 2 ? 3 : 2, 0, ZN_DTYPE_F32, 1);
        job.untied = true;
        job.clip = 0;
        job.eval_between = true;
        job.p.min_unit_elems = sizes[i / 2];
        job.p.max_reuse_distance = 0;
        toy_run(&job);
        assert_memory_equal(base.masters, job.masters, (size_t)base.n_elems * sizeof(float));
        for (int s = 0; s < 3; s++)
            assert_true(fabs(job.norms[s] / base.norms[s] - 1) < 1e-12);
        if (i % 2) {
            job.eval_between = false;
            toy_job counted = job;
            toy_run(&counted);
            /* forward and backward; the frozen region of layer.1 is gathered by itself */
            assert_int_equal(counted.stats.n_gathers, 2 * (gathers[i / 2] + 1));
            toy_free(&counted);
        }
        toy_free(&job);
    }
    toy_free(&base);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(one_group_of_all_ranks_changes_no_bit),
    cmocka_unit_test(replicas_train_as_all_ranks_at_every_stage_and_repeat_their_bits),
    cmocka_unit_test(replicas_do_not_train_as_one_group_would_alone),
    cmocka_unit_test(knobs_sharing_and_offload_change_no_bit_of_replicas),
    cmocka_unit_test(disk_offload_changes_no_bit_of_replicas),
    cmocka_unit_test(groups_that_cannot_be_are_refused_on_every_rank),
    cmocka_unit_test(sums_of_an_optimizer_are_right_over_groups),
    cmocka_unit_test(an_overflow_in_one_group_is_seen_by_all),
    cmocka_unit_test(bytes_across_groups_follow_the_formula),
    cmocka_unit_test(a_group_holds_its_state_once_and_accumulates_into_the_shard),
    cmocka_unit_test(a_run_goes_on_in_every_other_layout),
    cmocka_unit_test(kept_parameters_give_the_bits_of_stage_2_and_are_gathered_once),
    cmocka_unit_test(a_secondary_copy_serves_every_gather_but_the_first),
    cmocka_unit_test(a_secondary_copy_changes_no_bit_whatever_the_knobs),
    cmocka_unit_test(joined_units_train_alike_and_are_gathered_together),
};

ZN_TEST_MAIN(tests)
