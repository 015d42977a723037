/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/describe.h"

#include <string.h>

/* Named numbers as a JSON object; what is not finite is null. */
typedef struct named {
    const char *name;
    double value;
} named;

static zinc_status numbers_json(const char *type, const named *items, int n, json_t **out)
{
    zinc_status status;
    zn_buf text = {0};
    ZN_TRY_GOTO(zn_buf_puts(&text, "{\"type\":"));
    ZN_TRY_GOTO(zn_json_append_string(&text, type, strlen(type)));
    for (int i = 0; i < n; i++) {
        ZN_TRY_GOTO(zn_buf_printf(&text, ",\"%s\":", items[i].name));
        ZN_TRY_GOTO(zn_json_append_number(&text, items[i].value));
    }
    ZN_TRY_GOTO(zn_buf_puts(&text, "}"));
    ZN_TRY_GOTO(zn_json_parse(text.data, text.n, "a checkpoint's numbers", out));
    status = ZINC_OK;
fail:
    zn_buf_fini(&text);
    return status;
}

zinc_status zn_describe_schedule(const zn_lr_schedule *l, const char *type, json_t **out)
{
    const named items[] = {
        {"base_lr", l->base_lr},
        {"warmup_min_lr", l->warmup_min_lr},
        {"warmup_max_lr", l->warmup_max_lr},
        {"warmup_num_steps", (double)l->warmup_num_steps},
        {"total_num_steps", (double)l->total_num_steps},
        {"warmup_linear", l->warmup_linear},
        {"warmup_min_ratio", l->warmup_min_ratio},
        {"cos_min_ratio", l->cos_min_ratio},
        {"cycle_min_lr", l->cycle_min_lr},
        {"cycle_max_lr", l->cycle_max_lr},
        {"decay_lr_rate", l->decay_lr_rate},
        {"cycle_first_step_size", (double)l->cycle_first_step_size},
        {"cycle_second_step_size", (double)l->cycle_second_step_size},
        {"decay_step_size", (double)l->decay_step_size},
        {"lr_range_test_min_lr", l->lr_range_test_min_lr},
        {"lr_range_test_step_rate", l->lr_range_test_step_rate},
        {"lr_range_test_step_size", (double)l->lr_range_test_step_size},
        {"num_cycles", l->num_cycles},
        {"power", l->power},
        {"lr_end", l->lr_end},
    };
    return numbers_json(type, items, (int)(sizeof items / sizeof items[0]), out);
}

zinc_status zn_describe_hyper(const zn_optim_hyper *h, const char *optimizer, bool decay_all,
                              json_t **out)
{
    const named items[] = {
        {"lr", h->lr},
        {"beta1", h->beta1},
        {"beta2", h->beta2},
        {"eps", h->eps},
        {"weight_decay", h->weight_decay},
        {"decay_all", decay_all},
        {"bias_correction", h->bias_correction},
        {"decoupled_decay", h->decoupled_decay},
        {"momentum", h->momentum},
        {"dampening", h->dampening},
        {"nesterov", h->nesterov},
        {"min_coeff", h->min_coeff},
        {"max_coeff", h->max_coeff},
    };
    return numbers_json(optimizer, items, (int)(sizeof items / sizeof items[0]), out);
}

zinc_status zn_describe_config(const zn_config *config, json_t **out)
{
    zinc_status status;
    zn_buf text = {0};
    json_t *document = NULL;
    ZN_TRY_GOTO(zn_config_append_json(config, &text));
    ZN_TRY_GOTO(zn_json_parse(text.data, text.n, "the resolved configuration", &document));
    *out = json_incref(json_object_get(document, "resolved"));
    status = ZINC_OK;
fail:
    json_decref(document);
    zn_buf_fini(&text);
    return status;
}

const char *zn_describe_dtype(const zn_config_values *values)
{
    return values->bf16.enabled ? "bfloat16" : values->fp16.enabled ? "float16" : "float32";
}
