/* SPDX-License-Identifier: Apache-2.0 */
/* 01_config — read a ds_config.json, resolve it, and print what it means.
 *
 *   01_config [FILE [RANKS]]
 *
 * Without a file it reads the one below. Every "auto" and the batch sizes become numbers once the
 * number of ranks and the model's hidden size are known, and each value says where it came from.
 * Next: 02_two_ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zinc/config.h"
#include "zinc/version.h"

static const char built_in[] = "{\n"
                               "  \"train_batch_size\": 64,\n"
                               "  \"gradient_accumulation_steps\": \"auto\",\n"
                               "  \"train_micro_batch_size_per_gpu\": 4,\n"
                               "  \"bf16\": {\"enabled\": true},\n"
                               "  \"zero_optimization\": {\n"
                               "    \"stage\": 3,\n"
                               "    \"reduce_bucket_size\": \"auto\"\n"
                               "  }\n"
                               "}\n";

/* All errors of the file, not only the first. */
static void explain(const zinc_config *config)
{
    if (zinc_config_n_errors(config) == 0)
        fprintf(stderr, "%s\n", zinc_last_error());
    for (int i = 0; i < zinc_config_n_errors(config); i++)
        fprintf(stderr, "%s\n", zinc_config_error(config, i));
}

static zinc_status print_value(const zinc_config *config, const char *key)
{
    char *text = NULL;
    const zinc_status status = zinc_config_get(config, key, &text);
    if (status == ZINC_OK)
        printf("%-44s %-12s (%s)\n", key, text, zinc_config_origin(config, key));
    zinc_free(text);
    return status;
}

static zinc_status print_config(const zinc_config *config)
{
    static const char *const keys[] = {"gradient_accumulation_steps", "zero_optimization.stage",
                                       "zero_optimization.reduce_bucket_size"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const zinc_status status = print_value(config, keys[i]);
        if (status != ZINC_OK)
            return status;
    }
    for (int i = 0; i < zinc_config_n_notes(config); i++)
        printf("note: %s\n", zinc_config_note(config, i));
    return ZINC_OK;
}

int main(int argc, char **argv)
{
    zinc_config *config = NULL;
    zinc_config_facts facts = ZINC_CONFIG_FACTS_INIT;
    facts.world_size = argc > 2 ? atoi(argv[2]) : 4;
    facts.hidden_size = 512;

    printf("libzinc %s\n", zinc_version());
    zinc_status status = argc > 1
                             ? zinc_config_load(argv[1], &config)
                             : zinc_config_parse(built_in, strlen(built_in), "built-in", &config);
    if (status == ZINC_OK)
        status = zinc_config_resolve(config, &facts);
    if (status == ZINC_OK)
        status = print_config(config);
    if (status != ZINC_OK)
        explain(config);
    zinc_config_destroy(config);
    return status == ZINC_OK ? 0 : 1;
}
