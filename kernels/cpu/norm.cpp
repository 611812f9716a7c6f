// tree_sum and clip_factors: the global norm and the factor of each parameter; see engine/ops/tree.py and clipping.py.
#include <cmath>
#include <limits>

#include "parallel.h"

// `sums` has room for half of the smallest power of two that is not below n, and for one; its first element is the sum.
extern "C" void zerobench_tree_sum(const double* values, int64_t n, double* sums, int) {
  const Ieee ieee;
  int64_t half = 1;
  while (2 * half < n) half *= 2;
  for (int64_t i = 0; i < half; ++i) {
    const double first = i < n ? values[i] : 0.0;
    sums[i] = i + half < n ? first + values[i + half] : first;
  }
  for (half /= 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
}

extern "C" void zerobench_clip_factors(const double* total, const bool* overflow, const bool* active, int64_t n,
                                       double clip, double divisor, float* factors, int) {
  const Ieee ieee;
  const double limited = clip / (std::sqrt(*total) / divisor + 1e-6);
  const double coefficient = clip > 0.0 && limited < 1.0 ? limited : 1.0;
  const float factor = static_cast<float>(coefficient / divisor);
  for (int64_t i = 0; i < n; ++i) {
    factors[i] = active[i] && !*overflow ? factor : std::numeric_limits<float>::quiet_NaN();
  }
}
