/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "model/model_internal.h"

const zn_arch *const zn_archs[] = {
    &zn_arch_gpt2,     &zn_arch_llama,  &zn_arch_mistral, &zn_arch_qwen2, &zn_arch_qwen3,
    &zn_arch_gpt_neox, &zn_arch_gemma2, &zn_arch_phi3,    &zn_arch_olmo2,
};
const int zn_n_archs = (int)(sizeof zn_archs / sizeof zn_archs[0]);

const zn_arch *zn_arch_find(const char *model_type)
{
    for (int i = 0; i < zn_n_archs; i++)
        if (strcmp(zn_archs[i]->model_type, model_type) == 0)
            return zn_archs[i];
    return NULL;
}
