/* SPDX-License-Identifier: Apache-2.0 */
/* Prints "NAME BYTES" of every public struct, for tests/abi/abi.sh. */
#include <stdio.h>

#include "zinc/checkpoint.h"
#include "zinc/comm.h"
#include "zinc/config.h"
#include "zinc/engine.h"
#include "zinc/log.h"
#include "zinc/tokenizer.h"

#define SIZE(type) printf("%s %zu\n", #type, sizeof(type))

int main(void)
{
    SIZE(zinc_checkpoint_info);
    SIZE(zinc_comm_host);
    SIZE(zinc_comm_params);
    SIZE(zinc_comm_stats);
    SIZE(zinc_config_facts);
    SIZE(zinc_engine_params);
    SIZE(zinc_group);
    SIZE(zinc_memory);
    SIZE(zinc_param);
    SIZE(zinc_param_memory);
    SIZE(zinc_progress);
    SIZE(zinc_save_params);
    SIZE(zinc_stats);
    SIZE(zinc_step_result);
    SIZE(zinc_tensor);
    return 0;
}
