// sgd_step: SGD, with momentum if there is a buffer, over the runs of a flat shard in one pass; see engine/ops/update.py.
#include <cmath>

#include "convert.h"
#include "parallel.h"

namespace {

struct Sgd {
  float factor, l2, momentum, step_size;
};

void update(const Sgd s, int64_t n, const float* __restrict gradient, float* __restrict master,
            float* __restrict momentum_buffer) {
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = gradient[i] * s.factor;
    float g = s.l2 != 0.0f ? std::fmaf(s.l2, master[i], scaled) : scaled;
    if (momentum_buffer != nullptr) {
      g = momentum_buffer[i] * s.momentum + g;
      momentum_buffer[i] = g;
    }
    master[i] = std::fmaf(s.step_size, g, master[i]);
  }
}

// If the factor is NaN, only the copy is written.
void step(const Sgd sgd, int64_t first, int64_t n, const void* gradient, int gradient_dtype, float* master,
          float* momentum_buffer, void* copy, int copy_dtype, int threads) {
  parallel(n, 1, kBlock, threads, [=](int64_t start, int64_t stop) {
    alignas(64) float scratch[kBlock];
    for (int64_t i = first + start; i < first + stop; i += kBlock) {
      const int64_t count = std::min(kBlock, first + stop - i);
      const float* g = load(gradient, gradient_dtype, i, count, scratch);
      float* buffer = momentum_buffer == nullptr ? nullptr : momentum_buffer + i;
      if (!std::isnan(sgd.factor)) update(sgd, count, g, master + i, buffer);
      if (copy != nullptr) store(master + i, copy, copy_dtype, i, count);
    }
  });
}

}  // namespace

// A run has three bounds, its start, stop and factor, and three scalars; without momentum it does not use the buffer.
extern "C" void zerobench_sgd_step(float* master, const void* gradient, int gradient_dtype, float* momentum_buffer,
                                   void* copy, int copy_dtype, const float* factors, int64_t runs,
                                   const int64_t* bounds, const float* scalars, int threads) {
  for (; runs > 0; --runs, bounds += 3, scalars += 3) {
    const Sgd sgd{factors[bounds[2]], scalars[0], scalars[1], scalars[2]};
    step(sgd, bounds[0], bounds[1] - bounds[0], gradient, gradient_dtype, master,
         sgd.momentum != 0.0f ? momentum_buffer : nullptr, copy, copy_dtype, threads);
  }
}
