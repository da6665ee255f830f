/* SPDX-License-Identifier: Apache-2.0 */
/* A libFuzzer target: its bytes are operations on the block manager, checked by the model of support/blocks_model.h. */
#include "support/blocks_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    blocks_model_counts counts = {0};
    blocks_model_run(data, size, NULL, &counts);
    return 0;
}
