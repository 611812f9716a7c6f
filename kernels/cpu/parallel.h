// A loop split among threads. A body's result for an element must not depend on the split.
#pragma once

#include <algorithm>
#include <cfenv>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

// The minimum number of elements for each thread; starting a thread costs about as much as 64K elements.
constexpr int64_t kGrain = 1 << 18;

// During its lifetime this thread rounds to nearest and keeps subnormals, even after torch.set_flush_denormal,
// which new threads inherit.
class Ieee {
 public:
  Ieee() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~Ieee() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

// Runs body(start, stop) over [0, n) on at most `threads` threads; cuts are multiples of `unit`. One index costs `cost`
// elements. No OpenMP: the threads of a second OpenMP runtime would spin against those of torch's.
template <class Body>
void parallel(int64_t n, int64_t cost, int64_t unit, int threads, const Body& body) {
  const Ieee ieee;  // threads inherit it
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, n * cost / kGrain));
  const int64_t width = ((n + parts - 1) / parts + unit - 1) / unit * unit;
  std::vector<std::thread> workers;
  for (int64_t start = width; start < n; start += width) {
    const int64_t stop = std::min(start + width, n);
    try {
      workers.emplace_back(body, start, stop);
    } catch (...) {  // no thread, or no memory for one: do its part in this thread
      body(start, stop);
    }
  }
  if (n > 0) body(0, std::min(width, n));
  for (std::thread& worker : workers) worker.join();
}

}  // namespace
