/* SPDX-License-Identifier: Apache-2.0 */
/* accelerate_launch.c — see accelerate_launch.h. Variables and their values are those of
 * `accelerate launch` 1.15 (utils/launch.py, prepare_deepspeed_cmd_env and prepare_multi_gpu_env).
 */
#include "cli/accelerate_launch.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/sys.h"

zinc_status zn_accelerate_open(const char *path, zn_accelerate_launch *out)
{
    zn_config_facts facts = {.default_micro_batch = 1};
    zinc_status status = zn_config_load_accelerate(path, NULL, &out->config);
    if (status == ZINC_OK) {
        zn_config_facts_from_accelerate(out->config, &facts);
        status = zn_config_resolve(out->config, &facts);
    }
    for (int i = 1; status == ZINC_E_CONFIG && out->config && i < zn_config_n_errors(out->config);
         i++)
        zn_log(ZN_LOG_ERROR, "config", "%s", zn_config_error(out->config, i));
    ZN_TRY(status);
    out->values = zn_config_get(out->config);
    return ZINC_OK;
}

void zn_accelerate_launch_fini(zn_accelerate_launch *launch)
{
    for (int i = 0; i < launch->n_exports; i++)
        zn_free(launch->exports[i]);
    zn_free(launch->exports);
    zn_config_destroy(launch->config);
    memset(launch, 0, sizeof *launch);
}

int64_t zn_accelerate_local_ranks(const zn_config_values *values)
{
    const int64_t n = values->accelerate.num_processes;
    if (n < 1)
        return values->accelerate.distributed_type == ZN_DISTRIBUTED_NO ? 1 : 0;
    return n / values->accelerate.num_machines;
}

/* ---- where ranks start ---- */

static bool is_launcher(const zn_config_values *v, const char *name)
{
    return v->accelerate.multinode_launcher && strcmp(v->accelerate.multinode_launcher, name) == 0;
}

/* Hosts that a hostfile names and a launcher of zinc launch reaches. */
static zinc_status fill_hosts(const zn_config_values *v, zn_launch_options *o)
{
    static const char *const names[] = {"pdsh", "openmpi", "mpich", "slurm"};
    if (!o->hostfile)
        o->hostfile = v->accelerate.hostfile;
    if (!o->include)
        o->include = v->accelerate.inclusion_filter;
    if (!o->exclude)
        o->exclude = v->accelerate.exclusion_filter;
    if (is_launcher(v, "mvapich"))
        ZN_FAIL(ZINC_E_UNSUPPORTED, "deepspeed_multinode_launcher mvapich: there are pdsh, "
                                    "openmpi, mpich, slurm, standard");
    for (int i = 0; i < 4; i++)
        if (!o->launcher && is_launcher(v, names[i]))
            o->launcher = names[i];
    if ((!o->include || !*o->include) && (!o->exclude || !*o->exclude)) {
        if (o->num_ranks <= 0)
            o->num_ranks = zn_accelerate_local_ranks(v);
        if (o->num_nodes <= 0 && v->accelerate.num_machines > 1)
            o->num_nodes = v->accelerate.num_machines;
    }
    return ZINC_OK;
}

/* The same command is started on every machine by a person, or by another tool. */
static void fill_by_hand(const zn_config_values *v, zn_launch_options *o)
{
    o->no_ssh = true;
    if (o->num_nodes <= 0)
        o->num_nodes = v->accelerate.num_machines;
    if (o->num_ranks <= 0)
        o->num_ranks = zn_accelerate_local_ranks(v);
    if (o->node_rank < 0)
        o->node_rank = v->accelerate.machine_rank;
}

zinc_status zn_accelerate_fill(const zn_accelerate_launch *launch, zn_launch_options *o)
{
    const zn_config_values *v = launch->values;
    const int64_t ranks = zn_accelerate_local_ranks(v);
    if (ranks == 0 && o->num_ranks <= 0)
        ZN_FAIL(ZINC_E_INVALID, "the accelerate config does not say how many ranks: give "
                                "--num_ranks N");
    if (o->num_ranks > 0 && ranks > 0 && o->num_ranks != ranks)
        ZN_FAIL(ZINC_E_INVALID,
                "--num_ranks %lld, but the accelerate config has num_processes %lld on "
                "num_machines %lld",
                (long long)o->num_ranks, (long long)v->accelerate.num_processes,
                (long long)v->accelerate.num_machines);
    if (!o->master_addr)
        o->master_addr = v->accelerate.main_process_ip;
    if (o->master_port <= 0)
        o->master_port = v->accelerate.main_process_port;
    o->bind_cores = o->bind_cores || v->accelerate.enable_cpu_affinity;
    if (o->hostfile || v->accelerate.hostfile)
        return fill_hosts(v, o);
    if (v->accelerate.num_machines > 1) {
        fill_by_hand(v, o);
        return ZINC_OK;
    }
    o->this_host = true;
    if (o->num_ranks <= 0)
        o->num_ranks = ranks;
    return ZINC_OK;
}

/* ---- what a Python program finds ---- */

static zinc_status set(zn_accelerate_launch *l, const char *name, const char *value)
{
    ZN_TRY(
        zn_realloc_array(&l->exports, (size_t)l->n_exports + 1, sizeof *l->exports, "environment"));
    ZN_TRY(zn_format(&l->exports[l->n_exports], "%s=%s", name, value));
    l->n_exports++;
    return ZINC_OK;
}

static zinc_status set_number(zn_accelerate_launch *l, const char *name, double x)
{
    char text[40];
    snprintf(text, sizeof text, x == (double)(int64_t)x ? "%.0f" : "%.17g", x);
    return set(l, name, text);
}

/* The folder that the program starts in is where its modules are looked for first. */
static zinc_status set_path(zn_accelerate_launch *l)
{
    char folder[4096];
    const char *before = zn_sys_env("PYTHONPATH");
    if (!getcwd(folder, sizeof folder))
        return ZINC_OK;
    if (!before || !*before)
        return set(l, "PYTHONPATH", folder);
    char *path = NULL;
    ZN_TRY(zn_format(&path, "%s:%s", folder, before));
    const zinc_status status = set(l, "PYTHONPATH", path);
    zn_free(path);
    return status;
}

static const char *precision_of(const zn_config_values *v)
{
    return v->bf16.enabled ? "bf16" : v->fp16.enabled ? "fp16" : "no";
}

static const char *device_name(zn_offload_device device)
{
    return device == ZN_OFFLOAD_CPU ? "cpu" : device == ZN_OFFLOAD_NVME ? "nvme" : "none";
}

/* A ds_config.json in the environment itself: accelerate reads the path of one, or one in base64.
 * No file has to be where another host can see it. */
static zinc_status set_deepspeed_text(zn_accelerate_launch *l, const char *text, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    zn_buf out = {0};
    zinc_status status;
    ZN_TRY_GOTO(zn_buf_puts(&out, ""));
    for (size_t i = 0; i < n; i += 3) {
        const unsigned char *p = (const unsigned char *)text + i;
        const size_t left = n - i;
        const unsigned bits =
            (unsigned)p[0] << 16 | (left > 1 ? (unsigned)p[1] << 8 : 0) | (left > 2 ? p[2] : 0);
        const char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63],
                              left > 1 ? digits[bits >> 6 & 63] : '=',
                              left > 2 ? digits[bits & 63] : '='};
        ZN_TRY_GOTO(zn_buf_append(&out, four, sizeof four));
    }
    ZN_TRY_GOTO(set(l, "ACCELERATE_DEEPSPEED_CONFIG_FILE", out.data));
fail:
    zn_buf_fini(&out);
    return status;
}

/* FSDP of accelerate never imports deepspeed, so the program is told DeepSpeed. */
static zinc_status translate_fsdp(zn_accelerate_launch *l)
{
    const zn_config_values *v = l->values;
    zn_buf text = {0};
    zinc_status status;
    zn_info("launch",
            "FSDP is translated to ZeRO stage %d: the program sees distributed_type DEEPSPEED, not "
            "FSDP, and state.deepspeed_plugin in place of fsdp_plugin",
            v->zero.stage);
    if (v->checkpoint_units)
        zn_warn("launch", "fsdp_activation_checkpointing: a Python program switches it on itself, "
                          "by model.gradient_checkpointing_enable()");
    ZN_TRY_GOTO(set(l, "ACCELERATE_USE_DEEPSPEED", "true"));
    ZN_TRY_GOTO(set(l, "ACCELERATE_DEEPSPEED_ZERO3_INIT", v->zero.stage == 3 ? "true" : "false"));
    ZN_TRY_GOTO(set(l, "ACCELERATE_CONFIG_DS_FIELDS", "deepspeed_config_file,zero3_init_flag"));
    ZN_TRY_GOTO(zn_config_append_deepspeed(l->config, false, &text));
    ZN_TRY_GOTO(set_deepspeed_text(l, text.data, text.n));
fail:
    zn_buf_fini(&text);
    return status;
}

/* What `accelerate launch` itself would set. */
static zinc_status set_deepspeed(zn_accelerate_launch *l)
{
    const zn_config_values *v = l->values;
    ZN_TRY(set(l, "ACCELERATE_USE_DEEPSPEED", "true"));
    ZN_TRY(set(l, "ACCELERATE_DEEPSPEED_ZERO3_INIT",
               v->accelerate.zero3_init_flag ? "true" : "false"));
    if (v->accelerate.moe_layer_cls_names)
        ZN_TRY(
            set(l, "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", v->accelerate.moe_layer_cls_names));
    if (v->accelerate.deepspeed_config_file)
        return set(l, "ACCELERATE_DEEPSPEED_CONFIG_FILE", zn_config_name(l->config));
    ZN_TRY(set_number(l, "ACCELERATE_DEEPSPEED_ZERO_STAGE", v->zero.stage));
    ZN_TRY(set(l, "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
               device_name(v->zero.offload_optimizer)));
    ZN_TRY(set(l, "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", device_name(v->zero.offload_param)));
    if (v->zero.offload_optimizer_nvme_path)
        ZN_TRY(set(l, "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
                   v->zero.offload_optimizer_nvme_path));
    if (v->zero.offload_param_nvme_path)
        ZN_TRY(set(l, "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
                   v->zero.offload_param_nvme_path));
    ZN_TRY(set(l, "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
               v->zero.gather_16bit_weights_on_model_save ? "true" : "false"));
    if (zn_config_is_explicit(l->config, "gradient_accumulation_steps"))
        ZN_TRY(set_number(l, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
                          (double)v->gradient_accumulation_steps));
    if (zn_config_is_explicit(l->config, "gradient_clipping"))
        ZN_TRY(set_number(l, "ACCELERATE_GRADIENT_CLIPPING", v->gradient_clipping));
    return ZINC_OK;
}

static zinc_status set_type(zn_accelerate_launch *l)
{
    const zn_distributed_type type = l->values->accelerate.distributed_type;
    if (type == ZN_DISTRIBUTED_FSDP)
        return translate_fsdp(l);
    if (type == ZN_DISTRIBUTED_DEEPSPEED)
        return set_deepspeed(l);
    return type == ZN_DISTRIBUTED_MULTI_CPU ? set(l, "ACCELERATE_USE_CPU", "true") : ZINC_OK;
}

zinc_status zn_accelerate_environment(zn_accelerate_launch *l)
{
    ZN_TRY(set_type(l));
    for (int i = 0; i < zn_config_n_notes(l->config); i++)
        zn_info("config", "note: %s", zn_config_note(l->config, i));
    if (!l->values->accelerate.deepspeed_config_file)
        ZN_TRY(set(l, "ACCELERATE_MIXED_PRECISION", precision_of(l->values)));
    return set_path(l);
}
