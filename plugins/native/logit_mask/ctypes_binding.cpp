// What plugins/native/logit_mask/__init__.py calls.

#include <cstdint>

#include "plugins/native/logit_mask/kernel.h"

// logits, masked: [n] float32; octets: [(n + 7) / 8]
extern "C" __attribute__((visibility("default"))) void intaglio_mask_logits(int isa, const float* logits,
                                                                            const uint8_t* octets, int64_t n,
                                                                            float* masked) {
    intaglio::logit_mask_kernel(intaglio::Isa(isa)).apply(logits, octets, n, masked);
}
