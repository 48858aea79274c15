// The edge of the library: no exception leaves a C function.
#pragma once

#include <new>
#include <stdexcept>
#include <type_traits>

namespace rl {

// What a C function that can fail returns; what else it has to say is above 0.
enum Status : int { kDone = 0, kNoMemory = -1, kFailed = -2 };

// Runs the body of a C function: body() is nothing, or a number from 0 on.
template <class Body>
int guarded(const Body& body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return kDone;
    } else {
      return body();
    }
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  } catch (const std::length_error&) {  // a container of a size that no memory has
    return kNoMemory;
  } catch (...) {
    return kFailed;
  }
}

// The same for one that makes something: null where it fails.
template <class Body>
auto made(const Body& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    return nullptr;
  }
}

}  // namespace rl
