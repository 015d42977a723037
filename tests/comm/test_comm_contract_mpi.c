/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of the mpi backend: run under mpirun with any number of ranks, or alone. */
#include "zn_test.h"

#include <stdio.h>

#include "comm_contract.h"

/* Runs the cases whose names contain argv[1]. Every rank runs the same ones; cmocka would print one
 * report a rank, so only a failure is printed, by the rank that saw it. */
static zinc_status run_cases(const zn_comm_params *params, const char *filter)
{
    for (int i = 0; i < n_contract_cases; i++) {
        const contract_case *const c = &contract_cases[i];
        if (params->n_ranks < c->min_ranks || (filter && !strstr(c->name, filter)))
            continue;
        const zinc_status status = contract_run(c, params);
        if (status != ZINC_OK) {
            zn_error_prefix("%s: ", c->name);
            return status;
        }
    }
    return ZINC_OK;
}

int main(int argc, char **argv)
{
    const zn_device_params device = {.n_threads = 1};
    zn_comm_params params = {.backend = "mpi", .timeout_ms = CONTRACT_TIMEOUT_MS};
    zn_comm *base = NULL; /* held open, so that the cases may open and close theirs */
    zn_device *dev = NULL;
    zinc_status status = zn_device_open("cpu", &device, &dev);
    params.dev = dev;
    if (status == ZINC_OK)
        status = zn_comm_open(&params, &base);
    if (status == ZINC_E_UNSUPPORTED) {
        printf("skipped: %s\n", zinc_last_error());
        zn_device_close(dev);
        return 77;
    }
    if (status == ZINC_OK) {
        params.rank = zn_comm_rank(base);
        params.n_ranks = zn_comm_n_ranks(base);
        status = run_cases(&params, argc > 1 ? argv[1] : NULL);
    }
    if (status != ZINC_OK)
        fprintf(stderr, "%s: %s\n", zinc_status_name(status), zinc_last_error());
    if (status == ZINC_OK)
        zn_comm_close(base);
    zn_device_close(dev);
    return status == ZINC_OK ? 0 : 1;
}
