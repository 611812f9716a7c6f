// adam_step: Adam and AdamW over the runs of a flat shard in one pass; engine/ops/update.py states the formula.
#include "values.cuh"

namespace {

template <class G, class C>
struct Adam {
  float* master;
  const G* gradient;
  float* exp_avg;
  float* exp_avg_sq;
  C* copy;  // or null
  const float* factor;  // NaN: only the copy is written
  float decay, l2, weight1, beta2, weight2, root2, eps, step_size;

  template <int W>
  __device__ void at(int64_t i) const {
    const float times = *factor;
    auto p = load<W>(master + i);
    auto m = load<W>(exp_avg + i);
    auto v = load<W>(exp_avg_sq + i);
    const auto g = load<W>(gradient + i);
    if (!isnan(times)) {
#pragma unroll
      for (int k = 0; k < W; ++k) update(p.v[k], __fmul_rn(widen(g.v[k]), times), m.v[k], v.v[k]);
      store<W>(master + i, p);
      store<W>(exp_avg + i, m);
      store<W>(exp_avg_sq + i, v);
    }
    if (copy != nullptr) store<W>(copy + i, converted<C>(p));
  }

  __device__ void update(float& p, float scaled, float& m, float& v) const {
    p = __fmul_rn(p, decay);
    const float g = l2 != 0.0f ? __fmaf_rn(l2, p, scaled) : scaled;
    const float difference = __fsub_rn(g, m);
    m = weight1 < 0.5f ? __fmaf_rn(weight1, difference, m) : __fmaf_rn(__fsub_rn(weight1, 1.0f), difference, g);
    v = __fmaf_rn(__fmul_rn(weight2, g), g, __fmul_rn(v, beta2));
    const float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), root2), eps);
    p = __fadd_rn(p, __fdiv_rn(__fmul_rn(step_size, m), denominator));
  }
};

}  // namespace

// A run has three bounds, its start, stop and factor, and eight scalars; each is a launch.
extern "C" int zerobench_adam_step(float* master, const void* gradient, int gradient_dtype, float* exp_avg,
                                   float* exp_avg_sq, void* copy, int copy_dtype, const float* factors, int64_t runs,
                                   const int64_t* bounds, const float* scalars, int device, void* stream) {
  return typed(gradient_dtype, [=](auto* g) {
    return typed(copy_dtype, [=](auto* c) {
      using G = std::remove_pointer_t<decltype(g)>;
      using C = std::remove_pointer_t<decltype(c)>;
      return each<8>(runs, bounds, scalars, [=](int64_t first, int64_t n, int64_t parameter, const float* s) {
        const auto from = static_cast<const G*>(gradient) + first;
        const auto to = copy == nullptr ? nullptr : static_cast<C*>(copy) + first;
        const Adam<G, C> adam{master + first,      from, exp_avg + first, exp_avg_sq + first, to,
                              factors + parameter, s[0], s[1],            s[2],               s[3],
                              s[4],                s[5], s[6],            s[7]};
        const bool aligned = by<4>(adam.master) && by<4>(from) && by<4>(adam.exp_avg) && by<4>(adam.exp_avg_sq);
        return start(adam, n, aligned && by<4>(to), device, stream);
      });
    });
  });
}

extern "C" const char* zerobench_error(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }
