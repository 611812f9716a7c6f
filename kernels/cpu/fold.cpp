// fold: the ordered fp32 sum of several rows, each read once; see engine/ops/fold.py.
#include "convert.h"
#include "parallel.h"

namespace {

// 64 MB: up to there the lines that a plain store fetches come from the last-level cache, and stay there for the reader.
constexpr int64_t kStreamed = 1 << 24;

// Ask for lines before they are needed: a core looks ahead within a page of each row, and a block takes little of a page.
template <int kToWrite>
void ask(const void* values, int dtype, int64_t start, int64_t n) {
  const char* lines = static_cast<const char*>(values) + start * size_of(dtype);
  for (int64_t at = 0; at < n * size_of(dtype); at += 64) __builtin_prefetch(lines + at, kToWrite, 2);
}

void add(const void* row, int dtype, int64_t start, int64_t n, float* __restrict total) {
  if (dtype == kBf16) {  // converted on the way: one pass less over the block
    const uint16_t* __restrict halves = static_cast<const uint16_t*>(row) + start;
    for (int64_t i = 0; i < n; ++i) total[i] += from_bf16(halves[i]);
    return;
  }
  alignas(64) float scratch[kBlock];
  const float* __restrict values = load(row, dtype, start, n, scratch);
  for (int64_t i = 0; i < n; ++i) total[i] += values[i];
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
      const int64_t count = std::min(kBlock, stop - i), next = i + count;
      if (first) {
        if (!streams) ask<1>(accumulator, dtype, i, count);
        std::fill(total, total + count, 0.0f);
      } else {
        std::copy_n(load(accumulator, dtype, i, count, scratch), count, total);
      }
      for (int64_t r = 0; r < world; ++r) {
        ask<0>(rows, row_dtype, r * stride + next, std::min(kBlock, stop - next));
        add(rows, row_dtype, r * stride + i, count, total);
      }
      if (streams) {
        stream(total, static_cast<float*>(accumulator) + i, count);
      } else {
        store(total, accumulator, dtype, i, count);
      }
    }
    if (streams) end_stream();
  });
}
