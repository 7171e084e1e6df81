#include "plugins/scaled_clamp/kernel.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

void clamp(const float* x, int64_t rows, int64_t channels, const float* factor, int64_t step, float low, float high,
           float* y) {
    for (int64_t row = 0; row < rows; ++row, x += channels, y += channels) {
        for (int64_t channel = 0; channel < channels; ++channel) {
            const float scaled = x[channel] * factor[channel * step];
            const float raised = scaled < low ? low : scaled;
            y[channel] = raised > high ? high : raised;
        }
    }
}

}  // namespace

const ScaledClampKernel scaled_clamp_kernel = {clamp};

}  // namespace intaglio::INTAGLIO_ISA
