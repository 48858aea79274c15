// One team of threads for the whole library.
#pragma once

#include <cstddef>
#include <type_traits>

namespace rl {

using Body = void (*)(const void* context, int item, int worker);

// Calls body(context, item, worker) once for every item in [0, num_items), on at most num_threads
// threads with the caller among them; returns when all are done. Items are handed out one by one
// and in order, so make each worth about 10 µs or more. `worker` is in [0, num_threads). A body
// that calls it runs the inner items itself. Two callers at once take turns. Where a body throws, items
// that are not begun are left out, and the caller gets the first exception once no body runs.
void run_items(int num_threads, int num_items, Body body, const void* context);

// The same for anything callable as body(item, worker).
template <class F>
inline void parallel_for(int num_threads, int num_items, const F& body) {
  run_items(
      num_threads, num_items,
      [](const void* context, int item, int worker) {
        (*static_cast<const F*>(context))(item, worker);
      },
      &body);
}

// At least `bytes` bytes of the calling thread, aligned to 64, kept between calls; what was there
// is lost. Each `place` (0..3) is memory of its own. Throws std::bad_alloc.
void* scratch_bytes(int place, size_t bytes);

template <class T>
inline T* scratch(int place, size_t count) {
  static_assert(std::is_trivial<T>::value, "scratch memory is not constructed");
  return static_cast<T*>(scratch_bytes(place, count * sizeof(T)));
}

}  // namespace rl

extern "C" {
// Ends the team's threads; a later call makes new ones.
int rl_shutdown(void);
// Threads that exist now, without callers.
int rl_team_size(void);
}
