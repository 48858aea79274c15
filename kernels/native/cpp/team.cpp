#include "team.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "guard.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#define RL_PAUSE() _mm_pause()
#elif defined(__aarch64__)
#define RL_PAUSE() __asm__ volatile("yield")
#else
#define RL_PAUSE() std::this_thread::yield()
#endif

namespace rl {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(30);  // the next job of a step comes sooner
constexpr int kMaxThreads = 255;
constexpr size_t kAlign = 64;

thread_local bool is_inside = false;  // a body runs on this thread

// True as soon as `ready` is, false where it was not within the spin.
template <class Ready>
bool spin_until(const Ready& ready) {
  const auto end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      RL_PAUSE();
    }
  } while (Clock::now() < end);
  return ready();
}

// What is left of a job, in one word, so that a thread which comes late cannot take an item of
// one job for another: number of the job (24 bits), workers that may join (8), items left (32).
struct Ticket {
  uint64_t word;
  uint32_t left() const { return uint32_t(word); }
  int workers() const { return int((word >> 32) & 0xff); }
};

class Team {
 public:
  void run(int num_threads, int num_items, Body body, const void* context) {
    const std::lock_guard<std::mutex> turn(turn_);
    const int workers = num_threads < num_items ? num_threads - 1 : num_items - 1;
    grow(workers);
    body_ = body;
    context_ = context;
    num_items_ = num_items;
    unfinished_.store(num_items, std::memory_order_relaxed);
    job_ = (job_ + 1) & 0xffffff;
    ticket_.store(uint64_t(job_) << 40 | uint64_t(workers) << 32 | uint32_t(num_items));
    wake_workers(workers);
    work(-1);
    wait_for_the_last();
    throw_what_was_thrown();
  }

  void shut_down() {
    const std::lock_guard<std::mutex> turn(turn_);
    {
      const std::lock_guard<std::mutex> lock(sleep_);
      stopping_.store(true);
      wake_.notify_all();
    }
    for (auto& thread : threads_) thread.join();
    threads_.clear();
    stopping_.store(false);
  }

  int size() {
    const std::lock_guard<std::mutex> turn(turn_);
    return int(threads_.size());
  }

 private:
  void grow(int workers) {
    if (int(threads_.size()) >= workers) return;
    sigset_t all, before;  // signals are for the threads of the program
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      while (int(threads_.size()) < workers)
        threads_.emplace_back(&Team::live, this, int(threads_.size()));
    } catch (const std::exception&) {
      // no more threads to be had: those that there are and the caller do the work
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  // Takes items until none is left; worker -1 is the caller.
  void work(int worker) {
    is_inside = true;
    Ticket seen{ticket_.load()};
    while (seen.left() && worker < seen.workers()) {
      if (!ticket_.compare_exchange_weak(seen.word, seen.word - 1)) continue;
      do_item(num_items_ - int(seen.left()), worker);
      if (unfinished_.fetch_sub(1) == 1) wake_caller();
      seen.word = ticket_.load();
    }
    is_inside = false;
  }

  // One item, unless another has failed: a thread that an exception leaves ends the process.
  void do_item(int item, int worker) noexcept {
    if (has_failed_.load(std::memory_order_relaxed)) return;
    try {
      body_(context_, item, worker + 1);
    } catch (...) {
      if (!has_failed_.exchange(true)) failure_ = std::current_exception();
    }
  }

  void throw_what_was_thrown() {
    if (!has_failed_.load()) return;
    const std::exception_ptr failure = std::exchange(failure_, nullptr);
    has_failed_.store(false);
    std::rethrow_exception(failure);
  }

  bool has_work(int worker) const {
    const Ticket seen{ticket_.load()};
    return seen.left() && worker < seen.workers();
  }

  void live(int worker) {
    while (!stopping_.load()) {
      const auto ready = [&] { return has_work(worker) || stopping_.load(); };
      if (!spin_until(ready)) {
        std::unique_lock<std::mutex> lock(sleep_);
        sleepers_.fetch_add(1);
        wake_.wait(lock, ready);
        sleepers_.fetch_sub(1);
      }
      work(worker);
    }
  }

  void wake_workers(int workers) {
    if (!sleepers_.load()) return;
    const std::lock_guard<std::mutex> lock(sleep_);
    if (workers < int(threads_.size())) {
      wake_.notify_all();  // which of them sleep is not known
      return;
    }
    for (int i = 0; i < workers; ++i) wake_.notify_one();
  }

  void wake_caller() {
    if (!caller_sleeps_.load()) return;
    const std::lock_guard<std::mutex> lock(sleep_);
    done_.notify_one();
  }

  void wait_for_the_last() {
    const auto done = [this] { return unfinished_.load() == 0; };
    if (spin_until(done)) return;
    std::unique_lock<std::mutex> lock(sleep_);  // and leaves its core to the one that works
    caller_sleeps_.store(true);
    done_.wait(lock, done);
    caller_sleeps_.store(false);
  }

  std::mutex turn_;  // one caller at a time
  std::vector<std::thread> threads_;
  Body body_ = nullptr;
  const void* context_ = nullptr;
  int num_items_ = 0;
  uint32_t job_ = 0;
  alignas(kAlign) std::atomic<uint64_t> ticket_{0};
  alignas(kAlign) std::atomic<int> unfinished_{0};
  alignas(kAlign) std::atomic<int> sleepers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> has_failed_{false};
  std::exception_ptr failure_;  // read by the caller after the last item
  std::mutex sleep_;
  std::condition_variable wake_, done_;
};

// The team is never destroyed: a process may end while its threads sleep.
std::atomic<Team*> the_team{nullptr};

void forget_team() { the_team.store(nullptr); }  // in a child its threads do not exist

Team& team() {
  Team* found = the_team.load();
  if (found) return *found;
  static const int registered = pthread_atfork(nullptr, nullptr, forget_team);
  (void)registered;
  Team* fresh = new Team;
  if (the_team.compare_exchange_strong(found, fresh)) return *fresh;
  delete fresh;
  return *found;
}

struct Scratch {
  void* memory = nullptr;
  size_t size = 0;
  ~Scratch() { std::free(memory); }
};

}  // namespace

void run_items(int num_threads, int num_items, Body body, const void* context) {
  if (num_threads > kMaxThreads) num_threads = kMaxThreads;
  if (num_threads <= 1 || num_items <= 1 || is_inside) {
    for (int item = 0; item < num_items; ++item) body(context, item, 0);
    return;
  }
  team().run(num_threads, num_items, body, context);
}

void* scratch_bytes(int place, size_t bytes) {
  thread_local Scratch places[4];
  Scratch& own = places[place];
  if (own.size < bytes) {
    std::free(own.memory);
    own.memory = nullptr;
    own.size = 0;
    const size_t size = (bytes + bytes / 4 + kAlign - 1) / kAlign * kAlign;
    if (posix_memalign(&own.memory, kAlign, size)) throw std::bad_alloc();
    own.size = size;
  }
  return own.memory;
}

}  // namespace rl

int rl_shutdown(void) {
  return rl::guarded([] {
    if (rl::Team* team = rl::the_team.load()) team->shut_down();
  });
}

int rl_team_size(void) {
  return rl::guarded([] {
    rl::Team* team = rl::the_team.load();
    return team ? team->size() : 0;
  });
}
