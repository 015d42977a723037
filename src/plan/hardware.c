/* SPDX-License-Identifier: Apache-2.0 */
/* hardware.c — what vendors publish about devices; docs/memory.md names the sources.
 *
 * FLOP/s are dense matrix peaks with fp32 accumulation. Memory is the nominal size in 10^9 bytes:
 * what a driver keeps for itself (about half a GB) is inside the difference to GiB. A link is 80%
 * of its PCIe generation's x16 rate, which is what copies reach; NVLink is one direction. Node
 * figures (host memory, network, disk) are of the vendor's own servers, one network card a device,
 * or of a common desktop, and meant to be replaced. */
#include <string.h>

#include "base/sys.h"
#include "plan/plan.h"

#define PCIE4 25e9 /* of 31.5 */
#define PCIE5 50e9 /* of 63 */
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

/* A core does two fused multiply-adds of a vector a cycle; 2.5 GHz is a common all-core clock. */
static double core_flops(void)
{
    const double lanes = zn_sys_isa() >= ZN_ISA_AVX512 ? 16 : zn_sys_isa() == ZN_ISA_AVX2 ? 8 : 1;
    return 2.5e9 * 2 * 2 * lanes;
}

/* Ranks on this machine: its cores and memory, shared by all of them. */
static void this_machine(zn_plan_hardware *hw)
{
    const int ranks = hw->gpus > 0 ? hw->gpus : 1;
    const double memory = (double)zn_sys_memory_bytes();
    const double memory_rate = 10e9 * zn_sys_cores(); /* a few channels, or one core's share */
    hw->device_bytes = memory / ranks;
    hw->host_bytes = memory;
    hw->flops = hw->fp32_flops = core_flops() * zn_sys_cores() / ranks;
    hw->device_rate = hw->link = hw->peer = memory_rate / ranks;
    hw->host_rate = memory_rate;
}

zinc_status zn_plan_preset(const char *name, zn_plan_hardware *out)
{
    for (int i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) != 0)
            continue;
        zn_plan_hardware hw = presets[i];
        hw.gpus = out->gpus;
        hw.nodes = out->nodes;
        if (strcmp(name, "cpu") == 0)
            this_machine(&hw);
        *out = hw;
        return ZINC_OK;
    }
    ZN_FAIL(ZINC_E_CONFIG, "--preset %s: there is no such preset; %s are there", name, NAMES);
}
