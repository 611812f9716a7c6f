// In CUDA's place where a .cu is compiled as C++: what the kernels use of its header.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "warp.h"

#define __device__
#define __global__
#define __grid_constant__
#define __host__
#define __launch_bounds__(...)

using std::isnan;
using std::min;

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return std::exchange(simulated::last_error, cudaSuccess); }
inline const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorInvalidConfiguration) return "invalid configuration argument";
  return error == cudaErrorLaunchFailure ? "some lanes of a warp wait for others that have ended" : "no error";
}

// Nothing here is contracted by the compiler (-ffp-contract=off), so each is rounded once, to nearest even.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline float __double2float_rn(double a) { return static_cast<float>(a); }
inline float __int_as_float(int bits) { return float_of(static_cast<uint32_t>(bits)); }

inline int __clzll(long long value) { return value == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(value)); }

inline unsigned long long __brevll(unsigned long long value) {
  unsigned long long reversed = 0;
  for (int bit = 0; bit < 64; ++bit) reversed |= (value >> bit & 1) << (63 - bit);
  return reversed;
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned apart) {
  using namespace simulated;
  static_assert(sizeof(T) <= sizeof(double));
  assert(mask == 0xffffffffu && "only whole warps are simulated");
  const unsigned lane = threadIdx.x % kLanes, from = lane + apart < kLanes ? lane + apart : lane;
  std::memcpy(&warp.slots[lane], &value, sizeof value);
  warp.wait();  // until all have written
  std::memcpy(&value, &warp.slots[from], sizeof value);
  warp.wait();  // until all have read
  return value;
}
