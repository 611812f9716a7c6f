// pack and unpack: many tensors to and from one flat buffer, with a cast; see engine/ops/packing.py.
#include "convert.h"
#include "parallel.h"

namespace {

// -0 in bf16 and in fp16.
constexpr uint16_t kNegativeZero = 0x8000;

// Copies; `streams` bypasses the caches.
void copy(const char* from, char* to, int64_t bytes, bool streams) {
  const int64_t head = streams ? std::min(to_line(to), bytes) : bytes;
  std::memcpy(to, from, static_cast<size_t>(head));
  if (head < bytes) stream(from + head, to + head, bytes - head);
}

void cast(const void* from, int from_dtype, int64_t from_start, void* to, int to_dtype, int64_t to_start, int64_t n,
          bool streams) {
  if (from == nullptr) {
    if (to_dtype == kFp32) {
      std::fill_n(static_cast<float*>(to) + to_start, n, -0.0f);
    } else {
      std::fill_n(static_cast<uint16_t*>(to) + to_start, n, kNegativeZero);
    }
    return;
  }
  if (from_dtype == to_dtype) {
    const int64_t size = size_of(from_dtype);
    const char* source = static_cast<const char*>(from) + from_start * size;
    copy(source, static_cast<char*>(to) + to_start * size, n * size, streams);
    return;
  }
  alignas(64) float scratch[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = std::min(kBlock, n - i);
    store(load(from, from_dtype, from_start + i, count, scratch), to, to_dtype, to_start + i, count);
  }
}

// Calls move(tensor, offset, n, streams) for every piece of the concatenated tensors in a thread's share.
template <class Move>
void each_piece(int dtype, int64_t count, const int64_t* sizes, int threads, const Move& move) {
  int64_t total = 0;
  for (int64_t t = 0; t < count; ++t) total += sizes[t];
  const bool streams = total * size_of(dtype) >= kStreamedBytes;
  parallel(total, 1, kBlock, threads, [=](int64_t start, int64_t stop) {
    int64_t position = 0;
    for (int64_t t = 0; t < count && position < stop; position += sizes[t], ++t) {
      const int64_t lo = std::max(start, position), hi = std::min(stop, position + sizes[t]);
      if (lo < hi) move(t, lo - position, hi - lo, streams);
    }
    end_stream();
  });
}

}  // namespace

// Tensor t has sizes[t] elements of dtypes[t] at tensors[t], and begins at element starts[t] of `flat`. If tensors[t] is
// null, zerobench_pack writes -0.
extern "C" void zerobench_pack(void* flat, int dtype, int64_t count, const void* const* tensors, const int* dtypes,
                               const int64_t* starts, const int64_t* sizes, int threads) {
  each_piece(dtype, count, sizes, threads, [=](int64_t t, int64_t offset, int64_t n, bool streams) {
    cast(tensors[t], dtypes[t], offset, flat, dtype, starts[t] + offset, n, streams);
  });
}

extern "C" void zerobench_unpack(const void* flat, int dtype, int64_t count, void* const* tensors, const int* dtypes,
                                 const int64_t* starts, const int64_t* sizes, int threads) {
  each_piece(dtype, count, sizes, threads, [=](int64_t t, int64_t offset, int64_t n, bool streams) {
    cast(flat, dtype, starts[t] + offset, tensors[t], dtypes[t], offset, n, streams);
  });
}
