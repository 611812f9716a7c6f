// A loop cut among threads. What a body computes for an element must not depend on where the loop is cut.
#pragma once

#include <algorithm>
#include <cfenv>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

// A thread costs about as much as 64K elements; below this many for each, one thread does it all.
constexpr int64_t kGrain = 1 << 18;

// While it lives this thread rounds to nearest and keeps subnormals, whatever it was told before:
// torch.set_flush_denormal, say, which threads inherit.
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

// body(start, stop) over [0, n) on at most `threads` threads; cuts are multiples of `unit`. `cost` is of one index, in
// elements. No OpenMP: a second OpenMP runtime beside torch's would keep its threads spinning against it.
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
    } catch (...) {  // no thread, or no memory for one: do its part here
      body(start, stop);
    }
  }
  if (n > 0) body(0, std::min(width, n));
  for (std::thread& worker : workers) worker.join();
}

}  // namespace
