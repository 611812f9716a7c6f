// pack and unpack: many tensors to and from one flat buffer, with a cast; see engine/ops/packing.py.
#include "values.cuh"

namespace {

constexpr int kTile = 16 * kThreads;  // elements of one block
constexpr int kBatch = 96;            // tensors of one launch: their table is a kernel parameter, of 4 KB at most

struct Table {
  void* tensors[kBatch];
  int64_t starts[kBatch];  // in the flat buffer
  int64_t sizes[kBatch];
  unsigned first_tile[kBatch];
  int dtypes[kBatch];
  int count;
};
static_assert(sizeof(Table) + sizeof(void*) <= 4096, "more than kernel parameters may hold");

// Casts the n elements of a tile, W at a time. A whole tile is loaded before the first store: for the compiler a store
// could change the source of a later load, so each load would wait for the store before it.
template <int W, class From, class To>
__device__ void cast(const From* from, To* to, int n) {
  constexpr int kStep = kThreads * W, kTurns = kTile / kStep;
  const int first = static_cast<int>(threadIdx.x) * W;
  if (n == kTile) {
    Vector<From, W> values[kTurns];
#pragma unroll
    for (int t = 0; t < kTurns; ++t) values[t] = load<W>(from + first + t * kStep);
#pragma unroll
    for (int t = 0; t < kTurns; ++t) store<W>(to + first + t * kStep, converted<To>(values[t]));
  } else {
#pragma unroll 1
    for (int i = first; i < n; i += kStep) store<W>(to + i, converted<To>(load<W>(from + i)));
  }
}

template <class From, class To>
__device__ void cast_tile(const From* from, To* to, int n) {
  constexpr int W = 16 / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  const int by_vector = by<W>(from) && by<W>(to) ? n / W * W : 0;
  cast<W>(from, to, by_vector);
  if (by_vector < n) cast<1>(from + by_vector, to + by_vector, n - by_vector);
}

template <bool kPack, class Tensor, class Flat>
__device__ void move_tile(void* tensor, Flat* flat, int64_t offset, int n) {
  Tensor* piece = static_cast<Tensor*>(tensor) + offset;
  if constexpr (kPack) {
    cast_tile(piece, flat, n);
  } else {
    cast_tile(flat, piece, n);
  }
}

template <class Flat>
__device__ void clear_tile(Flat* flat, int n) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) flat[i] = narrow<Flat>(-0.0f);
}

// The last tensor whose first tile is not after this one.
__device__ int find(const Table& table, unsigned tile) {
  int low = 0, high = table.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table.first_tile[middle] <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

template <bool kPack, class Flat>
__global__ void __launch_bounds__(kThreads) move_all(const __grid_constant__ Table table, Flat* flat) {
  const int t = find(table, blockIdx.x);
  const int64_t offset = static_cast<int64_t>(blockIdx.x - table.first_tile[t]) * kTile;
  const int n = static_cast<int>(min(table.sizes[t] - offset, int64_t{kTile}));
  Flat* place = flat + table.starts[t] + offset;
  if (kPack && table.tensors[t] == nullptr) {
    clear_tile(place, n);
  } else if (table.dtypes[t] == kBf16) {
    move_tile<kPack, __nv_bfloat16>(table.tensors[t], place, offset, n);
  } else if (table.dtypes[t] == kFp16) {
    move_tile<kPack, __half>(table.tensors[t], place, offset, n);
  } else {
    move_tile<kPack, float>(table.tensors[t], place, offset, n);
  }
}

// Fills the table with tensors from `t` on, moves `t` past them and returns the number of tiles.
unsigned fill(Table& table, int64_t& t, int64_t count, void* const* tensors, const int* dtypes, const int64_t* starts,
              const int64_t* sizes) {
  int64_t tiles = 0;
  for (table.count = 0; t < count && table.count < kBatch; ++t) {
    const int64_t more = (sizes[t] + kTile - 1) / kTile;
    if (tiles + more > INT32_MAX) break;
    if (more == 0) continue;
    const int k = table.count++;
    table.tensors[k] = tensors[t];
    table.starts[k] = starts[t];
    table.sizes[k] = sizes[t];
    table.dtypes[k] = dtypes[t];
    table.first_tile[k] = static_cast<unsigned>(tiles);
    tiles += more;
  }
  return static_cast<unsigned>(tiles);
}

template <bool kPack>
int move(void* flat, int dtype, int64_t count, void* const* tensors, const int* dtypes, const int64_t* starts,
         const int64_t* sizes, int device, void* stream) {
  if (const cudaError_t error = cudaSetDevice(device)) return error;
  Table table;
  for (int64_t t = 0; t < count;) {
    const unsigned tiles = fill(table, t, count, tensors, dtypes, starts, sizes);
    if (tiles == 0) continue;
    typed(dtype, [&](auto* f) {
      using Flat = std::remove_pointer_t<decltype(f)>;
      move_all<kPack><<<tiles, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(table, static_cast<Flat*>(flat));
    });
    if (const cudaError_t error = cudaGetLastError()) return error;
  }
  return cudaSuccess;
}

}  // namespace

// Tensor t has sizes[t] elements of dtypes[t] at tensors[t], and begins at element starts[t] of `flat`. If tensors[t] is
// null, zerobench_pack writes -0.
extern "C" int zerobench_pack(void* flat, int dtype, int64_t count, void* const* tensors, const int* dtypes,
                              const int64_t* starts, const int64_t* sizes, int device, void* stream) {
  return move<true>(flat, dtype, count, tensors, dtypes, starts, sizes, device, stream);
}

extern "C" int zerobench_unpack(void* flat, int dtype, int64_t count, void* const* tensors, const int* dtypes,
                                const int64_t* starts, const int64_t* sizes, int device, void* stream) {
  return move<false>(flat, dtype, count, tensors, dtypes, starts, sizes, device, stream);
}
