/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration written as another file: a ds_config.json or an accelerate YAML. What the other
 * form has no place for is named, not dropped in silence. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "config/config_internal.h"

#define YAML_BLOCK "accelerate."

static bool starts(const char *path, const char *with)
{
    return strncmp(path, with, strlen(with)) == 0;
}

/* ---- ds_config.json ---- */

/* The value of row i that a ds_config.json says: what was given, and the stage that a strategy
 * means. NULL: none. */
static const zn_slot *written(const zn_config *config, int i, bool with_machines)
{
    const zn_key *key = &zn_keys[i];
    const zn_slot *slot = &config->slots[i];
    const bool of_yaml = starts(key->path, YAML_BLOCK);
    const bool section = of_yaml && strchr(key->path + strlen(YAML_BLOCK), '.');
    if (key->type >= ZN_KEY_BLOCK || key->status == ZN_KEY_ALIAS || section ||
        (of_yaml && (!with_machines || key->status != ZN_KEY_HONOURED)))
        return NULL;
    if (strcmp(key->path, "zero_optimization.stage") == 0)
        return &config->resolved[i];
    return slot->state == ZN_SLOT_ABSENT || key->type == ZN_KEY_ANY ? NULL : slot;
}

static bool has_member(const zn_config *config, const char *block, bool with_machines)
{
    const size_t n = strlen(block);
    for (int i = 0; i < zn_n_keys; i++)
        if (strncmp(zn_keys[i].path, block, n) == 0 && zn_keys[i].path[n] == '.' &&
            written(config, i, with_machines))
            return true;
    return false;
}

static zinc_status append_members(const zn_config *config, const char *block, bool with_machines,
                                  int depth, zn_buf *out)
{
    bool first = true;
    ZN_TRY(zn_buf_puts(out, "{"));
    for (int i = 0; i < zn_n_keys; i++) {
        const char *name;
        if (!zn_key_is_in(i, block, &name))
            continue;
        const zn_slot *slot = written(config, i, with_machines);
        const bool inner = zn_keys[i].type == ZN_KEY_BLOCK && zn_keys[i].status != ZN_KEY_ALIAS &&
                           has_member(config, zn_keys[i].path, with_machines);
        if (!slot && !inner)
            continue;
        ZN_TRY(zn_buf_printf(out, "%s\n%*s\"%s\": ", first ? "" : ",", 2 * (depth + 1), "", name));
        first = false;
        ZN_TRY(inner ? append_members(config, zn_keys[i].path, with_machines, depth + 1, out)
                     : zn_slot_append(&zn_keys[i], slot, out));
    }
    return first ? zn_buf_puts(out, "}") : zn_buf_printf(out, "\n%*s}", 2 * depth, "");
}

zinc_status zn_config_append_deepspeed(const zn_config *config, bool with_machines, zn_buf *out)
{
    if (!config->resolved)
        ZN_FAIL(ZINC_E_INVALID, "%s: the configuration is not resolved yet", config->name);
    ZN_TRY(append_members(config, "", with_machines, 0, out));
    return zn_buf_puts(out, "\n");
}

/* ---- accelerate YAML ---- */

/* Keys that an accelerate YAML has a place for, beside the blocks fsdp and accelerate. */
static const char *const both_say[] = {
    "zero_optimization.stage",
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_param.device",
    "fp16.enabled",
    "bf16.enabled",
};
static const char *const deepspeed_says[] = {
    "zero_optimization.offload_optimizer.nvme_path",
    "zero_optimization.offload_param.nvme_path",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
};

static bool is_in(const char *path, const char *const *paths, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(path, paths[i]) == 0)
            return true;
    return false;
}

static bool has_place(const char *path, bool fsdp)
{
    if (starts(path, YAML_BLOCK) || is_in(path, both_say, sizeof both_say / sizeof *both_say))
        return true;
    return fsdp ? starts(path, "fsdp.")
                : is_in(path, deepspeed_says, sizeof deepspeed_says / sizeof *deepspeed_says);
}

/* One line for each value that was given and has no place. */
static zinc_status name_lost(const zn_config *config, bool fsdp, zn_buf *lost)
{
    for (int i = 0; i < zn_n_keys; i++) {
        const zn_key *key = &zn_keys[i];
        const zn_slot *slot = &config->slots[i];
        if (slot->state != ZN_SLOT_GIVEN || key->type >= ZN_KEY_BLOCK ||
            key->status != ZN_KEY_HONOURED || zn_slot_is_default(key, slot) ||
            has_place(key->path, fsdp))
            continue;
        char *origin = NULL;
        zinc_status status = zn_slot_origin(slot, &origin);
        if (status == ZINC_OK)
            status = zn_buf_printf(lost, "%s ", key->path);
        if (status == ZINC_OK)
            status = zn_slot_append(key, slot, lost);
        if (status == ZINC_OK)
            status = zn_buf_printf(lost, " (%s)\n", origin);
        zn_free(origin);
        ZN_TRY(status);
    }
    return ZINC_OK;
}

/* A text that YAML reads as this text. */
static zinc_status append_scalar(const char *text, zn_buf *out)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./-";
    static const char words[] = "yes no true false on off null y n";
    const size_t n = strlen(text);
    const bool is_plain = n > 0 && strspn(text, plain) == n && text[0] != '-' &&
                          strspn(text, "0123456789.-_") < n && !zn_word_in(words, text, true);
    if (is_plain)
        return zn_buf_puts(out, text);
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20) /* JSON's strings are YAML's double-quoted ones */
            return zn_json_append_string(out, text, n);
    ZN_TRY(zn_buf_puts(out, "'"));
    for (const char *p = text; *p; p++)
        ZN_TRY(zn_buf_printf(out, *p == '\'' ? "''" : "%c", *p));
    return zn_buf_puts(out, "'");
}

static zinc_status append_text(const char *name, const char *text, zn_buf *out)
{
    ZN_TRY(zn_buf_printf(out, "%s: ", name));
    ZN_TRY(append_scalar(text, out));
    return zn_buf_puts(out, "\n");
}

static zinc_status append_flag(const char *name, bool flag, zn_buf *out)
{
    return zn_buf_printf(out, "%s: %s\n", name, flag ? "true" : "false");
}

static const char *device_name(zn_offload_device device)
{
    return device == ZN_OFFLOAD_CPU ? "cpu" : device == ZN_OFFLOAD_NVME ? "nvme" : "none";
}

static bool is_given(const zn_config *config, const char *path)
{
    return zn_slot_at(config->slots, path)->state == ZN_SLOT_GIVEN;
}

static zinc_status append_reference(const zn_config_values *v, zn_buf *out)
{
    ZN_TRY(append_text("  deepspeed_config_file", v->accelerate.deepspeed_config_file, out));
    return append_flag("  zero3_init_flag", v->accelerate.zero3_init_flag, out);
}

static zinc_status append_deepspeed_section(const zn_config *config, zn_buf *out)
{
    const zn_config_values *v = &config->values;
    ZN_TRY(zn_buf_puts(out, "deepspeed_config:\n"));
    if (v->accelerate.exclusion_filter)
        ZN_TRY(append_text("  deepspeed_exclusion_filter", v->accelerate.exclusion_filter, out));
    if (v->accelerate.hostfile)
        ZN_TRY(append_text("  deepspeed_hostfile", v->accelerate.hostfile, out));
    if (v->accelerate.inclusion_filter)
        ZN_TRY(append_text("  deepspeed_inclusion_filter", v->accelerate.inclusion_filter, out));
    if (v->accelerate.multinode_launcher)
        ZN_TRY(
            append_text("  deepspeed_multinode_launcher", v->accelerate.multinode_launcher, out));
    if (v->accelerate.deepspeed_config_file) /* it says the rest */
        return append_reference(v, out);
    if (is_given(config, "gradient_accumulation_steps"))
        ZN_TRY(zn_buf_printf(out, "  gradient_accumulation_steps: %lld\n",
                             (long long)v->gradient_accumulation_steps));
    if (is_given(config, "gradient_clipping"))
        ZN_TRY(zn_buf_printf(out, "  gradient_clipping: %.17g\n", v->gradient_clipping));
    if (v->zero.stage >= 2 || v->zero.offload_optimizer != ZN_OFFLOAD_NONE) {
        ZN_TRY(
            append_text("  offload_optimizer_device", device_name(v->zero.offload_optimizer), out));
        if (v->zero.offload_optimizer_nvme_path)
            ZN_TRY(append_text("  offload_optimizer_nvme_path", v->zero.offload_optimizer_nvme_path,
                               out));
        ZN_TRY(append_text("  offload_param_device", device_name(v->zero.offload_param), out));
        if (v->zero.offload_param_nvme_path)
            ZN_TRY(append_text("  offload_param_nvme_path", v->zero.offload_param_nvme_path, out));
    }
    ZN_TRY(append_flag("  zero3_init_flag",
                       v->accelerate.given ? v->accelerate.zero3_init_flag : v->zero.stage == 3,
                       out));
    if (v->zero.stage == 3)
        ZN_TRY(append_flag("  zero3_save_16bit_model", v->zero.gather_16bit_weights_on_model_save,
                           out));
    return zn_buf_printf(out, "  zero_stage: %d\n", v->zero.stage);
}

/* Rows of the block fsdp that were given, by the names that accelerate has for them. */
static zinc_status append_fsdp_rows(const zn_config *config, bool version_2, zn_buf *out)
{
    static const char *const only_1[] = {"fsdp.backward_prefetch", "fsdp.forward_prefetch",
                                         "fsdp.use_orig_params", "fsdp.sync_module_states",
                                         "fsdp.limit_all_gathers"};
    for (int i = 0; i < zn_n_keys; i++) {
        const zn_key *key = &zn_keys[i];
        const zn_slot *slot = &config->slots[i];
        if (!starts(key->path, "fsdp.") || slot->state != ZN_SLOT_GIVEN ||
            starts(key->path, "fsdp.shard") || starts(key->path, "fsdp.reshard") ||
            (version_2 && is_in(key->path, only_1, sizeof only_1 / sizeof *only_1)))
            continue;
        ZN_TRY(zn_buf_printf(out, "  fsdp_%s: ", key->path + strlen("fsdp.")));
        if (key->type == ZN_KEY_TEXT || key->type == ZN_KEY_CHOICE)
            ZN_TRY(append_scalar(slot->text, out));
        else
            ZN_TRY(zn_slot_append(key, slot, out));
        ZN_TRY(zn_buf_puts(out, "\n"));
    }
    return ZINC_OK;
}

static bool is_hybrid(const zn_slot *strategy)
{
    return strncasecmp(strategy->text, "HYBRID", 6) == 0;
}

static zinc_status append_fsdp_section(const zn_config *config, zn_buf *out)
{
    const zn_config_values *v = &config->values;
    const zn_slot *strategy = zn_slot_at(config->slots, "fsdp.sharding_strategy");
    const bool version_2 =
        v->accelerate.fsdp_version == 2 && strcasecmp(strategy->text, "NO_SHARD") != 0;
    ZN_TRY(zn_buf_puts(out, "fsdp_config:\n"));
    ZN_TRY(append_fsdp_rows(config, version_2, out));
    ZN_TRY(append_flag("  fsdp_offload_params",
                       v->zero.offload_param == ZN_OFFLOAD_CPU ||
                           v->zero.offload_optimizer == ZN_OFFLOAD_CPU,
                       out));
    if (version_2)
        ZN_TRY(append_flag("  fsdp_reshard_after_forward", v->zero.reshard_after_forward, out));
    else
        ZN_TRY(append_text("  fsdp_reshard_after_forward", strategy->text, out));
    return zn_buf_printf(out, "  fsdp_version: %d\n", version_2 ? 2 : 1);
}

static zinc_status append_mesh(const zn_config *config, int64_t n_ranks, zn_buf *out)
{
    const zn_config_values *v = &config->values;
    const zn_slot *strategy = zn_slot_at(config->slots, "fsdp.sharding_strategy");
    if (v->accelerate.fsdp_version != 2 || !is_hybrid(strategy) || v->zero.shard_size < 1)
        return ZINC_OK;
    return zn_buf_printf(out,
                         "parallelism_config:\n"
                         "  parallelism_config_dp_replicate_size: %lld\n"
                         "  parallelism_config_dp_shard_size: %lld\n",
                         (long long)(n_ranks / v->zero.shard_size), (long long)v->zero.shard_size);
}

static zinc_status append_machines(const zn_config *config, int64_t n_ranks, zn_buf *out)
{
    const zn_config_values *v = &config->values;
    const bool given = v->accelerate.given;
    ZN_TRY(zn_buf_printf(out, "machine_rank: %lld\n",
                         given ? (long long)v->accelerate.machine_rank : 0LL));
    if (v->accelerate.main_process_ip)
        ZN_TRY(append_text("main_process_ip", v->accelerate.main_process_ip, out));
    if (v->accelerate.main_process_port > 0)
        ZN_TRY(zn_buf_printf(out, "main_process_port: %lld\n",
                             (long long)v->accelerate.main_process_port));
    ZN_TRY(zn_buf_puts(out, "main_training_function: main\n"));
    if (!v->accelerate.deepspeed_config_file)
        ZN_TRY(append_text("mixed_precision",
                           v->bf16.enabled   ? "bf16"
                           : v->fp16.enabled ? "fp16"
                                             : "no",
                           out));
    return zn_buf_printf(out, "num_machines: %lld\nnum_processes: %lld\n",
                         given ? (long long)v->accelerate.num_machines : 1LL, (long long)n_ranks);
}

/* What an FSDP file cannot say of these values, beside keys that have no place at all. */
static zinc_status name_unlike(const zn_config_values *v, zn_buf *lost)
{
    if (v->zero.stage == 3 &&
        (v->zero.offload_param == ZN_OFFLOAD_CPU) != (v->zero.offload_optimizer == ZN_OFFLOAD_CPU))
        ZN_TRY(zn_buf_puts(lost, "offload of one of parameters and optimizer: "
                                 "fsdp_offload_params moves both\n"));
    return ZINC_OK;
}

zinc_status zn_config_append_accelerate(const zn_config *config, int64_t n_ranks, zn_buf *lost,
                                        zn_buf *out)
{
    static const char *const types[] = {"NO", "DEEPSPEED", "FSDP", "MULTI_CPU", "MULTI_GPU"};
    const zn_config_values *v = &config->values;
    const bool fsdp = is_given(config, "fsdp.sharding_strategy");
    const zn_distributed_type type = fsdp                  ? ZN_DISTRIBUTED_FSDP
                                     : v->accelerate.given ? v->accelerate.distributed_type
                                                           : ZN_DISTRIBUTED_DEEPSPEED;
    if (!config->resolved)
        ZN_FAIL(ZINC_E_INVALID, "%s: the configuration is not resolved yet", config->name);
    if (!v->accelerate.deepspeed_config_file)
        ZN_TRY(name_lost(config, fsdp, lost));
    if (fsdp)
        ZN_TRY(name_unlike(v, lost));
    ZN_TRY(zn_buf_puts(out, "compute_environment: LOCAL_MACHINE\ndebug: false\n"));
    if (type == ZN_DISTRIBUTED_DEEPSPEED)
        ZN_TRY(append_deepspeed_section(config, out));
    ZN_TRY(append_text("distributed_type", types[type], out));
    ZN_TRY(zn_buf_puts(out, "downcast_bf16: 'no'\n"));
    ZN_TRY(append_flag("enable_cpu_affinity", v->accelerate.enable_cpu_affinity, out));
    if (type == ZN_DISTRIBUTED_FSDP)
        ZN_TRY(append_fsdp_section(config, out));
    ZN_TRY(append_machines(config, n_ranks, out));
    if (type == ZN_DISTRIBUTED_FSDP)
        ZN_TRY(append_mesh(config, n_ranks, out));
    ZN_TRY(zn_buf_puts(out, "rdzv_backend: static\nsame_network: true\ntpu_env: []\n"
                            "tpu_use_cluster: false\ntpu_use_sudo: false\n"));
    return append_flag("use_cpu", type == ZN_DISTRIBUTED_MULTI_CPU, out);
}

zinc_status zn_config_take_machines(zn_config *config, const zn_config *from)
{
    for (int i = 0; i < zn_n_keys; i++) {
        const char *path = zn_keys[i].path;
        if (!starts(path, "accelerate") || starts(path, YAML_BLOCK "fsdp_config") ||
            from->slots[i].state == ZN_SLOT_ABSENT)
            continue;
        ZN_TRY(zn_slot_copy(&from->slots[i], &config->slots[i]));
        config->slots[i].file = config->name;
    }
    zn_slot *type = zn_slot_at(config->slots, YAML_BLOCK "distributed_type");
    char *deepspeed;
    ZN_TRY(zn_strdup("DEEPSPEED", &deepspeed));
    zn_free(type->text);
    type->text = deepspeed;
    return ZINC_OK;
}
