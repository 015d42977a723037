/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm_internal.h"

#include <string.h>

static const zn_comm_ops *const backends[] = {
    &zn_comm_self_ops,
    &zn_comm_thread_ops,
#ifdef ZINC_HAVE_MPI
    &zn_comm_mpi_ops,
#endif
    &zn_comm_host_ops,
};

zinc_status zn_comm_find_backend(const char *name, const zn_comm_ops **out)
{
    char names[128] = "";
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        if (name && strcmp(name, backends[i]->name) == 0) {
            *out = backends[i];
            return ZINC_OK;
        }
        strncat(names, i ? ", " : "", sizeof names - strlen(names) - 1);
        strncat(names, backends[i]->name, sizeof names - strlen(names) - 1);
    }
    ZN_FAIL(ZINC_E_UNSUPPORTED, "no comm backend named \"%s\" in this build; it has: %s",
            name ? name : "(none)", names);
}
