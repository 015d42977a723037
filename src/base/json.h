/* SPDX-License-Identifier: Apache-2.0 */
/* json.h — plain JSON through jansson: config.json, tokenizer.json, safetensors headers, .jsonl
 * rows, and everything Zinc writes. (ds_config.json has its own reader in config/, because it
 * needs comments and positions.) Layer: base. */
#ifndef ZN_BASE_JSON_H
#define ZN_BASE_JSON_H

#include <jansson.h>

#include "base/mem.h"

/** Parse a file; the message names file, line and column. Duplicate keys and trailing text are
 *  errors; U+0000 in strings is allowed. Release with json_decref. Errors: E_IO, E_FORMAT. */
ZINC_MUST_CHECK zinc_status zn_json_load(const char *path, json_t **out);

/** The same with every number a real, whatever its size: tokenizer_config.json of many models has
 *  "model_max_length": 1000000000000000019884624838656, int(1e30) of Python. */
ZINC_MUST_CHECK zinc_status zn_json_load_reals(const char *path, json_t **out);

/** Parse n bytes; `where` names them in the message ("FILE header", "FILE:12"). */
ZINC_MUST_CHECK zinc_status zn_json_parse(const char *text, size_t n, const char *where,
                                          json_t **out);

/** Append `value` to buf as compact JSON. */
ZINC_MUST_CHECK zinc_status zn_json_append(const json_t *value, zn_buf *buf);

/** Append a JSON string literal (with quotes) of the n bytes at text. Bytes that are not UTF-8
 *  become U+FFFD. */
ZINC_MUST_CHECK zinc_status zn_json_append_string(zn_buf *buf, const char *text, size_t n);

/** Append a JSON number: shortest form that reads back equal; null if it is not finite. */
ZINC_MUST_CHECK zinc_status zn_json_append_number(zn_buf *buf, double value);

/** Length of the UTF-8 sequence at p, n bytes left (at least 1); 0 if it is none (RFC 3629). */
size_t zn_utf8_length(const unsigned char *p, size_t n);

#endif
