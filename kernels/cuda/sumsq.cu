// chunk_sumsq: fp64 sums of squares by halving, a warp to a chunk; see engine/ops/sumsq.py.
//
// Lane l holds elements W * l to W * l + W - 1 of every row of 32 * W elements. Halving a chunk first halves its rows,
// then the lanes (elements i and i + width / 2 lie half the lanes apart), then the W values of a lane.
#include "values.cuh"

namespace {

constexpr int kWarp = 32;
constexpr int kMostLevels = 40;

template <int W>
struct Sums {
  double v[W];

  __device__ void add(const Sums& other) {
#pragma unroll
    for (int k = 0; k < W; ++k) v[k] = __dadd_rn(v[k], other.v[k]);
  }
};

template <int W, class T>
__device__ Sums<W> squares(const T* row, int64_t chunk) {
  const int lane = threadIdx.x % kWarp;
  Sums<W> sums{};
  if (lane * W >= chunk) return sums;  // a chunk shorter than a warp: zeros change no sum of squares
  const auto values = load<W>(row + lane * W);
#pragma unroll
  for (int k = 0; k < W; ++k) {
    const double value = widen(values.v[k]);
    sums.v[k] = __dmul_rn(value, value);
  }
  return sums;
}

// The sum by halving of M rows that lie `apart` rows from each other.
template <int W, int M, class T>
__device__ Sums<W> few_rows(const T* row, int64_t apart, int64_t chunk) {
  Sums<W> sums[M];
#pragma unroll
  for (int m = 0; m < M; ++m) sums[m] = squares<W>(row + m * apart * kWarp * W, chunk);
#pragma unroll
  for (int width = M / 2; width > 0; width /= 2) {
#pragma unroll
    for (int m = 0; m < width; ++m) sums[m].add(sums[m + width]);
  }
  return sums[0];
}

// The sum by halving of `groups` * M rows, in groups of M. Halving joins group b and group b + groups / 2 first;
// counted with the bits of their number reversed these two are neighbours, at every level, so that a sum waits only
// until the next of its level is there.
template <int W, int M, class T>
__device__ Sums<W> all_rows(const T* start, int64_t groups, int64_t chunk) {
  if (groups == 1) return few_rows<W, M>(start, 1, chunk);
  const int bits = 63 - __clzll(groups);
  Sums<W> waiting[kMostLevels];
  Sums<W> sums{};
  for (int64_t count = 0; count < groups; ++count) {
    const auto group = static_cast<int64_t>(__brevll(static_cast<unsigned long long>(count)) >> (64 - bits));
    sums = few_rows<W, M>(start + group * kWarp * W, groups, chunk);
    int level = 0;
    for (; (count >> level) & 1; ++level) sums.add(waiting[level]);
    waiting[level] = sums;
  }
  return sums;
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

// All lanes of a warp have the same chunk, so they leave the loop together and every shuffle finds them all.
template <int W, int M, class T>
__global__ void __launch_bounds__(kThreads) sum_chunks(const T* values, int64_t chunks, int64_t chunk, double* out) {
  const int64_t rows = chunk < kWarp * W ? 1 : chunk / (kWarp * W);
  for (int64_t c = thread_index() / kWarp; c < chunks; c += thread_count() / kWarp) {
    const double sum = halved(all_rows<W, M>(values + c * chunk, rows / M, chunk));
    if (threadIdx.x % kWarp == 0) out[c] = sum;
  }
}

template <int W, class T>
void launch(const T* values, int64_t chunks, int64_t chunk, double* out, cudaStream_t stream) {
  const unsigned grid = blocks(chunks, kThreads / kWarp);
  if (chunk >= kWarp * W * 8) {
    sum_chunks<W, 8><<<grid, kThreads, 0, stream>>>(values, chunks, chunk, out);
  } else {
    sum_chunks<W, 1><<<grid, kThreads, 0, stream>>>(values, chunks, chunk, out);
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
    if (by_four(from) && chunk >= 4 * kWarp) {
      launch<4>(from, chunks, chunk, out, queue);
    } else {
      launch<1>(from, chunks, chunk, out, queue);
    }
    return static_cast<int>(cudaGetLastError());
  });
}
