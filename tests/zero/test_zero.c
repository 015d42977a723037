/* SPDX-License-Identifier: Apache-2.0 */
#include "zero_toy.h"

static toy_job reference(int n_ranks, zn_dtype dtype, int accumulation, int stage)
{
    toy_job job = toy_job_new(n_ranks, stage);
    job.p.param_dtype = job.p.wire_dtype = dtype;
    job.accumulation = accumulation;
    job.loss_scale = dtype == ZN_DTYPE_F16 ? 64 : 1;
    return job;
}

static void stages_give_the_same_bits_at_every_world_size_and_precision(void **state)
{
    (void)state;
    static const zn_dtype dtypes[] = {ZN_DTYPE_F32, ZN_DTYPE_BF16, ZN_DTYPE_F16};
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++) {
        for (int d = 0; d < 3; d++) {
            toy_job base = reference(n_ranks, dtypes[d], 1, 0);
            toy_run(&base);
            assert_true(base.norms[0] > 0 && isfinite(base.norms[0]));
            for (int stage = 1; stage <= 3; stage++) {
                toy_job job = reference(n_ranks, dtypes[d], 1, stage);
                toy_run(&job);
                assert_same_bits(&base, &job);
                toy_free(&job);
            }
            toy_free(&base);
        }
    }
}

static void with_accumulation_stage_0_equals_1_and_2_equals_3(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        toy_job jobs[4];
        for (int stage = 0; stage <= 3; stage++) {
            jobs[stage] = reference(3, d ? ZN_DTYPE_BF16 : ZN_DTYPE_F32, 4, stage);
            toy_run(&jobs[stage]);
        }
        assert_same_bits(&jobs[0], &jobs[1]);
        assert_same_bits(&jobs[2], &jobs[3]);
        for (int stage = 0; stage <= 3; stage++)
            toy_free(&jobs[stage]);
    }
}

/* Small numbers vanish in a 16-bit sum, so another accumulator must be another result. */
static void a_16_bit_accumulator_keeps_stage_0_equal_to_1_and_2_to_3(void **state)
{
    (void)state;
    static const zn_dtype accumulators[] = {ZN_DTYPE_BF16, ZN_DTYPE_F16};
    static const zn_dtype wires[] = {ZN_DTYPE_F32, ZN_DTYPE_BF16, ZN_DTYPE_F16};
    for (int i = 0; i < 12; i++) {
        const int accumulation = i < 6 ? 1 : 4;
        toy_job wide = reference(3, i % 2 ? ZN_DTYPE_BF16 : ZN_DTYPE_F32, accumulation, 0);
        wide.p.wire_dtype = wires[i / 2 % 3];
        toy_run(&wide);
        toy_job jobs[4];
        for (int stage = 0; stage <= 3; stage++) {
            jobs[stage] = reference(3, wide.p.param_dtype, accumulation, stage);
            jobs[stage].p.wire_dtype = wide.p.wire_dtype;
            jobs[stage].p.grad_accum_dtype = accumulators[i / 3 % 2];
            jobs[stage].p.overlap_comm = i % 2;
            toy_run(&jobs[stage]);
        }
        assert_same_bits(&jobs[0], &jobs[1]);
        assert_same_bits(&jobs[2], &jobs[3]);
        if (accumulation == 1)
            assert_same_bits(&jobs[0], &jobs[3]);
        assert_true(jobs[0].norms[0] != wide.norms[0]);
        assert_true(fabs(jobs[0].norms[0] / wide.norms[0] - 1) < 0.02);
        for (int stage = 0; stage <= 3; stage++)
            toy_free(&jobs[stage]);
        toy_free(&wide);
    }
}

static void gradients_travel_in_the_wire_type_in_every_stage_and_precision(void **state)
{
    (void)state;
    static const zn_dtype types[] = {ZN_DTYPE_F32, ZN_DTYPE_BF16, ZN_DTYPE_F16};
    for (int i = 0; i < 36; i++) {
        const zn_dtype wire = types[i % 3], dtype = types[i / 3 % 3];
        toy_job job = reference(2, dtype, 1, i / 9);
        job.p.wire_dtype = wire;
        toy_run(&job);
        assert_int_equal(job.comm.reduce_scatter_elems, job.stats.trainable_padded / 2);
        assert_int_equal(job.comm.reduce_scatter_bytes,
                         job.comm.reduce_scatter_elems * (int64_t)zn_dtype_size(wire));
        if (i / 9 > 0) /* what stage 0 gathers is the sum, in grad_accum_dtype */
            assert_int_equal(job.comm.all_gather_bytes,
                             job.comm.all_gather_elems * (int64_t)zn_dtype_size(dtype));
        else
            assert_int_equal(job.comm.all_gather_bytes, 4 * job.comm.all_gather_elems);
        toy_free(&job);
    }
}

static void buckets_overlap_prefetch_and_sharing_change_no_bit(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 1000, 500000000};
    toy_job base = reference(3, ZN_DTYPE_BF16, 2, 2);
    toy_run(&base);
    for (int i = 0; i < 24; i++) {
        toy_job job = reference(3, ZN_DTYPE_BF16, 2, i % 2 ? 3 : 2);
        job.p.overlap_comm = (i / 2) % 2;
        job.p.share_parameters = (i / 4) % 2;
        job.p.reduce_bucket = sizes[i / 8];
        job.p.allgather_bucket = sizes[(i + 1) % 3];
        job.p.prefetch_bucket = sizes[(i + 2) % 3];
        job.p.max_live = sizes[i % 3];
        job.p.max_reuse_distance = sizes[(i / 3) % 3];
        job.p.sub_group = i % 5 ? 311 : 1000000;
        toy_run(&job);
        assert_same_bits(&base, &job);
        toy_free(&job);
    }
    toy_free(&base);
}

static int64_t embed_shard_bytes(const toy_job *job)
{
    const int64_t step = job->n_ranks * ZN_ZERO_ALIGN;
    return (job->embed_elems + step - 1) / step * step / job->n_ranks * (int64_t)sizeof(float);
}

static void a_tied_gradient_is_summed_in_its_own_buffer_and_changes_no_bit(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        toy_job apart = reference(3, i % 2 ? ZN_DTYPE_BF16 : ZN_DTYPE_F32, 1, 1 + i / 4);
        apart.p.overlap_comm = i / 2 % 2;
        toy_job tied = apart;
        tied.tied = true;
        toy_run(&apart);
        toy_run(&tied);
        assert_same_bits(&apart, &tied);
        assert_int_equal(apart.memory.now[ZN_MEM_GRADIENTS] - tied.memory.now[ZN_MEM_GRADIENTS],
                         embed_shard_bytes(&tied));
        toy_free(&apart);
        toy_free(&tied);
    }
}

static void a_tied_gradient_moves_out_when_another_micro_batch_comes(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        toy_job base = reference(2, i % 2 ? ZN_DTYPE_BF16 : ZN_DTYPE_F32, 3, 2 + i / 4);
        base.p.overlap_comm = i / 2 % 2;
        toy_job job = base;
        job.tied = job.unexpected = true;
        toy_run(&base);
        toy_run(&job);
        assert_same_bits(&base, &job);
        toy_free(&base);
        toy_free(&job);
    }
}

/* Stored at once or added to zeros, rounded by the caller or here: the same bits; also where
 * another unit's reduction takes the buffer away that they were stored in. */
static void whole_gradients_change_no_bit(void **state)
{
    (void)state;
    static const zn_dtype dtypes[] = {ZN_DTYPE_F32, ZN_DTYPE_BF16, ZN_DTYPE_F16};
    for (int i = 0; i < 3 * 4 * 2 * 2; i++) {
        toy_job added = toy_job_new(2, i / 3 % 4);
        added.p.param_dtype = added.p.wire_dtype = dtypes[i % 3];
        added.accumulation = 1 + i / 12 % 2;
        added.p.overlap_comm = i / 24 == 0;
        toy_job whole = added;
        whole.whole_grads = true;
        whole.late_head = i / 12 % 2 || i / 24;
        toy_run(&added);
        toy_run(&whole);
        assert_same_bits(&added, &whole);
        const bool rounds = added.p.wire_dtype == ZN_DTYPE_BF16 &&
                            (added.p.stage >= 2 || (added.p.stage == 1 && added.accumulation == 1));
        assert_int_equal(whole.stored_bf16 > 0, rounds);
        toy_free(&added);
        toy_free(&whole);
    }
}

static void evaluation_between_micro_batches_changes_no_bit(void **state)
{
    (void)state;
    toy_job base = reference(2, ZN_DTYPE_F32, 2, 3);
    toy_job job = reference(2, ZN_DTYPE_F32, 2, 3);
    job.eval_between = true;
    toy_run(&base);
    toy_run(&job);
    assert_same_bits(&base, &job);
    toy_free(&base);
    toy_free(&job);
}

static void optimizers_give_the_same_bits_sharded_and_whole(void **state)
{
    (void)state;
    static const char *const names[] = {"sgd", "adagrad", "lion", "lamb"};
    for (int k = 0; k < 4; k++) {
        toy_job base = reference(3, ZN_DTYPE_F32, 1, 0);
        toy_job job = reference(3, ZN_DTYPE_F32, 1, 3);
        base.optimizer = job.optimizer = names[k];
        toy_run(&base);
        toy_run(&job);
        assert_same_bits(&base, &job);
        toy_free(&base);
        toy_free(&job);
    }
}

static void a_non_finite_gradient_changes_nothing_and_is_named(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        toy_job before = reference(2, ZN_DTYPE_BF16, 1, stage);
        toy_job after = reference(2, ZN_DTYPE_BF16, 1, stage);
        before.steps = 2;
        after.poison_step = 3;
        toy_run(&before);
        toy_run(&after);
        assert_false(after.overflow[1]);
        assert_true(after.overflow[2]);
        assert_int_equal(after.bad_param, 4);
        assert_memory_equal(before.masters, after.masters, (size_t)before.n_elems * sizeof(float));
        assert_memory_equal(before.momentum, after.momentum,
                            (size_t)before.n_elems * sizeof(float));
        toy_free(&before);
        toy_free(&after);
    }
}

static void an_unchecked_step_applies_what_is_not_finite_and_spoils_nothing_else(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        toy_job job = reference(2, ZN_DTYPE_BF16, 1, stage);
        job.unchecked = true;
        job.steps = job.poison_step = 1;
        toy_run(&job);
        assert_false(job.overflow[0]);
        assert_true(isinf(job.norms[0]));
        int64_t broken = 0;
        for (int64_t i = 0; i < job.n_elems; i++)
            broken += !isfinite(job.masters[i]);
        assert_int_equal(broken, 1);
        toy_free(&job);
    }
}

static void a_step_sends_2_psi_in_stages_0_to_2_and_3_psi_in_stage_3(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        for (int n_ranks = 2; n_ranks <= 4; n_ranks++) {
            toy_job job = reference(n_ranks, ZN_DTYPE_F32, 1, stage);
            job.untied = true;
            job.p.max_reuse_distance = 0;
            toy_run(&job);
            const int64_t trainable = job.stats.trainable_padded, all = job.stats.padded_elems;
            const int64_t gathered = stage == 3 ? 2 * all : trainable;
            assert_int_equal(job.comm.reduce_scatter_elems, trainable / n_ranks * (n_ranks - 1));
            assert_int_equal(job.comm.all_gather_elems, gathered / n_ranks * (n_ranks - 1));
            assert_int_equal(job.comm.all_gather_bytes, 4 * job.comm.all_gather_elems);
            toy_free(&job);
        }
    }
}

static void small_parameters_stay_and_are_gathered_once_a_step(void **state)
{
    (void)state;
    toy_job job = reference(2, ZN_DTYPE_F32, 1, 3);
    job.untied = true;
    job.p.max_reuse_distance = 0;
    job.p.persistence_threshold = 40;
    toy_run(&job);
    const int64_t kept = job.stats.persistent_elems;
    assert_true(kept > 0 && kept < job.stats.padded_elems);
    assert_int_equal(job.comm.all_gather_elems, (2 * (job.stats.padded_elems - kept) + kept) / 2);
    toy_free(&job);
}

static void live_parameters_stay_inside_max_live_or_one_unit(void **state)
{
    (void)state;
    static const int64_t limits[] = {1, 3000, 6000, 1000000};
    for (int i = 0; i < 4; i++) {
        toy_job job = reference(2, ZN_DTYPE_F32, 1, 3);
        job.p.max_live = limits[i];
        toy_run(&job);
        const int64_t most =
            limits[i] > job.stats.largest_unit ? limits[i] : job.stats.largest_unit;
        assert_true(job.stats.live_peak > 0);
        assert_true(job.stats.live_peak <= most);
        toy_free(&job);
    }
}

static void prefetch_stays_inside_its_bucket(void **state)
{
    (void)state;
    static const int64_t buckets[] = {0, 1500, 100000};
    for (int i = 0; i < 3; i++) {
        toy_job job = reference(2, ZN_DTYPE_F32, 1, 3);
        job.p.prefetch_bucket = buckets[i];
        job.p.max_reuse_distance = 0;
        toy_run(&job);
        assert_true(job.stats.prefetch_peak <= buckets[i]);
        assert_true(i == 0 ? job.stats.n_prefetches == 0 : job.stats.n_prefetches > 0);
        toy_free(&job);
    }
}

static void without_overlap_nothing_is_in_flight_beside_compute(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        toy_job job = reference(2, ZN_DTYPE_BF16, 2, stage);
        job.p.overlap_comm = false;
        toy_run(&job);
        assert_int_equal(job.in_flight_beside_compute, 0);
        toy_free(&job);
    }
}

static void optimizer_calls_follow_sub_group_size(void **state)
{
    (void)state;
    toy_job job = reference(1, ZN_DTYPE_F32, 1, 3);
    job.p.sub_group = 1000;
    toy_run(&job);
    const int64_t trainable = job.n_elems - 501;
    assert_int_equal(job.stats.n_optimizer_calls, (trainable + 999) / 1000);
    toy_free(&job);
}

static void reductions_follow_reduce_bucket_size(void **state)
{
    (void)state;
    static const int64_t buckets[] = {1, 2 * ZN_ZERO_CHUNK, 500000000};
    static const int reductions[] = {3, 2, 2}; /* of the three chunks of "embed": 2^23 at most */
    for (int i = 0; i < 3; i++) {
        toy_job job = reference(2, ZN_DTYPE_BF16, 1, 2);
        job.embed_elems = 2 * ZN_ZERO_CHUNK + 1001;
        job.steps = 1;
        job.p.reduce_bucket = buckets[i];
        toy_run(&job);
        assert_int_equal(job.stats.n_reduces, 4 + reductions[i]);
        toy_free(&job);
    }
}

static void nothing_is_allocated_after_the_second_step(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        toy_job job = reference(2, ZN_DTYPE_BF16, 2, stage);
        job.steps = 6;
        toy_run(&job);
        assert_int_equal(job.allocs_late, 0);
        toy_free(&job);
    }
}

/* Bytes of rank 0 at rest, by the table of docs/memory.md on padded element counts. */
static void each_category_holds_what_the_table_says(void **state)
{
    (void)state;
    for (int i = 0; i < 24; i++) {
        const int stage = i % 4, n_ranks = 1 << ((i / 4) % 3);
        const zn_dtype dtype = i < 12 ? ZN_DTYPE_F32 : ZN_DTYPE_BF16;
        toy_job job = reference(n_ranks, dtype, 1, stage);
        toy_run(&job);
        const int64_t all = job.stats.padded_elems, trainable = job.stats.trainable_padded;
        const int64_t p = (int64_t)zn_dtype_size(dtype);
        const int64_t *now = job.memory.now;
        const int64_t W = stage == 0 ? 1 : n_ranks;
        const int64_t unit = job.stats.largest_unit; /* transient unit gradients, at most */
        const int64_t at_rest = 4 * trainable / W;
        assert_int_equal(now[ZN_MEM_PARAMETERS], stage == 3 ? p * all / n_ranks : p * all);
        assert_int_equal(now[ZN_MEM_MASTERS], dtype == ZN_DTYPE_F32 ? 0 : 2 * trainable / W);
        assert_int_equal(now[ZN_MEM_OPTIMIZER_STATE], 8 * trainable / W);
        assert_true(now[ZN_MEM_GRADIENTS] >= at_rest);
        assert_true(now[ZN_MEM_GRADIENTS] <= at_rest + (stage == 0 ? 0 : 4 * 4 * unit));
        toy_free(&job);
    }
}

static void a_shared_copy_costs_each_rank_its_slices_only(void **state)
{
    (void)state;
    toy_job job = reference(4, ZN_DTYPE_F32, 1, 2);
    job.p.share_parameters = true;
    toy_run(&job);
    assert_int_equal(job.memory.now[ZN_MEM_PARAMETERS], 4 * job.stats.padded_elems / 4);
    assert_int_equal(job.comm.all_gather_elems, 0);
    toy_free(&job);
}

/* Masters and state of 3 ranks at stage 3, put into every other stage and world size, are the same
 * numbers; and at the same world size the run goes on as if it had not stopped. */
static void restored_state_is_exact_anywhere_and_goes_on_bit_for_bit(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        const zn_dtype dtype = d ? ZN_DTYPE_BF16 : ZN_DTYPE_F32;
        toy_job half = reference(3, dtype, 1, 3), whole = reference(3, dtype, 1, 3);
        half.optimizer = whole.optimizer = "sgd";
        half.steps = 2;
        whole.steps = 4;
        toy_run(&half);
        toy_run(&whole);
        for (int i = 0; i < 12; i++) {
            toy_job job = reference(1 + i / 4, dtype, 1, i % 4);
            job.optimizer = "sgd";
            job.from = &half;
            job.first_step = 2;
            job.steps = job.n_ranks == 3 ? 4 : 2; /* 2: only load and save */
            toy_run(&job);
            const toy_job *want = job.n_ranks == 3 ? &whole : &half;
            assert_memory_equal(want->masters, job.masters, (size_t)job.n_elems * sizeof(float));
            assert_memory_equal(want->momentum, job.momentum, (size_t)job.n_elems * sizeof(float));
            toy_free(&job);
        }
        toy_free(&half);
        toy_free(&whole);
    }
}

/* i picks stage, tiers, ratio, accumulation and link; every combination of them comes up. */
static toy_job offloaded(int i, zn_dtype dtype)
{
    static const double ratios[] = {1, 0.4, 1, 0.7};
    const int stage = 1 + i % 3;
    toy_job job = reference(2, dtype, 1 + (i / 3) % 2, stage);
    job.p.optimizer_tier = (i / 6) % 2 ? ZN_ZERO_ON_DISK : ZN_ZERO_ON_HOST;
    job.p.param_tier = stage < 3          ? ZN_ZERO_ON_DEVICE
                       : (i / 2) % 3 == 0 ? ZN_ZERO_ON_DEVICE
                       : (i / 2) % 3 == 1 ? ZN_ZERO_ON_HOST
                                          : ZN_ZERO_ON_DISK;
    job.p.disk_path = job.p.param_disk_path = "/tmp";
    job.p.host_bytes = i % 3 == 2 || i % 5 == 1 ? 1 : 0; /* 1: gradients on disk */
    job.p.max_param_on_host = i % 4 < 2 ? 0 : 1500;
    job.p.param_buffer_elems = i % 4 == 1 ? 1 : 100000;
    job.p.n_param_buffers = 1 + i % 3;
    job.p.offload_ratio = ratios[i % 4];
    job.p.sub_group = i % 5 ? 1000000 : 397;
    job.p.share_parameters = i % 7 == 0;
    job.p.overlap_comm = i % 2;
    job.p.split_masters = i % 3 < 2;
    job.link_bytes_per_s = i % 4 == 3 ? 20e6 : 0;
    return job;
}

static void offload_to_host_and_disk_changes_no_bit(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        for (int i = 0; i < 24; i++) {
            const zn_dtype dtype = d ? ZN_DTYPE_BF16 : ZN_DTYPE_F32;
            toy_job job = offloaded(i, dtype);
            toy_job base = reference(2, dtype, job.accumulation, job.p.stage);
            const bool on_disk = job.p.host_bytes && job.p.optimizer_tier == ZN_ZERO_ON_DISK;
            toy_run(&base);
            toy_run(&job);
            assert_same_bits(&base, &job);
            assert_int_equal(job.host.now[ZN_MEM_GRADIENTS] == 0, on_disk);
            toy_free(&base);
            toy_free(&job);
        }
    }
}

/* The largest parameter alone fills three windows; masters and momenta are read and written whole.
 */
static void windows_on_disk_move_12_bytes_a_parameter_each_way(void **state)
{
    (void)state;
    toy_job base = reference(1, ZN_DTYPE_BF16, 1, 2), job = reference(1, ZN_DTYPE_BF16, 1, 2);
    base.embed_elems = job.embed_elems = 2 * ZN_ZERO_CHUNK + 1001;
    base.steps = job.steps = 2;
    job.p.optimizer_tier = ZN_ZERO_ON_DISK;
    job.p.disk_path = "/tmp";
    toy_run(&base);
    toy_run(&job);
    assert_same_bits(&base, &job);
    assert_int_equal(job.stats.disk_written_bytes, 12 * job.stats.trainable_padded);
    assert_int_equal(job.host.now[ZN_MEM_MASTERS], 0);
    assert_int_equal(job.host.now[ZN_MEM_OPTIMIZER_STATE], 0);
    toy_free(&base);
    toy_free(&job);
}

/* Parameters in three windows, in buffers smaller than a chunk, frozen ones too, and through a
 * checkpoint. */
static void parameters_and_gradients_on_disk_keep_the_host_to_its_windows(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    const int accumulation = 1; /* a second micro-batch of ten million elements takes a minute */
#else
    const int accumulation = 2;
#endif
    toy_job base = reference(2, ZN_DTYPE_BF16, accumulation, 3), half = base, job, rest;
    base.optimizer = "sgd";
    base.embed_elems = 5 * ZN_ZERO_CHUNK / 2 + 1001;
    base.steps = 2;
    job = base;
    job.p.optimizer_tier = job.p.param_tier = ZN_ZERO_ON_DISK;
    job.p.disk_path = job.p.param_disk_path = "/tmp";
    job.p.host_bytes = 1;
    job.p.max_param_on_host = 0;
    job.p.param_buffer_elems = 100000;
    job.p.n_param_buffers = 2;
    job.p.reduce_bucket = 1;
    half = job;
    half.steps = 1;
    toy_run(&base);
    toy_run(&job);
    assert_same_bits(&base, &job);
    for (int c = 0; c < ZN_MEM_BUFFERS; c++)
        assert_int_equal(job.host.now[c], 0);
    assert_int_equal(job.memory.now[ZN_MEM_PARAMETERS], 0);
    /* windows of master, momentum, gradient and parameter; two buffers; landings of a slice */
    const int64_t slice = (5 * ZN_ZERO_CHUNK / 2 / 3 / 2 / 2048 + 1) * 2048;
    assert_int_equal(job.host.now[ZN_MEM_BUFFERS],
                     3 * ZN_ZERO_CHUNK * (4 + 4 + 4 + 2) + 2 * 2 * 100352 + 3 * 4 * slice);
    toy_run(&half);
    rest = job;
    rest.from = &half;
    rest.first_step = 1;
    toy_run(&rest);
    assert_memory_equal(base.masters, rest.masters, (size_t)base.n_elems * sizeof(float));
    assert_memory_equal(base.momentum, rest.momentum, (size_t)base.n_elems * sizeof(float));
    toy_free(&rest);
    toy_free(&half);
    toy_free(&job);
    toy_free(&base);
}

static void a_non_finite_gradient_on_disk_is_named(void **state)
{
    (void)state;
    toy_job job = reference(2, ZN_DTYPE_BF16, 1, 2);
    job.p.optimizer_tier = ZN_ZERO_ON_DISK;
    job.p.disk_path = "/tmp";
    job.p.host_bytes = 1;
    job.poison_step = job.steps = 2;
    toy_run(&job);
    assert_false(job.overflow[0]);
    assert_true(job.overflow[1]);
    assert_int_equal(job.bad_param, 4);
    toy_free(&job);
}

/* What is announced and needs no norm is updated while backward runs: each of the five units in a
 * call of its own, and the same bits. */
static void updates_on_the_host_begin_in_backward_where_nothing_must_be_known(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        toy_job job = toy_job_new(1 + i % 3, 1 + i % 3);
        job.p.param_dtype = job.p.wire_dtype = ZN_DTYPE_BF16;
        job.p.optimizer_tier = ZN_ZERO_ON_HOST;
        job.p.param_tier = i == 5 ? ZN_ZERO_ON_HOST : ZN_ZERO_ON_DEVICE;
        job.p.share_parameters = i == 4;
        job.accumulation = 1 + i / 3;
        job.link_bytes_per_s = i == 2 ? 20e6 : 0;
        job.clip = 0;
        job.unchecked = true;
        toy_job early = job, clipped = job;
        early.announced = clipped.announced = true;
        clipped.clip = 1e9;
        toy_run(&job);
        toy_run(&early);
        toy_run(&clipped);
        assert_same_bits(&job, &early);
        assert_same_bits(&job, &clipped);
        assert_int_equal(early.stats.n_early_updates, 5);
        assert_int_equal(early.stats.to_device_bytes, job.stats.to_device_bytes);
        assert_int_equal(job.stats.n_early_updates + clipped.stats.n_early_updates, 0);
        toy_free(&job);
        toy_free(&early);
        toy_free(&clipped);
    }
}

static void with_everything_offloaded_the_device_keeps_only_what_it_works_on(void **state)
{
    (void)state;
    toy_job job = reference(2, ZN_DTYPE_BF16, 1, 3);
    job.p.optimizer_tier = job.p.param_tier = ZN_ZERO_ON_HOST;
    job.p.max_live = 1;
    toy_run(&job);
    const int64_t all = job.stats.padded_elems, trainable = job.stats.trainable_padded;
    assert_int_equal(job.memory.now[ZN_MEM_PARAMETERS], 0);
    assert_int_equal(job.memory.now[ZN_MEM_MASTERS], 0);
    assert_int_equal(job.memory.now[ZN_MEM_OPTIMIZER_STATE], 0);
    assert_int_equal(job.host.now[ZN_MEM_PARAMETERS], 2 * all / 2);
    assert_int_equal(job.host.now[ZN_MEM_MASTERS], 2 * trainable / 2); /* low halves */
    assert_int_equal(job.host.now[ZN_MEM_OPTIMIZER_STATE], 8 * trainable / 2);
    assert_int_equal(job.host.now[ZN_MEM_GRADIENTS], 4 * trainable / 2);
    toy_free(&job);
}

/* Every stage, a checkpoint of either kind into the other, and 2 bytes a parameter less. */
static void split_masters_change_no_bit_and_save_two_bytes_a_parameter(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        toy_job whole = reference(3, ZN_DTYPE_BF16, 1, stage), split = whole, rest;
        whole.optimizer = split.optimizer = stage % 2 ? "adamw" : "lamb";
        whole.p.split_masters = false;
        toy_run(&whole);
        toy_run(&split);
        assert_same_bits(&whole, &split);
        assert_int_equal(2 * split.memory.now[ZN_MEM_MASTERS], whole.memory.now[ZN_MEM_MASTERS]);
        toy_free(&split);
        toy_free(&whole);
        whole = split = reference(3, ZN_DTYPE_BF16, 1, stage);
        whole.optimizer = split.optimizer = "sgd"; /* the toy keeps one state */
        whole.p.split_masters = false;
        whole.steps = 3;
        split.steps = 2;
        toy_run(&whole);
        toy_run(&split);
        rest = stage % 2 ? split : whole;
        rest.from = &split;
        rest.first_step = 2;
        rest.steps = 3;
        toy_run(&rest);
        assert_memory_equal(whole.masters, rest.masters, (size_t)whole.n_elems * sizeof(float));
        assert_memory_equal(whole.momentum, rest.momentum, (size_t)whole.n_elems * sizeof(float));
        toy_free(&rest);
        toy_free(&split);
        toy_free(&whole);
    }
}

/* Nothing else of a step waits for parameters: what a rank gathers takes the link's time. */
static void gathers_cross_the_link_of_a_stand_in(void **state)
{
    (void)state;
    toy_job job = toy_job_new(2, 3);
    job.p.overlap_comm = false;
    job.link_bytes_per_s = 1e6;
    toy_run(&job);
    assert_true(job.comm.all_gather_bytes > 10000);
    assert_true(job.stats.gather_wait_s > 0.9e-6 * (double)job.comm.all_gather_bytes);
    assert_true(job.stats.reduce_wait_s > 0.9e-6 * (double)job.comm.reduce_scatter_bytes);
    toy_free(&job);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gathers_cross_the_link_of_a_stand_in),
    cmocka_unit_test(split_masters_change_no_bit_and_save_two_bytes_a_parameter),
    cmocka_unit_test(offload_to_host_and_disk_changes_no_bit),
    cmocka_unit_test(windows_on_disk_move_12_bytes_a_parameter_each_way),
    cmocka_unit_test(parameters_and_gradients_on_disk_keep_the_host_to_its_windows),
    cmocka_unit_test(a_non_finite_gradient_on_disk_is_named),
    cmocka_unit_test(updates_on_the_host_begin_in_backward_where_nothing_must_be_known),
    cmocka_unit_test(with_everything_offloaded_the_device_keeps_only_what_it_works_on),
    cmocka_unit_test(restored_state_is_exact_anywhere_and_goes_on_bit_for_bit),
    cmocka_unit_test(stages_give_the_same_bits_at_every_world_size_and_precision),
    cmocka_unit_test(with_accumulation_stage_0_equals_1_and_2_equals_3),
    cmocka_unit_test(a_16_bit_accumulator_keeps_stage_0_equal_to_1_and_2_to_3),
    cmocka_unit_test(gradients_travel_in_the_wire_type_in_every_stage_and_precision),
    cmocka_unit_test(buckets_overlap_prefetch_and_sharing_change_no_bit),
    cmocka_unit_test(whole_gradients_change_no_bit),
    cmocka_unit_test(evaluation_between_micro_batches_changes_no_bit),
    cmocka_unit_test(optimizers_give_the_same_bits_sharded_and_whole),
    cmocka_unit_test(a_non_finite_gradient_changes_nothing_and_is_named),
    cmocka_unit_test(an_unchecked_step_applies_what_is_not_finite_and_spoils_nothing_else),
    cmocka_unit_test(a_step_sends_2_psi_in_stages_0_to_2_and_3_psi_in_stage_3),
    cmocka_unit_test(small_parameters_stay_and_are_gathered_once_a_step),
    cmocka_unit_test(live_parameters_stay_inside_max_live_or_one_unit),
    cmocka_unit_test(prefetch_stays_inside_its_bucket),
    cmocka_unit_test(without_overlap_nothing_is_in_flight_beside_compute),
    cmocka_unit_test(optimizer_calls_follow_sub_group_size),
    cmocka_unit_test(a_tied_gradient_is_summed_in_its_own_buffer_and_changes_no_bit),
    cmocka_unit_test(a_tied_gradient_moves_out_when_another_micro_batch_comes),
    cmocka_unit_test(reductions_follow_reduce_bucket_size),
    cmocka_unit_test(nothing_is_allocated_after_the_second_step),
    cmocka_unit_test(each_category_holds_what_the_table_says),
    cmocka_unit_test(a_shared_copy_costs_each_rank_its_slices_only),
};

ZN_TEST_MAIN(tests)
