// chunk_sumsq: fp64 sums of squares by halving, one warp per chunk; see engine/ops/sumsq.py.
//
// Lane l holds elements W * l to W * l + W - 1 of every row of 32 * W elements. Halving a chunk first halves its rows,
// then the lanes (elements i and i + width / 2 are half the lanes apart), then the W values of a lane.
#include "values.cuh"

namespace {

constexpr int kRows = 8;  // of a group: the loads that a lane can have in flight

template <int W>
struct Sums {
  double v[W];

  __device__ void add(const Sums& other) {
#pragma unroll
    for (int k = 0; k < W; ++k) v[k] = __dadd_rn(v[k], other.v[k]);
  }
};

template <int W, class T>
__device__ Sums<W> squares(const Vector<T, W>& values) {
  Sums<W> sums;
#pragma unroll
  for (int k = 0; k < W; ++k) {
    const double value = widen(values.v[k]);
    sums.v[k] = __dmul_rn(value, value);
  }
  return sums;
}

// The sum by halving of every (kRows / M)-th row of a group, M rows. The last step of halving adds the rows of even and
// of odd number, the step before it every fourth, and so on: in this order few sums wait in registers.
template <int M, int W, class T>
__device__ Sums<W> some_rows(const Vector<T, W>* rows) {
  if constexpr (M == 1) {
    return squares(*rows);
  } else {
    Sums<W> sums = some_rows<M / 2>(rows);
    sums.add(some_rows<M / 2>(rows + kRows / M));
    return sums;
  }
}

// The sum by halving of a group: the rows from `start` on, `apart` rows from each other. If a chunk is shorter than a
// group, the elements past its end count as zeros, which change no sum of squares.
template <int W, bool kShort, class T>
__device__ Sums<W> group(const T* start, int64_t apart, int64_t chunk) {
  Vector<T, W> rows[kRows] = {};
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    const int64_t i = (m * apart * kWarp + threadIdx.x % kWarp) * W;
    if (!kShort || i < chunk) rows[m] = load<W>(start + i);
  }
  return some_rows<kRows>(rows);
}

// The sum by halving of a chunk, group by group. Halving first adds group b and group b + groups / 2. If the bits of
// the group numbers are reversed, these two are neighbours, at every level, so a sum waits only for the next sum of
// its level. `kLevels` is 0 if a chunk is one group: waiting sums use local memory, which the driver reserves for all
// threads that could run at once.
template <int W, bool kShort, int kLevels, class T>
__device__ Sums<W> all_rows(const T* start, int64_t chunk) {
  if constexpr (kLevels == 0) {
    return group<W, kShort>(start, 1, chunk);
  } else {
    const int64_t groups = chunk / (kRows * kWarp * W);
    const int bits = 63 - __clzll(groups);
    Sums<W> waiting[kLevels];
    Sums<W> sums{};
    for (int64_t count = 0; count < groups; ++count) {
      const auto b = static_cast<int64_t>(__brevll(static_cast<unsigned long long>(count)) >> (64 - bits));
      sums = group<W, kShort>(start + b * kWarp * W, groups, chunk);
      int level = 0;
      for (; (count >> level) & 1; ++level) sums.add(waiting[level]);
      waiting[level] = sums;
    }
    return sums;
  }
}

template <int W>
__device__ double halved(Sums<W> sums) {
#pragma unroll
  for (int width = kWarp / 2; width > 0; width /= 2) {
#pragma unroll
    for (int k = 0; k < W; ++k) sums.v[k] = __dadd_rn(sums.v[k], __shfl_down_sync(0xffffffffu, sums.v[k], width));
  }
#pragma unroll
  for (int width = W / 2; width > 0; width /= 2) {
#pragma unroll
    for (int k = 0; k < width; ++k) sums.v[k] = __dadd_rn(sums.v[k], sums.v[k + width]);
  }
  return sums.v[0];
}

// All lanes of a warp have the same chunk, so they leave the loop together and take part in every shuffle.
template <int W, bool kShort, int kLevels, class T>
__global__ void __launch_bounds__(kThreads) sum_chunks(const T* values, int64_t chunks, int64_t chunk, double* out) {
  for (int64_t c = thread_index() / kWarp; c < chunks; c += thread_count() / kWarp) {
    const double sum = halved(all_rows<W, kShort, kLevels>(values + c * chunk, chunk));
    if (threadIdx.x % kWarp == 0) out[c] = sum;
  }
}

template <int W, class T>
void launch(const T* values, int64_t chunks, int64_t chunk, double* out, cudaStream_t stream) {
  const unsigned grid = blocks(chunks, kThreads / kWarp);
  const int64_t groups = chunk / (kRows * kWarp * W);
  if (groups == 0) {
    sum_chunks<W, true, 0><<<grid, kThreads, 0, stream>>>(values, chunks, chunk, out);
  } else if (groups == 1) {
    sum_chunks<W, false, 0><<<grid, kThreads, 0, stream>>>(values, chunks, chunk, out);
  } else if (groups < 1 << 6) {
    sum_chunks<W, false, 6><<<grid, kThreads, 0, stream>>>(values, chunks, chunk, out);
  } else {
    sum_chunks<W, false, 40><<<grid, kThreads, 0, stream>>>(values, chunks, chunk, out);
  }
}

}  // namespace

extern "C" int zerobench_chunk_sumsq(const void* values, int dtype, int64_t chunks, int64_t chunk, double* out,
                                     int device, void* stream) {
  if (chunks == 0) return cudaSuccess;
  if (const cudaError_t error = cudaSetDevice(device)) return error;
  return typed(dtype, [=](auto* t) {
    const auto from = static_cast<std::remove_pointer_t<decltype(t)> const*>(values);
    const auto queue = static_cast<cudaStream_t>(stream);
    if (by<4>(from) && chunk >= 4) {
      launch<4>(from, chunks, chunk, out, queue);
    } else {
      launch<1>(from, chunks, chunk, out, queue);
    }
    return static_cast<int>(cudaGetLastError());
  });
}
