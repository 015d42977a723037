/* SPDX-License-Identifier: Apache-2.0 */
/* export.h — a checkpoint as a Hugging Face folder, a few megabytes of memory at a time.
 * Layer: ckpt. */
#ifndef ZN_CKPT_EXPORT_H
#define ZN_CKPT_EXPORT_H

#include "ckpt/safetensors.h"

typedef struct zn_export_params {
    const char *checkpoint;  /* Zinc's or DeepSpeed's, or the folder that holds its `latest` */
    const char *const *more; /* [n_more] the same of other nodes, where each has its own files */
    int n_more;
    const char *output;      /* made if missing */
    const char *model;       /* folder with config.json and tokenizer; NULL: the checkpoint's own */
    zn_dtype dtype;          /* F32, BF16 or F16 */
    int64_t max_shard_bytes; /* 0: one file */
} zn_export_params;

/* What was written. Zero-initialise; release with zn_export_report_fini. */
typedef struct zn_export_report {
    char **files; /* [n_files] names in the output folder */
    int n_files;
    int64_t n_params; /* elements, shared ones counted once */
    bool has_config;  /* whether a config.json was found and copied */
} zn_export_report;

/** Write the fp32 weights of a checkpoint, rounded to params->dtype. Not collective. Errors: E_IO,
 *  E_FORMAT, E_UNSUPPORTED, E_INVALID (dtype). */
ZINC_MUST_CHECK zinc_status zn_export(const zn_export_params *params, zn_export_report *report);
void zn_export_report_fini(zn_export_report *report);

#endif
