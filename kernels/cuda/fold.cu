// fold: the ordered fp32 sum of several rows, each read once; see engine/ops/fold.py.
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
    float total[W] = {};
    if (!first) {
      const auto before = load<W>(accumulator + i);
#pragma unroll
      for (int k = 0; k < W; ++k) total[k] = widen(before.v[k]);
    }
#pragma unroll 4
    for (int64_t r = 0; r < world; ++r) {
      const auto row = load<W>(rows + r * stride + i);
#pragma unroll
      for (int k = 0; k < W; ++k) total[k] = __fadd_rn(total[k], widen(row.v[k]));
    }
    Vector<A, W> sum;
#pragma unroll
    for (int k = 0; k < W; ++k) sum.v[k] = narrow<A>(total[k]);
    store<W>(accumulator + i, sum);
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
      const bool aligned = by_four(fold.accumulator) && by_four(fold.rows) && (stride % 4 == 0 || world == 1);
      return start(fold, n, aligned, device, stream);
    });
  });
}
