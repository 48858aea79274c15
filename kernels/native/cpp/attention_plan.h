// What attention reads for one forest: runs of blocks with the same rows, and tasks to share out.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention.h"

namespace rl {

class PageReading;

constexpr int kBlock = 64;               // positions
constexpr int32_t kNoSlot = INT32_MIN;   // in front of a root that starts inside a block

// A stretch of blocks that the same branches share. A slot of the int8 planes is written as ~slot.
struct Run {
  int parent;        // the run above, -1 for none
  int first_block;   // number of its first block by position
  int begin, end;    // positions of the path's first key, and one past the last of this run
  int rank_first, rank_last;  // branches, depth first
  bool has_quantized = false;
  std::vector<int32_t> slots;  // from position 64 first_block up to `end`

  int num_blocks() const { return (int(slots.size()) + kBlock - 1) / kBlock; }
};

// Rows [row_first, row_last) (new tokens, branches depth first) over blocks of one run, for the
// query heads of kv heads [head_first, head_last).
struct Task {
  int run;
  int block_first, block_last;  // within the run; for a tail, what is left for it to walk
  int row_first, row_last;
  int head_first, head_last;
  bool folds;  // leaves one state of all its blocks, not a partial for each
};

// Where the results of a run's blocks lie in the workspace.
struct Parts {
  int64_t base = -1;  // first record; -1: the run's rows walk it themselves
  bool folds = false;
};

// How one call shares out its work: first `above`, then `tails`, which finish rows.
struct Schedule {
  int window = 0, num_threads = 0;
  std::vector<Task> above, tails;
  std::vector<Parts> parts;  // by run
  int64_t num_records = 0;   // of one query head
};

}  // namespace rl

struct rl_attention_plan {
  rl_attention_plan(const rl_tree_batch& batch, int num_heads, int num_kv_heads, int head_dim);
  ~rl_attention_plan();
  bool advance(const int32_t* new_slots);
  const rl::Schedule& schedule(int window, int num_threads);

  int num_heads, num_kv_heads, head_dim, group;
  int num_rows = 0, num_branches = 0;
  std::vector<rl::Run> runs;           // parents first
  std::vector<int> tail;               // [rank] run of the branch's own blocks
  std::vector<int> row_offset;         // [rank + 1] first row of each branch, depth first
  std::vector<int> branch_of;          // [rank] flat branch
  std::vector<int32_t> flat_row;       // [row] place in q and out
  std::vector<int32_t> row_position;   // [row]
  std::vector<int32_t> positions, new_slots;  // in flat order
  std::unique_ptr<rl::PageReading> pages;     // null: every row reads all of its path

 private:
  std::vector<rl::Schedule> schedules_;  // of windows and numbers of threads met
};
