// adam_step: Adam and AdamW over the runs of a flat shard in one pass; engine/ops/update.py states the formula.
#include <cmath>

#include "convert.h"
#include "parallel.h"

namespace {

struct Adam {
  float factor, decay, l2, weight1, beta2, weight2, root2, eps, step_size;
};

void update(const Adam a, int64_t n, const float* __restrict gradient, float* __restrict master,
            float* __restrict exp_avg, float* __restrict exp_avg_sq) {
  const bool near = a.weight1 < 0.5f;
  const float weight = near ? a.weight1 : a.weight1 - 1.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float p = master[i] * a.decay;
    const float scaled = gradient[i] * a.factor;
    const float g = a.l2 != 0.0f ? std::fmaf(a.l2, p, scaled) : scaled;
    const float m = std::fmaf(weight, g - exp_avg[i], near ? exp_avg[i] : g);
    const float v = std::fmaf(a.weight2 * g, g, exp_avg_sq[i] * a.beta2);
    const float denominator = std::sqrt(v) / a.root2 + a.eps;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    master[i] = p + a.step_size * m / denominator;
  }
}

// If the factor is NaN, only the copy is written.
void step(const Adam adam, int64_t first, int64_t n, const void* gradient, int gradient_dtype, float* master,
          float* exp_avg, float* exp_avg_sq, void* copy, int copy_dtype, int threads) {
  parallel(n, 1, kBlock, threads, [=](int64_t start, int64_t stop) {
    alignas(64) float scratch[kBlock];
    for (int64_t i = first + start; i < first + stop; i += kBlock) {
      const int64_t count = std::min(kBlock, first + stop - i);
      const float* g = load(gradient, gradient_dtype, i, count, scratch);
      if (!std::isnan(adam.factor)) update(adam, count, g, master + i, exp_avg + i, exp_avg_sq + i);
      if (copy != nullptr) store(master + i, copy, copy_dtype, i, count);
    }
  });
}

}  // namespace

// A run has three bounds, its start, stop and factor, and eight scalars.
extern "C" void zerobench_adam_step(float* master, const void* gradient, int gradient_dtype, float* exp_avg,
                                    float* exp_avg_sq, void* copy, int copy_dtype, const float* factors, int64_t runs,
                                    const int64_t* bounds, const float* scalars, int threads) {
  for (; runs > 0; --runs, bounds += 3, scalars += 8) {
    const float* s = scalars;
    const Adam adam{factors[bounds[2]], s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]};
    step(adam, bounds[0], bounds[1] - bounds[0], gradient, gradient_dtype, master, exp_avg, exp_avg_sq, copy,
         copy_dtype, threads);
  }
}
