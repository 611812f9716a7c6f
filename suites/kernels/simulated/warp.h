// A grid of CUDA threads on one CPU thread, warp after warp.
//
// The lanes of a warp run one after the other on one fiber, each to its end. A lane that has to wait for the others, in
// a shuffle, stays on its fiber, and the next lane begins on another. When all 32 wait, each goes on in its turn, to
// its next wait or to its end. A warp of which some lanes wait while others have ended is an error, as on a GPU.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

struct Index {
  unsigned x;
};
// Static, here and below, for a process may hold several such libraries, and each is one source.
static Index threadIdx, blockIdx, blockDim, gridDim;

using cudaStream_t = void*;
enum cudaError_t : int { cudaSuccess = 0, cudaErrorInvalidConfiguration = 9, cudaErrorLaunchFailure = 719 };

namespace simulated {

constexpr unsigned kLanes = 32;

static cudaError_t last_error = cudaSuccess;

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 16);
  unsigned thread = 0;  // threadIdx.x of the lane that it runs
  bool waits = false;   // in the middle of that lane
};

class Warp {
 public:
  double slots[kLanes];  // what lanes hand each other

  // Runs `lane` for threadIdx.x from `first` on.
  template <class Lane>
  void run(unsigned first, const Lane& lane) {
    call_ = [](const void* lane) { (*static_cast<const Lane*>(lane))(); };
    lane_ = &lane;
    next_ = first;
    end_ = first + kLanes;
    while (next_ < end_) resume(spare());
    while (!waiting_.empty()) {
      if (waiting_.size() != kLanes) last_error = cudaErrorLaunchFailure;
      for (size_t left = waiting_.size(); left > 0; --left) resume(taken(waiting_));
    }
  }

  // Called by a lane: returns when all lanes have called it.
  void wait() {
    running_->waits = true;
    swapcontext(&running_->context, &scheduler_);
  }

 private:
  using Owned = std::unique_ptr<Fiber>;

  static Owned taken(std::deque<Owned>& fibers) {
    Owned fiber = std::move(fibers.front());
    fibers.pop_front();
    return fiber;
  }

  Owned spare() {
    if (!idle_.empty()) return taken(idle_);
    auto fiber = std::make_unique<Fiber>();
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.data();
    fiber->context.uc_stack.ss_size = fiber->stack.size();
    makecontext(&fiber->context, work, 0);
    return fiber;
  }

  // Runs a fiber until its lane waits or no lane is left to begin.
  void resume(Owned fiber) {
    running_ = fiber.get();
    threadIdx.x = fiber->thread;
    fiber->waits = false;
    swapcontext(&scheduler_, &running_->context);
    (fiber->waits ? waiting_ : idle_).push_back(std::move(fiber));
  }

  static void work();

  void (*call_)(const void*) = nullptr;
  const void* lane_ = nullptr;
  unsigned next_ = 0, end_ = 0;
  Fiber* running_ = nullptr;
  std::deque<Owned> idle_, waiting_;
  ucontext_t scheduler_;
};

static Warp warp;

// What every fiber does, for ever: one lane after the other.
inline void Warp::work() {
  for (;;) {
    while (warp.next_ < warp.end_) {
      threadIdx.x = warp.running_->thread = warp.next_++;
      warp.call_(warp.lane_);
    }
    swapcontext(&warp.running_->context, &warp.scheduler_);
  }
}

// kernel<<<blocks, threads, shared, stream>>>(arguments...) is
// Launch(blocks, threads, shared, stream)(kernel, arguments...).
class Launch {
 public:
  Launch(unsigned blocks, unsigned threads, size_t, cudaStream_t) : blocks_(blocks), threads_(threads) {}

  template <class Kernel, class... Arguments>
  void operator()(const Kernel& kernel, const Arguments&... arguments) const {
    if (blocks_ - 1 > 0x7ffffffeu || threads_ - 1 > 1023 || threads_ % kLanes) {
      last_error = cudaErrorInvalidConfiguration;
      return;
    }
    gridDim.x = blocks_;
    blockDim.x = threads_;
    for (blockIdx.x = 0; blockIdx.x < blocks_; ++blockIdx.x) {
      for (unsigned first = 0; first < threads_; first += kLanes) {
        warp.run(first, [&] { kernel(arguments...); });
      }
    }
  }

 private:
  unsigned blocks_, threads_;
};

}  // namespace simulated
