#include "attention_plan.h"

#include <algorithm>
#include <numeric>

#include "attention_pages.h"

namespace rl {
namespace {

constexpr int kMostSchedules = 8;

// Builds the runs of a batch: every block belongs to the deepest segment that its last position
// is reached in, and is shared by all branches below that segment.
class Grouping {
 public:
  Grouping(const rl_tree_batch& batch, rl_attention_plan& plan) : batch_(batch), plan_(plan) {}

  void build() {
    rank_segments();
    run_of_.assign(batch_.num_segments, -1);
    left_.assign(batch_.num_segments, {});
    for (int segment : order_)
      if (count_[segment]) place(segment);
    rank_rows();
  }

 private:
  // Segments with parents first and siblings by their first branch, and the ranks below each.
  void rank_segments() {
    const int n = batch_.num_segments;
    count_.assign(n, 0);
    is_leaf_.assign(n, false);
    std::vector<int> least(n, batch_.num_branches);
    for (int branch = 0; branch < batch_.num_branches; ++branch) {
      const int leaf = batch_.leaf[branch];
      count_[leaf] = 1;
      is_leaf_[leaf] = true;
      least[leaf] = branch;
    }
    for (int s = n - 1; s >= 0; --s) {
      const int above = batch_.parent[s];
      if (above < 0) continue;
      count_[above] += count_[s];
      least[above] = std::min(least[above], least[s]);
    }
    order_.resize(n);
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int a, int b) { return least[a] < least[b]; });
    first_.assign(n, 0);
    std::vector<int> cursor(n + 1, 0);  // the last: below no segment
    for (int s : order_) {
      const int above = batch_.parent[s] < 0 ? n : batch_.parent[s];
      first_[s] = cursor[s] = cursor[above];
      cursor[above] += count_[s];
    }
  }

  // Gives a segment's complete blocks (a tail's last one too) to a run; the rest goes down.
  void place(int segment) {
    const int above = batch_.parent[segment], start = batch_.start[segment];
    const int64_t from = batch_.slot_offset[segment];
    const int length = int(batch_.slot_offset[segment + 1] - from), end = start + length;
    const bool quantized = batch_.quantized && batch_.quantized[segment];
    const bool is_leaf = is_leaf_[segment];
    const int pad = above < 0 ? start % kBlock : int(left_[above].size());
    const int complete = is_leaf ? pad + length : (pad + length) / kBlock * kBlock;
    int taken = 0;  // slots of this segment that are in a run
    run_of_[segment] = above < 0 ? -1 : run_of_[above];
    if (complete > 0) {
      Run& run = run_for(segment, start / kBlock);
      run.slots.reserve(run.slots.size() + complete + (is_leaf ? kBlock : 0));
      if (above < 0) run.slots.insert(run.slots.end(), pad, kNoSlot);
      else run.slots.insert(run.slots.end(), left_[above].begin(), left_[above].end());
      taken = complete - pad;
      append(run.slots, from, taken, quantized);
      run.end = start + taken;
      run.has_quantized |= std::any_of(run.slots.end() - complete, run.slots.end(),
                                       [](int32_t slot) { return slot < 0 && slot != kNoSlot; });
    }
    if (is_leaf) {
      plan_.tail[first_[segment]] = run_of_[segment];
      return;
    }
    std::vector<int32_t>& left = left_[segment];
    left.reserve(end % kBlock);
    if (!complete) {
      if (above < 0) left.assign(pad, kNoSlot);
      else left = left_[above];
    }
    append(left, from + taken, length - taken, quantized);
  }

  // The run that the blocks of a segment go to: the one above where no branch has left it.
  Run& run_for(int segment, int first_block) {
    const int above = run_of_[segment];
    if (above >= 0 && plan_.runs[above].rank_last - plan_.runs[above].rank_first == count_[segment])
      return plan_.runs[above];
    Run run;
    run.parent = above;
    run.first_block = first_block;
    run.begin = root_start(segment);
    run.rank_first = first_[segment];
    run.rank_last = first_[segment] + count_[segment];
    run_of_[segment] = int(plan_.runs.size());
    plan_.runs.push_back(std::move(run));
    return plan_.runs.back();
  }

  int root_start(int segment) const {
    if (run_of_[segment] >= 0) return plan_.runs[run_of_[segment]].begin;
    while (batch_.parent[segment] >= 0) segment = batch_.parent[segment];
    return batch_.start[segment];
  }

  void append(std::vector<int32_t>& slots, int64_t from, int count, bool quantized) const {
    if (!quantized) {
      slots.insert(slots.end(), batch_.slots + from, batch_.slots + from + count);
      return;
    }
    for (int i = 0; i < count; ++i) slots.push_back(~batch_.slots[from + i]);
  }

  void rank_rows() {
    const int n = batch_.num_branches;
    for (int branch = 0; branch < n; ++branch) plan_.branch_of[first_[batch_.leaf[branch]]] = branch;
    std::vector<int> flat_first(n + 1, 0);
    for (int b = 0; b < n; ++b) flat_first[b + 1] = flat_first[b] + batch_.num_queries[b];
    plan_.num_rows = flat_first[n];
    plan_.positions.resize(plan_.num_rows);
    plan_.new_slots.resize(plan_.num_rows);
    plan_.row_offset.assign(1, 0);
    for (int rank = 0; rank < n; ++rank) {
      const int branch = plan_.branch_of[rank], count = batch_.num_queries[branch];
      const int64_t last = batch_.slot_offset[batch_.leaf[branch] + 1];
      for (int i = 0; i < count; ++i) {
        const int flat = flat_first[branch] + i;
        plan_.flat_row.push_back(flat);
        plan_.row_position.push_back(batch_.query_start[branch] + i);
        plan_.positions[flat] = batch_.query_start[branch] + i;
        plan_.new_slots[flat] = batch_.slots[last - count + i];
      }
      plan_.row_offset.push_back(plan_.row_offset.back() + count);
    }
  }

  const rl_tree_batch& batch_;
  rl_attention_plan& plan_;
  std::vector<int> count_, first_, order_, run_of_;
  std::vector<char> is_leaf_;
  std::vector<std::vector<int32_t>> left_;  // slots behind the last complete block
};

// Shares the work of a call out, in tasks of about the same estimated cycles.
class Sharing {
 public:
  Sharing(const rl_attention_plan& plan, int window, int num_threads) : plan_(plan) {
    out_.window = window;
    out_.num_threads = num_threads;
    out_.parts.resize(plan.runs.size());
    const double width = plan.head_dim / 16.0;
    load_ = kBlock * width * 4;            // read, widen, transpose one block of one head
    row_ = kBlock * width + 100;           // one query head over it
    most_rows_ = std::max(64, 12288 / plan.head_dim);
  }

  Schedule build() {
    double total = 0;
    for (const Run& run : plan_.runs) total += cost_of(run);
    share_ = num_threads() > 1 ? std::max(kLeastCycles, total / (kTasksEach * num_threads())) : 1e18;
    for (int r = 0; r < int(plan_.runs.size()); ++r)
      if (!is_tail(r)) share_run(r);
    for (int rank = 0; rank < plan_.num_branches; ++rank) share_tail(rank);
    return std::move(out_);
  }

 private:
  static constexpr double kLeastCycles = 20000;  // about 10 µs
  static constexpr int kTasksEach = 4;           // for every thread
  static constexpr int kLeastRows = 24;          // query heads that are worth a block's loading

  int num_threads() const { return out_.num_threads; }
  bool is_tail(int r) const {
    const Run& run = plan_.runs[r];
    return run.rank_last - run.rank_first == 1 && plan_.tail[run.rank_first] == r;
  }
  int rows_of(const Run& run) const {
    return plan_.row_offset[run.rank_last] - plan_.row_offset[run.rank_first];
  }

  // First block of a run that any of the rows from row_first on sees.
  int first_seen(const Run& run, int row_first, int row_last) const {
    if (!out_.window) return 0;
    int least = INT32_MAX;
    for (int row = row_first; row < row_last; ++row)
      least = std::min(least, plan_.row_position[row]);
    const int block = (least - out_.window + 1) / kBlock - run.first_block;
    return std::clamp(block, 0, run.num_blocks());
  }

  double cost(int rows, int blocks) const {  // of one kv head
    return blocks * (load_ + double(rows) * plan_.group * row_);
  }
  double cost_of(const Run& run) const {
    const int first = plan_.row_offset[run.rank_first], last = plan_.row_offset[run.rank_last];
    return plan_.num_kv_heads * cost(last - first, run.num_blocks() - first_seen(run, first, last));
  }

  int most_tokens() const { return std::max(1, most_rows_ / plan_.group); }

  void keep(int r, bool folds, int num_blocks) {
    out_.parts[r] = {out_.num_records, folds};
    out_.num_records += int64_t(rows_of(plan_.runs[r])) * (folds ? 1 : num_blocks);
  }

  // A run above tails: cut by heads, then by rows, then by blocks.
  void share_run(int r) {
    const Run& run = plan_.runs[r];
    const int first = plan_.row_offset[run.rank_first], last = plan_.row_offset[run.rank_last];
    const int from = first_seen(run, first, last), blocks = run.num_blocks() - from;
    if (blocks <= 0) return keep(r, false, 0);
    const int wanted = int(std::min(1e6, cost(last - first, blocks) / share_)) + 1;  // for a head
    int tokens = std::min(most_tokens(), last - first);
    const int least = std::max(1, (kLeastRows + plan_.group - 1) / plan_.group);
    tokens = std::max(std::min(tokens, least), std::min(tokens, ceil(last - first, wanted)));
    const int pieces = ceil(last - first, tokens);
    tokens = ceil(last - first, pieces);
    const bool folds = run.parent < 0 && pieces * 3 >= wanted * 2;
    const int step = folds ? blocks : std::max(1, blocks * pieces / wanted);
    keep(r, folds, run.num_blocks());
    for (int block = from; block < run.num_blocks(); block += step)
      for (int row = first; row < last; row += tokens)
        for (int head = 0; head < plan_.num_kv_heads; ++head)
          out_.above.push_back({r, block, std::min(block + step, run.num_blocks()), row,
                                std::min(row + tokens, last), head, head + 1, folds});
  }

  // A branch's own blocks: tiles of rows that walk them, or few rows with the blocks done before.
  void share_tail(int rank) {
    const int r = plan_.tail[rank];
    const Run& run = plan_.runs[r];
    const int first = plan_.row_offset[rank], last = plan_.row_offset[rank + 1];
    const int from = first_seen(run, first, last), blocks = run.num_blocks() - from;
    const int wanted = int(std::min(1e6, cost(last - first, blocks) / share_)) + 1;
    const int least = std::max(1, kLeastRows / plan_.group);
    int tokens = std::min(most_tokens(), last - first);
    if (wanted > 1)
      tokens = std::max(std::min(tokens, least), std::min(tokens, ceil(last - first, wanted)));
    const int pieces = ceil(last - first, tokens);
    int left = from;
    if (wanted > 1 && pieces * 3 < wanted * 2 && blocks > 1) {
      share_blocks(r, from, first, last, std::max(1, blocks / wanted));
      left = run.num_blocks();
    }
    const double each = left == from ? cost(std::min(tokens, last - first), blocks) : 0;
    for (int row = last; row > first; row -= tokens)  // the longest first
      finish({r, left, run.num_blocks(), std::max(first, row - tokens), row, 0, 0, false}, each);
  }

  void share_blocks(int r, int from, int first, int last, int step) {
    const Run& run = plan_.runs[r];
    keep(r, false, run.num_blocks());
    const int tokens = most_tokens();
    for (int block = from; block < run.num_blocks(); block += step)
      for (int row = first; row < last; row += tokens)
        for (int head = 0; head < plan_.num_kv_heads; ++head)
          out_.above.push_back({r, block, std::min(block + step, run.num_blocks()), row,
                                std::min(row + tokens, last), head, head + 1, false});
  }

  void finish(Task task, double each) {
    const int heads = int(std::clamp(share_ / (each + row_), 1.0, double(plan_.num_kv_heads)));
    for (int head = 0; head < plan_.num_kv_heads; head += heads) {
      task.head_first = head;
      task.head_last = std::min(head + heads, plan_.num_kv_heads);
      out_.tails.push_back(task);
    }
  }

  static int ceil(int a, int b) { return (a + b - 1) / b; }

  const rl_attention_plan& plan_;
  Schedule out_;
  double load_, row_, share_ = 0;
  int most_rows_;
};

}  // namespace
}  // namespace rl

rl_attention_plan::rl_attention_plan(const rl_tree_batch& batch, int heads, int kv_heads, int dim)
    : num_heads(heads), num_kv_heads(kv_heads), head_dim(dim), group(heads / kv_heads),
      num_branches(batch.num_branches) {
  tail.resize(num_branches);
  branch_of.resize(num_branches);
  rl::Grouping(batch, *this).build();
}

rl_attention_plan::~rl_attention_plan() = default;

bool rl_attention_plan::advance(const int32_t* slots) {
  if (num_rows != num_branches) return false;
  bool is_same = true;  // blocks to share out; a window's may then begin before what is seen
  for (int rank = 0; rank < num_branches; ++rank) {
    rl::Run& run = runs[tail[rank]];
    const int32_t slot = slots[branch_of[rank]];
    is_same &= run.slots.size() % rl::kBlock != 0;
    run.slots.push_back(slot);
    run.end += 1;
    row_position[rank] += 1;
    positions[branch_of[rank]] += 1;
    new_slots[branch_of[rank]] = slot;
  }
  if (!is_same) schedules_.clear();
  return true;
}

const rl::Schedule& rl_attention_plan::schedule(int window, int num_threads) {
  for (const rl::Schedule& known : schedules_)
    if (known.window == window && known.num_threads == num_threads) return known;
  if (int(schedules_.size()) == rl::kMostSchedules) schedules_.clear();
  schedules_.push_back(rl::Sharing(*this, window, num_threads).build());
  return schedules_.back();
}
