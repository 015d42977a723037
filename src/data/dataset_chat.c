/* SPDX-License-Identifier: Apache-2.0 */
/* dataset_chat.c — a {"messages": [{"role": …, "content": …}, …]} row to ids and labels. */
#include "data/dataset_internal.h"

static zinc_status read_message(const json_t *item, int number, zn_message *out)
{
    const json_t *role = json_object_get(item, "role");
    const json_t *content = json_object_get(item, "content");
    if (!json_is_object(item) || !json_is_string(role))
        ZN_FAIL(ZINC_E_FORMAT, "message %d must be {\"role\": …, \"content\": …}", number);
    if (json_object_get(item, "tool_calls"))
        ZN_FAIL(ZINC_E_UNSUPPORTED,
                "message %d has \"tool_calls\", which are not rendered; write such rows as "
                "\"input_ids\" and \"labels\"",
                number);
    if (!json_is_string(content))
        ZN_FAIL(ZINC_E_FORMAT, "\"content\" of message %d must be a string", number);
    *out = (zn_message){.role = json_string_value(role),
                        .content = json_string_value(content),
                        .n_content = json_string_length(content)};
    return ZINC_OK;
}

zinc_status zn_messages_encode(const zn_dataset_params *params, const zn_document *document,
                               zn_ids *ids, zn_ids *labels)
{
    zinc_status status;
    zn_message *messages = NULL;
    const size_t n = json_array_size(document->messages);
    if (!json_is_array(document->messages) || n > INT32_MAX)
        ZN_FAIL(ZINC_E_FORMAT, "%s: \"messages\" must be an array", document->where);
    if (!params->chat)
        ZN_FAIL(ZINC_E_CONFIG, "%s has \"messages\", which need a tokenizer with a chat template",
                document->where);
    ZN_TRY_GOTO(zn_alloc_array(&messages, n, sizeof *messages, "messages"));
    for (size_t i = 0; i < n; i++)
        ZN_TRY_GOTO(read_message(json_array_get(document->messages, i), (int)i + 1, &messages[i]));
    ZN_TRY_GOTO(
        zn_chat_encode(params->chat, params->tokenizer, messages, (int)n, false, ids, labels));
fail:
    zn_free(messages);
    return status;
}
