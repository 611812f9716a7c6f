// tree_sum and clip_factors: the global norm and the factor of each parameter; see engine/ops/tree.py and clipping.py.
#include "values.cuh"

namespace {

constexpr int kLast = 32;  // rows of the last warp: the values of a lane

// One level of halving over n values, `half` of them in the first half; `sums` may be the values.
__global__ void __launch_bounds__(kThreads) halve(const double* values, int64_t n, int64_t half, double* sums) {
  for (int64_t i = thread_index(); i < half; i += thread_count()) {
    const double first = values[i];
    sums[i] = i + half < n ? __dadd_rn(first, values[i + half]) : first;
  }
}

// The last levels, by one warp: up to kWarp * kLast values, and zeros in place of the others. Halving first halves the
// rows of kWarp values, then the lanes.
__global__ void __launch_bounds__(kWarp) finish(const double* values, int64_t n, double* sums) {
  const int lane = static_cast<int>(threadIdx.x);
  double rows[kLast];
#pragma unroll
  for (int m = 0; m < kLast; ++m) rows[m] = m * kWarp + lane < n ? values[m * kWarp + lane] : 0.0;
#pragma unroll
  for (int width = kLast / 2; width > 0; width /= 2) {
#pragma unroll
    for (int m = 0; m < width; ++m) rows[m] = __dadd_rn(rows[m], rows[m + width]);
  }
  double sum = rows[0];
#pragma unroll
  for (int width = kWarp / 2; width > 0; width /= 2) sum = __dadd_rn(sum, __shfl_down_sync(0xffffffffu, sum, width));
  if (lane == 0) *sums = sum;
}

__global__ void __launch_bounds__(kThreads) clip_all(const double* total, const bool* overflow, const bool* active,
                                                     int64_t n, double clip, double divisor, float* factors) {
  const double norm = __ddiv_rn(__dsqrt_rn(*total), divisor);
  const double limited = __ddiv_rn(clip, __dadd_rn(norm, 1e-6));
  const double coefficient = clip > 0.0 && limited < 1.0 ? limited : 1.0;
  const float factor = __double2float_rn(__ddiv_rn(coefficient, divisor));
  for (int64_t i = thread_index(); i < n; i += thread_count()) {
    factors[i] = active[i] && !*overflow ? factor : __int_as_float(0x7fc00000);
  }
}

}  // namespace

// `sums` has room for half of the smallest power of two that is not below n, and for one; its first element is the sum.
extern "C" int zerobench_tree_sum(const double* values, int64_t n, double* sums, int device, void* stream) {
  if (const cudaError_t error = cudaSetDevice(device)) return error;
  const auto queue = static_cast<cudaStream_t>(stream);
  int64_t half = 1;
  while (2 * half < n) half *= 2;
  for (; n > kWarp * kLast; half /= 2) {
    halve<<<blocks(half, kThreads), kThreads, 0, queue>>>(values, n, half, sums);
    if (const cudaError_t error = cudaGetLastError()) return error;
    values = sums;
    n = half;
  }
  finish<<<1, kWarp, 0, queue>>>(values, n, sums);
  return cudaGetLastError();
}

extern "C" int zerobench_clip_factors(const double* total, const bool* overflow, const bool* active, int64_t n,
                                      double clip, double divisor, float* factors, int device, void* stream) {
  if (n == 0) return cudaSuccess;
  if (const cudaError_t error = cudaSetDevice(device)) return error;
  const auto queue = static_cast<cudaStream_t>(stream);
  clip_all<<<blocks(n, kThreads), kThreads, 0, queue>>>(total, overflow, active, n, clip, divisor, factors);
  return cudaGetLastError();
}
