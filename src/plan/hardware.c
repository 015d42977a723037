/* SPDX-License-Identifier: Apache-2.0 */
/* hardware.c — what vendors publish about devices; docs/memory.md names the sources.
 *
 * FLOP/s are dense matrix peaks with fp32 accumulation (in fp32 TF32's, where there is such).
 * Memory is the nominal size in 10^9 bytes: what a driver keeps for itself (about half a GB) is
 * inside the difference to GiB. NVLink is one direction. Node figures (host memory, network, disk)
 * are of the vendor's own servers, one network card a device, or of a common desktop, and meant to
 * be replaced. */
#include <string.h>

#include "plan/plan.h"

#define PCIE4 31.5e9
#define PCIE5 63e9
#define REACHED 0.8 /* of a published rate, by copies and collectives */
#define SERVER .host_bytes = 1e12, .host_rate = 200e9, .disk_rate = 6e9
/* A desktop: 4 channels or fewer, one fast disk, 10 Gbit/s. */
#define DESKTOP .host_bytes = 128e9, .network = 1.25e9, .host_rate = 60e9, .disk_rate = 3e9

static const zn_plan_hardware presets[] = {
    {.name = "rtx3090",
     .device_bytes = 24e9,
     .flops = 71e12,
     .fp32_flops = 35.6e12,
     .device_rate = 936e9,
     .link = PCIE4,
     .peer = PCIE4,
     DESKTOP},
    {.name = "rtx4090",
     .device_bytes = 24e9,
     .flops = 165.2e12,
     .fp32_flops = 82.6e12,
     .device_rate = 1008e9,
     .link = PCIE4,
     .peer = PCIE4,
     DESKTOP},
    {.name = "a100-40",
     .device_bytes = 40e9,
     .flops = 312e12,
     .fp32_flops = 156e12,
     .device_rate = 1555e9,
     .link = PCIE4,
     .peer = 300e9,
     .network = 200e9,
     SERVER},
    {.name = "a100-80",
     .device_bytes = 80e9,
     .flops = 312e12,
     .fp32_flops = 156e12,
     .device_rate = 2039e9,
     .link = PCIE4,
     .peer = 300e9,
     .network = 200e9,
     SERVER},
    {.name = "h100",
     .device_bytes = 80e9,
     .flops = 989e12,
     .fp32_flops = 494e12,
     .device_rate = 3350e9,
     .link = PCIE5,
     .peer = 450e9,
     .network = 400e9,
     SERVER},
    {.name = "h200",
     .device_bytes = 141e9,
     .flops = 989e12,
     .fp32_flops = 494e12,
     .device_rate = 4800e9,
     .link = PCIE5,
     .peer = 450e9,
     .network = 400e9,
     SERVER},
    {.name = "cpu", .network = 1.25e9, .disk_rate = 1e9},
};
#define N_PRESETS ((int)(sizeof presets / sizeof presets[0]))

#define NAMES "rtx3090, rtx4090, a100-40, a100-80, h100, h200, cpu"

const char *zn_plan_preset_names(void)
{
    return NAMES;
}

static void as_reached(zn_plan_hardware *hw)
{
    double *const rates[] = {&hw->device_rate, &hw->link,      &hw->peer,
                             &hw->network,     &hw->host_rate, &hw->disk_rate};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
        *rates[i] *= REACHED;
    hw->compute_share = ZN_PLAN_COMPUTE_SHARE;
}

zinc_status zn_plan_preset(const char *name, int n_threads, zn_plan_hardware *out)
{
    for (int i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) != 0)
            continue;
        zn_plan_hardware hw = presets[i];
        hw.gpus = out->gpus;
        hw.nodes = out->nodes;
        as_reached(&hw);
        if (strcmp(name, "cpu") == 0)
            ZN_TRY(zn_plan_this_machine(n_threads, &hw));
        *out = hw;
        return ZINC_OK;
    }
    ZN_FAIL(ZINC_E_CONFIG, "--preset %s: there is no such preset; %s are there", name, NAMES);
}
