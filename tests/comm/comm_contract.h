/* SPDX-License-Identifier: Apache-2.0 */
/* comm_contract.h — what every comm backend must do, as cases that run on every rank at once.
 *
 * A case is called by all ranks with a freshly opened comm and returns a status instead of
 * asserting, because ranks may be threads and only the main thread may assert. CHECK decides a
 * failure; the runner shows the message of the first rank that failed. */
#ifndef ZN_TEST_COMM_CONTRACT_H
#define ZN_TEST_COMM_CONTRACT_H

#include "base/status.h"
#include "comm/comm.h"

typedef zinc_status (*contract_fn)(zn_comm *comm);

typedef struct contract_case {
    const char *name;
    contract_fn run;
    int min_ranks;
} contract_case;

extern const contract_case contract_cases[];
extern const int n_contract_cases;

#define CONTRACT_TIMEOUT_MS 30000

/** Open a device and a comm with `params` (dev is set here), run the case, close both. */
zinc_status contract_run(const contract_case *c, const zn_comm_params *params);

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond))                                                                               \
            ZN_FAIL(ZINC_E_INTERNAL, "rank %d: %s:%d: not true: %s", zn_comm_rank(comm), __FILE__, \
                    __LINE__, #cond);                                                              \
    } while (0)

/* The call fails with this status, and the message contains `part`. */
#define CHECK_FAILS(call, wanted, part)                                                            \
    do {                                                                                           \
        const zinc_status got_ = (call);                                                           \
        if (got_ != (wanted) || !strstr(zinc_last_error(), (part))) {                              \
            zn_error_prefix("rank %d: %s:%d: got %s, want %s with \"%s\": ", zn_comm_rank(comm),   \
                            __FILE__, __LINE__, zinc_status_name(got_), #wanted, (part));          \
            return ZINC_E_INTERNAL;                                                                \
        }                                                                                          \
    } while (0)

#endif
