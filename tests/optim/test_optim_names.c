/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include "optim/optim.h"

static void an_optimizer_is_found_by_every_name_a_config_uses(void **state)
{
    (void)state;
    static const struct {
        const char *written, *name;
    } names[] = {
        {"Adam", "adamw"}, {"AdamW", "adamw"},     {"FusedAdam", "adamw"}, {"adamw_torch", "adamw"},
        {"SGD", "sgd"},    {"Adagrad", "adagrad"}, {"Lion", "lion"},       {"LAMB", "lamb"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const zn_optim_ops *ops = NULL;
        assert_ok(zn_optim_find(names[i].written, &ops));
        assert_string_equal(ops->name, names[i].name);
        assert_non_null(ops->defaults);
        assert_non_null(ops->update);
        assert_int_equal(ops->n_sums > 0, ops->sums != NULL);
    }
}

static void a_refused_optimizer_is_named_with_the_reason(void **state)
{
    (void)state;
    const zn_optim_ops *ops = NULL;
    assert_fails(zn_optim_find("Muon", &ops), ZINC_E_UNSUPPORTED, "whole matrices");
    assert_fails(zn_optim_find("OneBitAdam", &ops), ZINC_E_UNSUPPORTED, "use adamw");
    assert_fails(zn_optim_find("ZeroOneAdam", &ops), ZINC_E_UNSUPPORTED, "ZeroOneAdam");
    assert_fails(zn_optim_find("OneBitLamb", &ops), ZINC_E_UNSUPPORTED, "use lamb");
    assert_fails(zn_optim_find("MuAdamW", &ops), ZINC_E_UNSUPPORTED, "mup");
    assert_fails(zn_optim_find("RMSprop", &ops), ZINC_E_UNSUPPORTED, "torch's own");
    assert_null(ops);
}

static void an_unknown_optimizer_gets_the_list_and_the_nearest_name(void **state)
{
    (void)state;
    const zn_optim_ops *ops = NULL;
    assert_fails(zn_optim_find("AdamWW", &ops), ZINC_E_CONFIG, "did you mean \"adamw\"");
    assert_fails(zn_optim_find("Newton", &ops), ZINC_E_CONFIG, zn_optim_names());
    assert_fails(zn_optim_find("", &ops), ZINC_E_CONFIG, "there are");
    assert_fails(zn_optim_find("adam adamw", &ops), ZINC_E_CONFIG, "there are");
    assert_fails(zn_optim_find("an optimizer with a name that is far too long to be one", &ops),
                 ZINC_E_CONFIG, "there are");
}

static void sgd_keeps_a_buffer_only_where_a_group_has_momentum(void **state)
{
    (void)state;
    const zn_optim_ops *sgd = NULL, *adam = NULL;
    assert_ok(zn_optim_find("sgd", &sgd));
    assert_ok(zn_optim_find("adam", &adam));
    zn_optim_hyper groups[2] = {{.momentum = 0.0}, {.momentum = 0.0}};
    assert_int_equal(zn_optim_lean(sgd, groups, 2)->n_states, 0);
    groups[1].momentum = 0.9;
    assert_ptr_equal(zn_optim_lean(sgd, groups, 2), sgd);
    assert_ptr_equal(zn_optim_lean(adam, groups, 2), adam);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(an_optimizer_is_found_by_every_name_a_config_uses),
    cmocka_unit_test(a_refused_optimizer_is_named_with_the_reason),
    cmocka_unit_test(an_unknown_optimizer_gets_the_list_and_the_nearest_name),
    cmocka_unit_test(sgd_keeps_a_buffer_only_where_a_group_has_momentum),
};

ZN_TEST_MAIN(tests)
