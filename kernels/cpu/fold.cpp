// fold: the ordered fp32 sum of several rows, each read once; see engine/ops/folding.py.
#include "convert.h"
#include "parallel.h"

namespace {

// Elements summed at a time: their sum stays in registers from the first row to the last.
constexpr int64_t kLine = 32;

// The number of elements to prefetch ahead.
constexpr int64_t kAhead = 1024;

struct Fold {
  void* accumulator;
  int dtype;
  const void* rows;
  int64_t world, stride;
  bool first, streams;

  template <Dtype kRows>
  void add(int64_t start, int64_t n, float* __restrict total) const {
    ask<0>(rows, kRows, start + kAhead, n);
    alignas(64) float scratch[kLine];
    const float* __restrict values = load(rows, kRows, start, n, scratch);
    for (int64_t k = 0; k < n; ++k) total[k] += values[k];
  }

  // Elements [start, start + n), at most kLine of them.
  template <Dtype kRows>
  void line(int64_t start, int64_t n) const {
    alignas(64) float total[kLine] = {}, scratch[kLine];
    if (!streams) ask<1>(accumulator, dtype, start + kAhead, n);
    if (!first) std::copy_n(load(accumulator, dtype, start, n, scratch), n, total);
    for (int64_t r = 0; r < world; ++r) add<kRows>(r * stride + start, n, total);
    if (streams) {
      stream(total, static_cast<float*>(accumulator) + start, n * static_cast<int64_t>(sizeof(float)));
    } else {
      store(total, accumulator, dtype, start, n);
    }
  }

  template <Dtype kRows>
  void over(int64_t start, int64_t stop) const {
    for (; start + kLine <= stop; start += kLine) line<kRows>(start, kLine);
    line<kRows>(start, stop - start);
    if (streams) end_stream();
  }
};

}  // namespace

// Row r starts `stride` elements after row r - 1. With `first` the accumulator's old value is not read.
extern "C" void zerobench_fold(void* accumulator, int dtype, const void* rows, int row_dtype, int64_t world, int64_t n,
                               int64_t stride, int first, int threads) {
  const bool large = n * size_of(dtype) >= kStreamedBytes;
  const bool streams = first && dtype == kFp32 && large && to_line(accumulator) == 0;
  const Fold fold{accumulator, dtype, rows, world, stride, first != 0, streams};
  parallel(n, 1, kLine, threads, [=](int64_t start, int64_t stop) {
    if (row_dtype == kBf16) return fold.over<kBf16>(start, stop);
    if (row_dtype == kFp16) return fold.over<kFp16>(start, stop);
    fold.over<kFp32>(start, stop);
  });
}
