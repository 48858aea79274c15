// Memory of weights.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rl {

// Large pages where it is large. Freed by rl_weight_free. Throws std::bad_alloc.
uint8_t* allocate(std::size_t bytes);

}  // namespace rl
