/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <math.h>

#include "base/fs.h"
#include "base/json.h"
#include "optim/optim.h"

#define N_STEPS 10
#define MAX_N 1000
/* Lamb's peer weighs with fp64 betas: 1 - 0.999f is 1.3e-5 from 0.001. */
#define STATE_TOLERANCE 2e-5
#define TOLERANCE 1e-5 /* fp32 paths of the peers are within 3.2e-6 of fp64 */

/* One golden case and its live state. */
typedef struct run {
    const char *name;
    const zn_optim_ops *ops;
    zn_optim_hyper hyper;
    double lr, lr_decay, initial_state; /* torch.optim.Adagrad's extras, driven from outside */
    int64_t n;
    float grads[N_STEPS][MAX_N], params[N_STEPS][MAX_N];
    float master[MAX_N], state[ZN_OPTIM_MAX_STATES][MAX_N];
    float want_state[ZN_OPTIM_MAX_STATES][MAX_N];
    bool has_state[ZN_OPTIM_MAX_STATES];
} run;

typedef struct fixture {
    zn_device *dev;
    json_t *cases;
    run run;
} fixture;

static int open_fixture(void **state)
{
    static fixture f; /* large; the tests of a program run one after another */
    const zn_device_params params = {.n_threads = 2};
    memset(&f, 0, sizeof f);
    if (zn_device_open("cpu", &params, &f.dev) != ZINC_OK ||
        zn_json_load(ZN_TEST_DATA "/optim/optim_cases.json", &f.cases) != ZINC_OK)
        return -1;
    *state = &f;
    return 0;
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    json_decref(f->cases);
    zn_device_close(f->dev);
    return 0;
}

/* Copy rows x n floats of a tensor; false if the file has no such tensor. */
static bool copy_tensor(const zn_map *map, const json_t *header, size_t data_at, const char *name,
                        float *out, size_t stride)
{
    const json_t *tensor = json_object_get(header, name);
    if (!tensor)
        return false;
    const json_t *shape = json_object_get(tensor, "shape");
    const size_t rank = json_array_size(shape);
    const size_t n = (size_t)json_integer_value(json_array_get(shape, rank - 1));
    const size_t rows = rank == 2 ? (size_t)json_integer_value(json_array_get(shape, 0)) : 1;
    const size_t start = data_at + (size_t)json_integer_value(
                                       json_array_get(json_object_get(tensor, "data_offsets"), 0));
    assert_true(n <= MAX_N && start + rows * n * sizeof(float) <= map->n_bytes);
    for (size_t r = 0; r < rows; r++)
        memcpy(out + r * stride, map->data + start + r * n * sizeof(float), n * sizeof(float));
    return true;
}

static void load_tensors(run *r)
{
    char path[512];
    zn_map map = {0};
    json_t *header = NULL;
    uint64_t n_header;
    snprintf(path, sizeof path, "%s/optim/%s.safetensors", ZN_TEST_DATA, r->name);
    assert_ok(zn_map_open(path, &map));
    memcpy(&n_header, map.data, sizeof n_header);
    assert_ok(zn_json_parse((const char *)map.data + 8, n_header, path, &header));
    const size_t at = 8 + n_header;
    const json_t *shape = json_object_get(json_object_get(header, "param0"), "shape");
    r->n = json_integer_value(json_array_get(shape, 0));
    assert_true(copy_tensor(&map, header, at, "param0", r->master, MAX_N));
    assert_true(copy_tensor(&map, header, at, "grads", r->grads[0], MAX_N));
    assert_true(copy_tensor(&map, header, at, "params", r->params[0], MAX_N));
    for (int i = 0; i < r->ops->n_states; i++) {
        const char *name = r->ops->state_names[i];
        r->has_state[i] = copy_tensor(&map, header, at, name, r->want_state[i], MAX_N);
        if (!r->has_state[i] && strcmp(name, "sum") == 0) /* DeepSpeed's name */
            r->has_state[i] = copy_tensor(&map, header, at, "exp_avg_sq", r->want_state[i], MAX_N);
    }
    json_decref(header);
    zn_map_close(&map);
}

static double option(const json_t *options, const char *key, double fallback)
{
    const json_t *value = json_object_get(options, key);
    if (!value)
        return fallback;
    return json_is_boolean(value) ? (double)json_is_true(value) : json_number_value(value);
}

static void load_case(const json_t *c, run *r)
{
    static const struct {
        const char *class, *type;
    } types[] = {
        {"DeepSpeedCPUAdam", "Adam"},       {"FusedAdam", "Adam"},
        {"DeepSpeedCPUAdagrad", "Adagrad"}, {"DeepSpeedCPULion", "Lion"},
        {"lamb (simulation)", "Lamb"},      {"torch.optim.SGD", "SGD"},
        {"torch.optim.Adagrad", "Adagrad"}, {"torch.optim.Adam", "Adam"},
        {"torch.optim.AdamW", "AdamW"},
    };
    memset(r, 0, sizeof *r);
    const char *class = json_string_value(json_object_get(c, "optimizer"));
    const json_t *o = json_object_get(c, "options");
    r->name = json_string_value(json_object_get(c, "name"));
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].class, class) == 0)
            assert_ok(zn_optim_find(types[i].type, &r->ops));
    assert_non_null(r->ops);
    r->ops->defaults(&r->hyper);
    zn_optim_hyper *h = &r->hyper;
    const json_t *betas = json_object_get(o, "betas");
    if (betas) {
        h->beta1 = json_number_value(json_array_get(betas, 0));
        h->beta2 = json_number_value(json_array_get(betas, 1));
    }
    r->lr = option(o, "lr", h->lr);
    h->eps = option(o, "eps", h->eps);
    h->weight_decay = option(o, "weight_decay", h->weight_decay);
    h->bias_correction = option(o, "bias_correction", h->bias_correction) != 0;
    h->decoupled_decay = option(o, "adamw_mode", option(o, "adam_w_mode", 1)) != 0 &&
                         strcmp(class, "torch.optim.Adam") != 0;
    h->momentum = option(o, "momentum", h->momentum);
    h->dampening = option(o, "dampening", h->dampening);
    h->nesterov = option(o, "nesterov", 0) != 0;
    h->min_coeff = option(o, "min_coeff", h->min_coeff);
    h->max_coeff = option(o, "max_coeff", h->max_coeff);
    r->lr_decay = option(o, "lr_decay", 0);
    r->initial_state = option(o, "initial_accumulator_value", 0);
    r->ops = zn_optim_lean(r->ops, h, 1);
    load_tensors(r);
    for (int64_t i = 0; i < r->n; i++)
        r->state[0][i] = (float)r->initial_state;
}

/* One step of the whole tensor, cut at `cut` into two segments (0: not cut). */
static void take_step(run *r, zn_device *dev, const zn_kernels *kernels, int64_t t, int64_t cut)
{
    const float one = 1.0f;
    r->hyper.lr = r->lr / (1.0 + (double)(t - 1) * r->lr_decay);
    const zn_optim_step step = {zn_device_compute(dev), kernels, &r->hyper, t, &one};
    zn_optim_segment segments[2];
    const int64_t starts[3] = {0, cut, r->n};
    for (int i = 0; i < 2; i++)
        segments[i] = (zn_optim_segment){
            .n = starts[i + 1] - starts[i],
            .master = r->master + starts[i],
            .state = {r->state[0] + starts[i], r->state[1] + starts[i]},
            .grad = r->grads[t - 1] + starts[i],
            .grad_dtype = ZN_DTYPE_F32,
        };
    double sums[2] = {0, 0};
    for (int i = 0; i < 2 && r->ops->n_sums > 0; i++)
        assert_ok(r->ops->sums(&step, &segments[i], sums));
    for (int i = 0; i < 2; i++)
        assert_ok(r->ops->update(&step, &segments[i], r->ops->n_sums > 0 ? sums : NULL));
}

/* Lion where the update is exactly 0: see data/optim/README.md. */
static bool left_out(const run *r, int64_t i)
{
    return strncmp(r->name, "lion", 4) == 0 && (i < 8 || i == 28);
}

static void compare(const run *r, const char *isa, const char *what, const float *got,
                    const float *want, int64_t t)
{
    const double tolerance = strcmp(what, "param") == 0 ? TOLERANCE : STATE_TOLERANCE;
    for (int64_t i = 0; i < r->n; i++)
        if (!left_out(r, i) &&
            !(fabs((double)got[i] - want[i]) <= tolerance * (1.0 + fabs((double)want[i]))))
            fail_msg("%s, %s, step %lld, %s[%lld]: %.9g, want %.9g", r->name, isa, (long long)t,
                     what, (long long)i, got[i], want[i]);
}

static void every_optimizer_follows_its_peer_for_ten_steps(void **state)
{
    fixture *f = *state;
    assert_true(json_array_size(f->cases) >= 25);
    for (zn_isa isa = ZN_ISA_REF; isa <= zn_sys_isa(); isa++) {
        const zn_kernels *kernels = zn_kernels_for(isa);
        if (!kernels)
            continue;
        for (size_t c = 0; c < json_array_size(f->cases); c++) {
            run *r = &f->run;
            load_case(json_array_get(f->cases, c), r);
            for (int64_t t = 1; t <= N_STEPS; t++) {
                take_step(r, f->dev, kernels, t, 0);
                compare(r, zn_isa_name(isa), "param", r->master, r->params[t - 1], t);
            }
            for (int i = 0; i < r->ops->n_states; i++)
                if (r->has_state[i])
                    compare(r, zn_isa_name(isa), r->ops->state_names[i], r->state[i],
                            r->want_state[i], N_STEPS);
        }
    }
}

/* Two steps of an element-wise optimizer, the range cut at every offset. */
static void cut_everywhere(fixture *f, const zn_kernels *kernels, const json_t *c)
{
    static run whole, cut;
    load_case(c, &whole);
    if (whole.ops->n_sums > 0)
        return;
    whole.n = 101; /* several vectors of any width, and a tail */
    const run start = whole;
    take_step(&whole, f->dev, kernels, 1, 0);
    take_step(&whole, f->dev, kernels, 2, 0);
    for (int64_t at = 0; at <= start.n; at++) {
        cut = start;
        take_step(&cut, f->dev, kernels, 1, at);
        take_step(&cut, f->dev, kernels, 2, start.n - at);
        if (memcmp(whole.master, cut.master, sizeof cut.master) != 0 ||
            memcmp(whole.state, cut.state, sizeof cut.state) != 0)
            fail_msg("%s, %s, cut at %lld differs", whole.name, kernels->isa, (long long)at);
    }
}

static void a_cut_range_gives_the_same_bits(void **state)
{
    fixture *f = *state;
    for (zn_isa isa = ZN_ISA_REF; isa <= zn_sys_isa(); isa++) {
        const zn_kernels *kernels = zn_kernels_for(isa);
        for (size_t c = 0; kernels && c < json_array_size(f->cases); c++)
            cut_everywhere(f, kernels, json_array_get(f->cases, c));
    }
}

/* The scale is one factor on the gradient, and the 16-bit copy is the rounded master. */
static void gradients_are_scaled_and_the_16_bit_copy_is_the_rounded_master(void **state)
{
    fixture *f = *state;
    enum { N = 77 };
    const zn_optim_ops *ops;
    float plain[N], scaled[N], grad[N], grad_up[N], m[2][2][N];
    uint16_t out[N];
    assert_ok(zn_optim_find("AdamW", &ops));
    zn_optim_hyper hyper = {0};
    ops->defaults(&hyper);
    memset(m, 0, sizeof m);
    for (int i = 0; i < N; i++) {
        plain[i] = scaled[i] = 0.01f * (float)(i - 30);
        grad[i] = 0.25f * (float)((i * 7) % 13 - 6);
        grad_up[i] = grad[i] * 1024.0f;
    }
    const float one = 1.0f, down = 1.0f / 1024.0f;
    zn_optim_step step = {zn_device_compute(f->dev), zn_kernels_get(f->dev), &hyper, 1, &one};
    zn_optim_segment segment = {.n = N,
                                .master = plain,
                                .state = {m[0][0], m[0][1]},
                                .grad = grad,
                                .grad_dtype = ZN_DTYPE_F32};
    assert_ok(ops->update(&step, &segment, NULL));
    segment.master = scaled;
    segment.state[0] = m[1][0];
    segment.state[1] = m[1][1];
    segment.grad = grad_up;
    segment.out16 = out;
    segment.out_dtype = ZN_DTYPE_BF16;
    step.grad_scale = &down;
    assert_ok(ops->update(&step, &segment, NULL));
    assert_memory_equal(plain, scaled, sizeof plain);
    assert_memory_equal(m[0], m[1], sizeof m[0]);
    for (int i = 0; i < N; i++)
        assert_int_equal(out[i], zn_f32_to_bf16(scaled[i]));
}

/* One parameter on three ranks: sums of the pieces, added, give the step of the whole. */
static void lamb_in_pieces_moves_like_the_whole(void **state)
{
    fixture *f = *state;
    static run whole, pieces;
    for (size_t c = 0; c < json_array_size(f->cases); c++) {
        load_case(json_array_get(f->cases, c), &whole);
        if (whole.ops->n_sums == 0)
            continue;
        pieces = whole;
        for (int64_t t = 1; t <= N_STEPS; t++) {
            take_step(&whole, f->dev, zn_kernels_get(f->dev), t, 0);
            take_step(&pieces, f->dev, zn_kernels_get(f->dev), t, 333);
            for (int64_t i = 0; i < whole.n; i++) /* the sums are rounded in another order */
                assert_true(fabsf(whole.master[i] - pieces.master[i]) <=
                            1e-6f * (1.0f + fabsf(whole.master[i])));
        }
    }
}

static void a_parameter_of_norm_zero_takes_a_lamb_step_of_ratio_one(void **state)
{
    fixture *f = *state;
    const zn_optim_ops *ops;
    float master[4] = {0}, m[4] = {0}, v[4] = {0};
    const float grad[4] = {1.0f, -1.0f, 2.0f, -2.0f}, one = 1.0f;
    assert_ok(zn_optim_find("lamb", &ops));
    zn_optim_hyper hyper = {0};
    ops->defaults(&hyper);
    const zn_optim_step step = {zn_device_compute(f->dev), zn_kernels_get(f->dev), &hyper, 1, &one};
    const zn_optim_segment segment = {
        .n = 4, .master = master, .state = {m, v}, .grad = grad, .grad_dtype = ZN_DTYPE_F32};
    double sums[2] = {0, 0};
    assert_ok(ops->sums(&step, &segment, sums));
    assert_true(sums[0] == 0.0 && sums[1] > 0.0);
    assert_ok(ops->update(&step, &segment, sums));
    for (int i = 0; i < 4; i++) /* the first corrected Adam step is lr in size */
        assert_true(fabsf(fabsf(master[i]) - 1e-3f) < 1e-7f && master[i] * grad[i] < 0.0f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_optimizer_follows_its_peer_for_ten_steps),
    cmocka_unit_test(a_cut_range_gives_the_same_bits),
    cmocka_unit_test(gradients_are_scaled_and_the_16_bit_copy_is_the_rounded_master),
    cmocka_unit_test(lamb_in_pieces_moves_like_the_whole),
    cmocka_unit_test(a_parameter_of_norm_zero_takes_a_lamb_step_of_ratio_one),
};

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
