// fold: the ordered fp32 sum of several rows, each read once; see engine/ops/folding.py.
#include "values.cuh"

namespace {

template <class A, class R>
struct Fold {
  A* accumulator;
  const R* rows;
  int64_t world, stride;
  bool first;

  template <int W>
  __device__ void at(int64_t i) const {
    Vector<float, W> total{};
    if (!first) total = converted<float>(load<W>(accumulator + i));
    int64_t r = 0;
#pragma unroll 1
    for (; r + 4 <= world; r += 4) add<4>(r, i, total);
    switch (world - r) {
      case 3: add<3>(r, i, total); break;
      case 2: add<2>(r, i, total); break;
      case 1: add<1>(r, i, total); break;
    }
    store<W>(accumulator + i, converted<A>(total));
  }

  // Adds rows r to r + N - 1 in order, after loading all of them.
  template <int N, int W>
  __device__ void add(int64_t r, int64_t i, Vector<float, W>& total) const {
    Vector<R, W> row[N];
#pragma unroll
    for (int n = 0; n < N; ++n) row[n] = load<W>(rows + (r + n) * stride + i);
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int k = 0; k < W; ++k) total.v[k] = __fadd_rn(total.v[k], widen(row[n].v[k]));
    }
  }
};

}  // namespace

// Row r starts `stride` elements after row r - 1. With `first` the accumulator's old value is not read.
extern "C" int zerobench_fold(void* accumulator, int dtype, const void* rows, int row_dtype, int64_t world, int64_t n,
                              int64_t stride, int first, int device, void* stream) {
  return typed(dtype, [=](auto* a) {
    return typed(row_dtype, [=](auto* r) {
      using A = std::remove_pointer_t<decltype(a)>;
      using R = std::remove_pointer_t<decltype(r)>;
      const Fold<A, R> fold{static_cast<A*>(accumulator), static_cast<const R*>(rows), world, stride, first != 0};
      const bool aligned = by<4>(fold.accumulator) && by<4>(fold.rows) && (stride % 4 == 0 || world == 1);
      return start(fold, n, aligned, device, stream);
    });
  });
}
