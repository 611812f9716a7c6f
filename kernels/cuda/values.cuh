// Values in memory and in registers: conversions, vectors, and launches over n elements.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../dtype.h"

namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1 << 16;  // beyond this, a thread processes more than one item

// W neighbouring values, moved by one instruction of up to 16 bytes.
template <class T, int W>
struct alignas(sizeof(T) * W) Vector {
  T v[W];
};

template <int W, class T>
__device__ Vector<T, W> load(const T* from) {
  return *reinterpret_cast<const Vector<T, W>*>(from);
}

// The type for storing a vector: the compiler would split a struct and store halves in pairs.
template <class V>
using Word = std::conditional_t<sizeof(V) == 16, uint4, std::conditional_t<sizeof(V) == 8, uint2, V>>;

template <int W, class T>
__device__ void store(T* to, const Vector<T, W>& values) {
  Word<Vector<T, W>> word;
  memcpy(&word, &values, sizeof word);
  *reinterpret_cast<Word<Vector<T, W>>*>(to) = word;
}

// Whether vectors of W can be moved at this address.
template <int W, class T>
__host__ __device__ bool by(const T* address) {
  return reinterpret_cast<uintptr_t>(address) % sizeof(Vector<T, W>) == 0;
}

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(__half x) { return __half2float(x); }

// Rounds to nearest even.
template <class T>
__device__ T narrow(float x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return x;
  }
}

// Rounds if To is narrower; values of the same type stay as they are, including a NaN's bits.
template <class To, class From, int W>
__device__ Vector<To, W> converted(const Vector<From, W>& values) {
  if constexpr (std::is_same_v<To, From>) {
    return values;
  } else {
    Vector<To, W> result;
#pragma unroll
    for (int k = 0; k < W; ++k) result.v[k] = narrow<To>(widen(values.v[k]));
    return result;
  }
}

// Calls body(null pointer of the dtype's type): turns a dtype known at run time into a type.
template <class Body>
auto typed(int dtype, const Body& body) {
  if (dtype == kBf16) return body(static_cast<__nv_bfloat16*>(nullptr));
  if (dtype == kFp16) return body(static_cast<__half*>(nullptr));
  return body(static_cast<float*>(nullptr));
}

inline unsigned blocks(int64_t items, int64_t in_one) {
  return static_cast<unsigned>(std::min(kMostBlocks, std::max<int64_t>(1, (items + in_one - 1) / in_one)));
}

__device__ inline int64_t thread_index() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t thread_count() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

// Calls operation.at<W>(i) for elements i to i + W - 1, over [0, n); one by one at the end.
template <int W, class Operation>
__global__ void __launch_bounds__(kThreads) over(const Operation operation, int64_t n) {
  for (int64_t i = thread_index() * W; i < n; i += thread_count() * W) {
    if (i + W <= n) {
      operation.template at<W>(i);
    } else {
#pragma unroll 1
      for (int64_t k = i; k < n; ++k) operation.template at<1>(k);
    }
  }
}

// Starts an operation over n elements; `aligned`: four elements can be moved at once. Returns a CUDA error code.
template <class Operation>
int start(const Operation& operation, int64_t n, bool aligned, int device, void* stream) {
  if (n == 0) return cudaSuccess;
  if (const cudaError_t error = cudaSetDevice(device)) return error;
  const auto queue = static_cast<cudaStream_t>(stream);
  if (aligned) {
    over<4><<<blocks(n, 4 * kThreads), kThreads, 0, queue>>>(operation, n);
  } else {
    over<1><<<blocks(n, kThreads), kThreads, 0, queue>>>(operation, n);
  }
  return cudaGetLastError();
}

// Calls body(start, n, parameter, scalars) for each run, up to the first error, which it returns.
template <int kScalars, class Body>
int each(int64_t runs, const int64_t* bounds, const float* scalars, const Body& body) {
  for (; runs > 0; --runs, bounds += 3, scalars += kScalars) {
    if (const int error = body(bounds[0], bounds[1] - bounds[0], bounds[2], scalars)) return error;
  }
  return cudaSuccess;
}

}  // namespace
