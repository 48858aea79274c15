// Attention over a tree of tokens, by blocks of 64 positions.
//
// For a row (one query head of one new token) the keys of positions [64 b, 64 b + 64) are block b.
// A block gives (max, sum of weights, weighted values), all in one fixed order; blocks are merged
// in order of position. So a row's bits depend on its own path alone: not on the nodes that the
// path is cut into, on rows computed with it, on chunks of a prefill, or on threads.
#pragma once

#include <cstdint>

extern "C" {

// The KV pool of one layer: planes [num_slots, num_kv_heads, head_dim] of one Dtype (simd.h), and
// where segments are quantised int8 planes of their own slots with a scale a token and head.
struct rl_layer_kv {
  void* k;
  void* v;
  const int8_t* k_int8;
  const int8_t* v_int8;
  const float* k_scale;
  const float* v_scale;
  int dtype;
};

// A checked TreeBatch (kernels/batch.py) with its segments' slots one after another.
struct rl_tree_batch {
  const int64_t* slot_offset;    // [num_segments + 1] into slots
  const int32_t* slots;
  const int32_t* parent;         // [num_segments], -1 for roots, parents first
  const int32_t* start;          // [num_segments] position of the first token
  const uint8_t* quantized;      // [num_segments] or null
  const int32_t* leaf;           // [num_branches] the private tail
  const int32_t* query_start;    // [num_branches] position of the first new token
  const int32_t* num_queries;    // [num_branches]
  int num_segments;
  int num_branches;
};

// How a layer attends: the fields of AttentionOptions (kernels/options.py), in its order.
struct rl_attention_options {
  float scale;         // of scores
  int64_t window;      // a row sees its own token and the window - 1 before; 0: all of them
  float soft_cap;      // 0: none
  const float* sinks;  // [num_heads] or null
};

struct rl_attention_plan;

// num_heads is a multiple of num_kv_heads, head_dim of 8. Freed by rl_attention_free; null without
// memory. A plan is used by one thread at a time.
rl_attention_plan* rl_attention_plan_new(const rl_tree_batch* batch, int num_heads,
                                         int num_kv_heads, int head_dim);
void rl_attention_free(rl_attention_plan* plan);

// Moves a pure decode on by one token a branch, new_slots [num_branches] in flat order. Returns a
// Status (guard.h), or 1 where a branch has more than one new token (nothing is changed then).
int rl_attention_advance(rl_attention_plan* plan, const int32_t* new_slots);

int rl_attention_num_rows(const rl_attention_plan* plan);             // new tokens
const int32_t* rl_attention_positions(const rl_attention_plan* plan); // [num_rows], flat order
const int32_t* rl_attention_new_slots(const rl_attention_plan* plan); // [num_rows], flat order

// From now on row i reads less than all of its path where no window bounds it: top_pages[i] blocks
// of 64 positions beside those that always count (the path's first, the row's own and the one
// before), or where top_mass[i] is above 0 blocks until the rest holds less than that share of the
// mass; both 0: all. [num_rows] in flat order. A Status.
int rl_attention_limit(rl_attention_plan* plan, const int32_t* top_pages, const double* top_mass);

// What limited rows have read since the last call, summed over layers and kv heads: blocks read,
// blocks there were, and a bound on the largest share of the mass that was missed. [num_rows] in
// flat order.
void rl_attention_take_tallies(rl_attention_plan* plan, int64_t* read, int64_t* all,
                               double* omitted);

// Which blocks a row of the last call reads for a kv head, [up to the row's own block + 1].
void rl_attention_chosen(const rl_attention_plan* plan, int flat_row, int kv_head,
                         uint8_t* chosen);

// Rounds k and v [num_rows, num_kv_heads, head_dim] to the pool's dtype, into the rows' slots. A
// Status.
int rl_store_kv(const rl_attention_plan* plan, const rl_layer_kv* layer, const float* k,
                 const float* v, int num_threads);

// q and out [num_rows, num_heads, head_dim] in flat order. A Status.
int rl_attend(rl_attention_plan* plan, const rl_layer_kv* layer, const float* q, float* out,
              const rl_attention_options* options, int num_threads);

}  // extern "C"

namespace rl {

// rl_attend for callers within the library. Throws std::bad_alloc.
void attend(rl_attention_plan& plan, const rl_layer_kv& layer, const float* q, float* out,
            const rl_attention_options& options, int num_threads);

}  // namespace rl
