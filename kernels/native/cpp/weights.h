// Memory of weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "products.h"

namespace rl {

// Large pages where it is large. Freed by rl_weight_free. Throws std::bad_alloc.
uint8_t* allocate(std::size_t bytes);

// The weight as rl_weight_free takes it; its memory is freed where there is none for it.
Weight* on_heap(const Weight& weight);

}  // namespace rl
