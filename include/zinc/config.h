/* SPDX-License-Identifier: Apache-2.0 */
/* config.h — a DeepSpeed ds_config.json.
 *
 *   load or parse -> override (arguments fill absent and "auto" values) -> resolve (every "auto"
 *   and the batch sizes become numbers) -> get, or zinc_engine_create
 *
 * Every key is checked against one table (docs/config.md): type, bounds, spelling. All errors of a
 * file are collected. Nothing here is collective; a configuration is used by one thread at a time,
 * and read by any number once it is resolved. */
#ifndef ZINC_CONFIG_H
#define ZINC_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "zinc/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zinc_config zinc_config;

/** Read a file; path NULL: an empty configuration, all defaults. *out is owned, release it with
 *  zinc_config_destroy. It is set on E_CONFIG too, so that all errors can be listed; the message is
 *  the first, with file, line, column and key. Errors: E_CONFIG, E_IO, E_NOMEM. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_config_load(const char *path, zinc_config **out);

/** The same from n bytes of text; `name` stands for the file in messages. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_config_parse(const char *text, size_t n, const char *name,
                                                       zinc_config **out);

/** NULL is fine. */
ZINC_API void zinc_config_destroy(zinc_config *config);

/** Apply n arguments by their TrainingArguments names ("learning_rate", "bf16", …), values as text,
 *  "true" and "false" for flags. They fill absent and "auto" values; one that contradicts a value
 *  of the file is an error that names both. Names that are not configuration are ignored.
 *  names, values  [n], borrowed during the call
 *  Errors: E_CONFIG. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_config_override(zinc_config *config,
                                                          const char *const *names,
                                                          const char *const *values, int n);

/* What "auto" and the batch sizes are worked out from; 0: not known. Start from
 * ZINC_CONFIG_FACTS_INIT. */
typedef struct zinc_config_facts {
    size_t struct_size;
    int64_t world_size;          /* ranks of the job, >= 1 */
    int64_t hidden_size;         /* of the model, for three stage-3 sizes */
    int64_t max_steps;           /* optimizer steps of the run */
    int64_t n_samples;           /* training samples; with n_epochs another way to max_steps */
    double n_epochs;             /* 0: not known */
    int64_t default_micro_batch; /* where nothing gives one; 0: that is an error */
    int64_t ranks_per_node;      /* for HYBRID_SHARD; 0: all ranks are on one node */
} zinc_config_facts;

#define ZINC_CONFIG_FACTS_INIT                                                                     \
    {                                                                                              \
        sizeof(zinc_config_facts), 1, 0, 0, 0, 0, 0, 0                                             \
    }

/** Fill every "auto" and the batch sizes, and check the rules that span keys. May be called again
 *  with better facts. Errors: E_CONFIG (all are collected); E_INVALID for impossible facts. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_config_resolve(zinc_config *config,
                                                         const zinc_config_facts *facts);

/** Value of one key of the resolved configuration as JSON: "zero_optimization.stage" -> 2, a block
 *  -> its object, "" -> everything. *out is owned, free it with zinc_free.
 *  Errors: E_INVALID if there is no such key, or the configuration is not resolved. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_config_get(const zinc_config *config, const char *key,
                                                     char **out);

/** Where a value came from: "ds.json:12", "default", "argument --x", "auto: why". Borrowed until
 *  the next resolve; NULL for an unknown key and before the first resolve. */
ZINC_API const char *zinc_config_origin(const zinc_config *config, const char *key);

/** A table for people: key, value, origin. *out is owned, free it with zinc_free. */
ZINC_API ZINC_MUST_CHECK zinc_status zinc_config_table(const zinc_config *config, char **out);

/** Collected errors and notes ("key x has no effect here, because …"), one line each. Borrowed;
 *  NULL if i is out of range. */
ZINC_API int zinc_config_n_errors(const zinc_config *config);
ZINC_API const char *zinc_config_error(const zinc_config *config, int i);
ZINC_API int zinc_config_n_notes(const zinc_config *config);
ZINC_API const char *zinc_config_note(const zinc_config *config, int i);

#ifdef __cplusplus
}
#endif

#endif
