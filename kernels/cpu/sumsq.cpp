// chunk_sumsq: fp64 sums of squares by halving, chunk by chunk; see engine/ops/sumsq.py.
#include "convert.h"
#include "parallel.h"

namespace {

inline double square(float value) { return static_cast<double>(value) * static_cast<double>(value); }

void add(int64_t width, double* __restrict low, const double* __restrict high) {
  for (int64_t i = 0; i < width; ++i) low[i] += high[i];
}

// For chunks of up to 64K elements the sums are on the stack: a kernel cannot report a failed allocation.
constexpr int64_t kFew = 1 << 15;

// `sums` has room for half a chunk, because loading does the first halving.
double halved(const void* values, int dtype, int64_t start, int64_t chunk, double* sums) {
  alignas(64) float low[kBlock], high[kBlock];
  if (chunk == 1) return square(*load(values, dtype, start, 1, low));
  const int64_t half = chunk / 2;
  for (int64_t i = 0; i < half; i += kBlock) {
    const int64_t count = std::min(kBlock, half - i);
    ask<0>(values, dtype, start + chunk + i, count);
    ask<0>(values, dtype, start + chunk + half + i, count);
    const float* a = load(values, dtype, start + i, count, low);
    const float* b = load(values, dtype, start + half + i, count, high);
    for (int64_t k = 0; k < count; ++k) sums[i + k] = square(a[k]) + square(b[k]);
  }
  for (int64_t width = half / 2; width > 0; width /= 2) add(width, sums, sums + width);
  return sums[0];
}

}  // namespace

extern "C" void zerobench_chunk_sumsq(const void* values, int dtype, int64_t chunks, int64_t chunk, double* out,
                                      int threads) {
  parallel(chunks, chunk, 1, threads, [=](int64_t start, int64_t stop) {
    alignas(64) double few[kFew];
    std::vector<double> many(static_cast<size_t>(chunk / 2 > kFew ? chunk / 2 : 0));
    double* sums = many.empty() ? few : many.data();
    for (int64_t i = start; i < stop; ++i) out[i] = halved(values, dtype, i * chunk, chunk, sums);
  });
}
