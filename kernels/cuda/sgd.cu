// sgd_step: SGD, with momentum if there is a buffer, over the runs of a flat shard in one pass; see engine/ops/update.py.
#include "values.cuh"

namespace {

template <class G, class C>
struct Sgd {
  float* master;
  const G* gradient;
  float* momentum_buffer;  // or null
  C* copy;                 // or null
  const float* factor;     // NaN: only the copy is written
  float l2, momentum, step_size;

  template <int W>
  __device__ void at(int64_t i) const {
    const float times = *factor;
    auto p = load<W>(master + i);
    const auto g = load<W>(gradient + i);
    Vector<float, W> b{};
    if (momentum_buffer != nullptr) b = load<W>(momentum_buffer + i);
    if (!isnan(times)) {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        const float scaled = __fmul_rn(widen(g.v[k]), times);
        const float decayed = l2 != 0.0f ? __fmaf_rn(l2, p.v[k], scaled) : scaled;
        b.v[k] = momentum_buffer != nullptr ? __fadd_rn(__fmul_rn(b.v[k], momentum), decayed) : decayed;
        p.v[k] = __fmaf_rn(step_size, b.v[k], p.v[k]);
      }
      store<W>(master + i, p);
      if (momentum_buffer != nullptr) store<W>(momentum_buffer + i, b);
    }
    if (copy != nullptr) store<W>(copy + i, converted<C>(p));
  }
};

}  // namespace

// A run has three bounds, its start, stop and factor, and three scalars; without momentum it does not use the buffer.
extern "C" int zerobench_sgd_step(float* master, const void* gradient, int gradient_dtype, float* momentum_buffer,
                                  void* copy, int copy_dtype, const float* factors, int64_t runs,
                                  const int64_t* bounds, const float* scalars, int device, void* stream) {
  return typed(gradient_dtype, [=](auto* g) {
    return typed(copy_dtype, [=](auto* c) {
      using G = std::remove_pointer_t<decltype(g)>;
      using C = std::remove_pointer_t<decltype(c)>;
      return each<3>(runs, bounds, scalars, [=](int64_t first, int64_t n, int64_t parameter, const float* s) {
        const auto from = static_cast<const G*>(gradient) + first;
        const auto to = copy == nullptr ? nullptr : static_cast<C*>(copy) + first;
        const auto buffer = momentum_buffer == nullptr || s[1] == 0.0f ? nullptr : momentum_buffer + first;
        const Sgd<G, C> sgd{master + first, from, buffer, to, factors + parameter, s[0], s[1], s[2]};
        const bool aligned = by<4>(sgd.master) && by<4>(from) && by<4>(buffer) && by<4>(to);
        return start(sgd, n, aligned, device, stream);
      });
    });
  });
}
