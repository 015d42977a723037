/* SPDX-License-Identifier: Apache-2.0 */
/* hub.h — model names as people write them: a folder, or org/name of the Hugging Face hub, which is
 * looked up in the local cache. Nothing is downloaded. Layer: engine. */
#ifndef ZN_ENGINE_HUB_H
#define ZN_ENGINE_HUB_H

#include "base/mem.h"

/** The path that a --model argument means: itself if it exists or cannot be a hub name, else the
 *  snapshot of the cache that refs/main points to. The cache is $HF_HUB_CACHE, $HF_HOME/hub or
 *  ~/.cache/huggingface/hub. E_IO: neither is there; the message has the line that downloads it.
 *  Free *out with zn_free. */
ZINC_MUST_CHECK zinc_status zn_hub_model_path(const char *model, char **out);

#endif
