/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device.h"

#include <string.h>

#include "base/mem.h"
#include "base/sys.h"
#include "device/device_internal.h"

static const zn_device_ops *const devices[] = {
    &zn_device_cpu_ops,
};

#define N_DEVICES (sizeof devices / sizeof devices[0])

static zinc_status find_device(const char *name, const zn_device_ops **out)
{
    char names[128] = "";
    for (size_t i = 0; i < N_DEVICES; i++) {
        if (name && strcmp(name, devices[i]->name) == 0) {
            *out = devices[i];
            return ZINC_OK;
        }
        strncat(names, i ? ", " : "", sizeof names - strlen(names) - 1);
        strncat(names, devices[i]->name, sizeof names - strlen(names) - 1);
    }
    ZN_FAIL(ZINC_E_UNSUPPORTED, "no device named \"%s\" in this build; it has: %s",
            name ? name : "(none)", names);
}

zinc_status zn_device_open(const char *name, const zn_device_params *params, zn_device **out)
{
    zinc_status status;
    zn_device *dev = NULL;
    const zn_device_ops *ops = NULL;
    ZN_TRY(find_device(name, &ops));
    if (params->n_threads < 1)
        ZN_FAIL(ZINC_E_INVALID, "a device needs at least 1 compute thread, not %d",
                params->n_threads);
    if (params->device_limit_bytes < 0 || params->host_limit_bytes < 0)
        ZN_FAIL(ZINC_E_INVALID, "a memory limit cannot be negative (device %lld, host %lld bytes)",
                (long long)params->device_limit_bytes, (long long)params->host_limit_bytes);
    ZN_TRY(zn_alloc(&dev, sizeof *dev, "device"));
    dev->ops = ops;
    dev->params = *params;
    dev->guarded = zn_guard_wanted(params);
    /* One core beyond the compute threads and the thread being waited for. */
    dev->spin = zn_sys_cores() > params->n_threads + 1;
    if (pthread_mutex_init(&dev->lock, NULL) != 0)
        ZN_FAIL_GOTO(ZINC_E_DEVICE, "the system gave no mutex for device \"%s\"", name);
    dev->has_lock = true;
    ZN_TRY_GOTO(zn_stream_create_compute(dev, !params->late_streams, &dev->compute));
    *out = dev;
    return ZINC_OK;
fail:
    zn_device_close(dev);
    return status;
}

void zn_device_close(zn_device *dev)
{
    if (!dev)
        return;
    zn_stream_destroy(dev->compute);
    zn_stream_destroy(dev->link[0]);
    zn_stream_destroy(dev->link[1]);
    if (dev->has_lock) {
        zn_account_fini(dev);
        pthread_mutex_destroy(&dev->lock);
    }
    zn_free(dev);
}

const char *zn_device_name(const zn_device *dev)
{
    return dev->ops->name;
}

int zn_device_rank(const zn_device *dev)
{
    return dev->params.rank;
}

int zn_device_n_threads(const zn_device *dev)
{
    return dev->params.n_threads;
}

bool zn_device_host_readable(const zn_device *dev)
{
    return !dev->guarded;
}

zn_stream *zn_device_compute(zn_device *dev)
{
    return dev->compute;
}

zn_stream *zn_device_link(zn_device *dev, bool to_device)
{
    zn_stream **const link = &dev->link[to_device ? 0 : 1];
    if (!*link)
        zn_ignore(zn_stream_create(dev, to_device ? "copies to the device" : "copies to the host",
                                   link)); /* NULL tells */
    return *link;
}
