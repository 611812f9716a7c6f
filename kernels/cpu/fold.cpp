// fold: the ordered fp32 sum of several rows, each read once; see engine/ops/fold.py.
#include "convert.h"
#include "parallel.h"

namespace {

constexpr int64_t kStreamed = 1 << 20;

void add(int64_t n, const float* __restrict row, float* __restrict total) {
  for (int64_t i = 0; i < n; ++i) total[i] += row[i];
}

}  // namespace

// Row r starts `stride` elements after row r - 1. With `first` the accumulator's old value is not read.
extern "C" void zerobench_fold(void* accumulator, int dtype, const void* rows, int row_dtype, int64_t world, int64_t n,
                               int64_t stride, int first, int threads) {
  // Only an accumulator that is not read and that no cache would keep.
  const bool streams = first && dtype == kFp32 && n >= kStreamed;
  parallel(n, 1, kBlock, threads, [=](int64_t start, int64_t stop) {
    alignas(64) float total[kBlock], scratch[kBlock];
    for (int64_t i = start; i < stop; i += kBlock) {
      const int64_t count = std::min(kBlock, stop - i);
      if (first) {
        std::fill(total, total + count, 0.0f);
      } else {
        std::copy_n(load(accumulator, dtype, i, count, scratch), count, total);
      }
      for (int64_t r = 0; r < world; ++r) add(count, load(rows, row_dtype, r * stride + i, count, scratch), total);
      if (streams) {
        stream(total, static_cast<float*>(accumulator) + i, count);
      } else {
        store(total, accumulator, dtype, i, count);
      }
    }
    if (streams) end_stream();
  });
}
