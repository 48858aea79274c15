// Tasks of attention: tiles of rows over blocks, what they leave behind, and how rows are finished.
#include "attention.h"

#include <limits>

#include "attention_load.h"
#include "attention_pages.h"
#include "attention_tile.h"
#include "guard.h"
#include "team.h"

namespace rl {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

int up(int x, int to) { return (x + to - 1) / to * to; }

// One call of rl_attend.
struct Call {
  const rl_attention_plan& plan;
  const Schedule& schedule;
  const rl_layer_kv& layer;
  const float* q;
  float* out;
  const rl_attention_options& options;
  const PageReading* pages;  // null: every row reads all that it may see
  int width;       // head_dim up to whole vectors
  float* records;  // of parts: values [width], max, sum

  int record_floats() const { return width + 16; }
  // Of block `block` of a run, new token `row` and query head 0.
  float* record(int run, int block, int row) const {
    const Parts& parts = schedule.parts[run];
    const int first = plan.row_offset[plan.runs[run].rank_first];
    const int rows = plan.row_offset[plan.runs[run].rank_last] - first;
    const int64_t index = parts.base + (parts.folds ? 0 : int64_t(block) * rows) + row - first;
    return records + index * plan.num_heads * record_floats();
  }
};

// Bump allocation from a thread's scratch memory.
struct Carver {
  float* next;
  float* take(int count) {
    float* at = next;
    next += up(count, 16);
    return at;
  }
};

// Query heads of some new tokens for one kv head, with the memory that their blocks need.
class Tile {
 public:
  Tile(const Call& call, int row_first, int row_last, int head)
      : call_(call), plan_(call.plan), row_first_(row_first), head_(head),
        rows_((row_last - row_first) * plan_.group),
        kv_(call.layer, plan_.num_kv_heads, head, plan_.head_dim) {
    const int dim = plan_.head_dim, width = call.width, padded = up(rows_, 16) + 16;
    const int seen_floats = padded * int(sizeof(Seen) / sizeof(float));
    const int sizes[] = {rows_ * dim, dim * kBlock, kBlock * width, kBlock * dim, dim,
                         kTile * kBlock, kTile * width, padded, padded, rows_ * width,
                         seen_floats};
    size_t total = 0;
    for (int size : sizes) total += up(size, 16);
    Carver carver{scratch<float>(0, total)};
    q_ = carver.take(rows_ * dim);
    keys_ = carver.take(dim * kBlock);
    values_ = carver.take(kBlock * width);
    staging_ = carver.take(kBlock * dim);
    zeros_ = carver.take(dim);
    scores_ = carver.take(kTile * kBlock);
    result_ = carver.take(kTile * width);
    state_.max = carver.take(padded);
    state_.sum = carver.take(padded);
    state_.values = carver.take(rows_ * width);
    seen_ = reinterpret_cast<Seen*>(carver.take(seen_floats));
    read_queries();
    std::fill(zeros_, zeros_ + dim, 0.0f);
    for (int key = 0; width > dim && key < kBlock; ++key)
      std::fill(values_ + key * width + dim, values_ + (key + 1) * width, 0.0f);
  }

  void start() {
    std::fill(state_.max, state_.max + rows_, kLowest);
    std::fill(state_.sum, state_.sum + rows_, 0.0f);
    std::fill(state_.values, state_.values + rows_ * call_.width, 0.0f);
  }

  // Merges blocks [first, last) of a run into the state.
  void fold(int r, int first, int last) {
    each_block(r, first, last, [&](int, int row, int count, const float* max, const float* sum) {
      State state = state_at(row);
      merge_rows(count, seen_ + row, max, sum, result_, call_.width, call_.width, state);
    });
  }

  // Leaves the result of each of these blocks in its records.
  void leave_parts(int r, int first, int last) {
    each_block(r, first, last, [&](int block, int row, int count, const float* max,
                                   const float* sum) {
      for (int i = 0; i < count; ++i)
        if (seen_[row + i].any())
          write_record(record_of(r, block, row + i), result_ + i * call_.width, max[i], sum[i]);
    });
  }

  void leave_state(int r) {
    for (int row = 0; row < rows_; ++row)
      write_record(record_of(r, 0, row), state_.values + row * call_.width, state_.max[row],
                   state_.sum[row]);
  }

  // Merges what tasks have left of a run's blocks.
  void fold_records(int r, int from) {
    const Parts& parts = call_.schedule.parts[r];
    const Run& run = plan_.runs[r];
    if (parts.folds) return take_state(r);
    const int width = call_.width, stride = call_.record_floats();
    for (int block = from; block < run.num_blocks(); ++block) {
      see(run, block);
      for (int token = 0; token < rows_; token += plan_.group) {
        if (!seen_[token].any()) continue;
        for (int row = token; row < token + plan_.group; row += 16) {
          const int count = std::min(16, token + plan_.group - row);
          const float* record = record_of(r, block, row);
          float max[16], sum[16];
          for (int i = 0; i < count; ++i) {
            max[i] = record[i * stride + width];
            sum[i] = record[i * stride + width + 1];
          }
          merge_rows(count, seen_ + row, max, sum, record, width, stride, state_at(row));
        }
      }
    }
  }

  // Divides by the sums of weights, sinks among them, and writes rows to their places.
  void finish() {
    const int dim = plan_.head_dim;
    for (int row = 0; row < rows_; ++row) {
      F16 keep = set1(1.0f), total = set1(state_.sum[row]);
      if (call_.options.sinks) {
        const F16 sink = set1(call_.options.sinks[head_of(row)]), own = set1(state_.max[row]);
        const F16 top = max(own, sink);
        keep = exp(sub(own, top));
        total = fma(total, keep, exp(sub(sink, top)));
      }
      float* to = call_.out + place_of(row);
      const float* from = state_.values + row * call_.width;
      for (int c = 0; c < dim; c += 16)
        store_n(to + c, div(mul(load(from + c), keep), total), dim - c);
    }
  }

 private:
  int head_of(int row) const { return head_ * plan_.group + row % plan_.group; }
  int64_t place_of(int row) const {
    const int64_t flat = plan_.flat_row[row_first_ + row / plan_.group];
    return (flat * plan_.num_heads + head_of(row)) * plan_.head_dim;
  }
  float* record_of(int r, int block, int row) const {
    return call_.record(r, block, row_first_ + row / plan_.group) +
           int64_t(head_of(row)) * call_.record_floats();
  }
  void write_record(float* record, const float* values, float max, float sum) const {
    std::memcpy(record, values, call_.width * sizeof(float));
    record[call_.width] = max;
    record[call_.width + 1] = sum;
  }
  State state_at(int row) const {
    return {state_.max + row, state_.sum + row, state_.values + row * call_.width};
  }

  void read_queries() {
    const int dim = plan_.head_dim;
    for (int row = 0; row < rows_; row += plan_.group)
      std::memcpy(q_ + row * dim, call_.q + place_of(row), plan_.group * dim * sizeof(float));
  }

  void take_state(int r) {
    for (int row = 0; row < rows_; ++row) {
      const float* record = record_of(r, 0, row);
      std::memcpy(state_.values + row * call_.width, record, call_.width * sizeof(float));
      state_.max[row] = record[call_.width];
      state_.sum[row] = record[call_.width + 1];
    }
  }

  // What every row sees of a block; returns what any of them does.
  Seen see(const Run& run, int block) {
    const int start = (run.first_block + block) * kBlock;
    const int begin = run.begin - start, end = std::min(run.end - start, kBlock);
    const int window = int(call_.options.window);
    Seen any{kBlock, 0};
    for (int row = 0; row < rows_; row += plan_.group) {
      const int own = plan_.row_position[row_first_ + row / plan_.group] - start;
      int first = std::max(begin, 0);
      if (window) first = std::max(first, own - window + 1);
      Seen seen{first, std::min(own + 1, end)};
      if (call_.pages && !call_.pages->reads(row_first_ + row / plan_.group, head_,
                                             run.first_block + block))
        seen = {0, 0};
      std::fill(seen_ + row, seen_ + row + plan_.group, seen.any() ? seen : Seen{0, 0});
      if (!seen.any()) continue;
      any.first = std::min(any.first, seen.first);
      any.last = std::max(any.last, seen.last);
    }
    return any;
  }

  // Rows for which values are widened where they are used, which costs less than storing them.
  int most_in_place() const { return (plan_.head_dim >= 128 ? 4 : 2) * kTile; }

  // done(block, row, count, max, sum) for every few rows, whose values are then in result_.
  template <class Done>
  void each_block(int r, int first, int last, const Done& done) {
    const Run& run = plan_.runs[r];
    for (int block = first; block < last; ++block) {
      const Seen any = see(run, block);
      if (!any.any()) continue;
      const int32_t* slots = run.slots.data() + block * kBlock;
      load_keys(kv_, slots, any.first, any.last, run.has_quantized, staging_, zeros_, keys_);
      const bool reads_pool = rows_ <= most_in_place() && call_.layer.dtype == kBFloat16 &&
                              !run.has_quantized && call_.width == plan_.head_dim;
      if (!reads_pool)
        load_values(kv_, slots, any.first, any.last, run.has_quantized, call_.width, values_);
      for (int row = 0; row < rows_; row += kTile) {
        const int count = std::min(kTile, rows_ - row);
        float max[16], sum[16];
        if (compute(row, count, reads_pool ? slots : nullptr, max, sum))
          done(block, row, count, max, sum);
      }
    }
  }

  // Rows [row, row + count) over the loaded block; false where none of them sees it.
  bool compute(int row, int count, const int32_t* pool_slots, float* max, float* sum) {
    Seen any{kBlock, 0};
    for (int i = 0; i < count; ++i) {
      if (!seen_[row + i].any()) continue;
      any.first = std::min(any.first, seen_[row + i].first);
      any.last = std::max(any.last, seen_[row + i].last);
    }
    if (!any.any()) return false;
    compute_count<kTile>(count, row, any, pool_slots, max, sum);
    return true;
  }

  // compute_rows of the number of rows that is known when it runs.
  template <int MOST>
  void compute_count(int count, int row, Seen any, const int32_t* pool_slots, float* max,
                     float* sum) {
    if constexpr (MOST > 1)
      if (count < MOST) return compute_count<MOST - 1>(count, row, any, pool_slots, max, sum);
    compute_rows<MOST>(row, any, pool_slots, max, sum);
  }

  template <int ROWS>
  void compute_rows(int row, Seen any, const int32_t* pool_slots, float* max, float* sum) {
    const int dim = plan_.head_dim, width = call_.width;
    const Seen* seen = seen_ + row;
    score_block<ROWS>(q_ + row * dim, dim, WideKeys{keys_}, any.first / 16, (any.last + 15) / 16,
                      scores_);
    for (int i = 0; i < ROWS; ++i)
      if (seen[i].any()) weigh(scores_ + i * kBlock, seen[i], call_.options, max + i, sum + i);
    if (pool_slots) {
      const int64_t row_bytes = int64_t(plan_.num_kv_heads) * dim * bytes_of(kBFloat16);
      const PoolValues<kBFloat16> values{kv_.at(call_.layer.v, 0), pool_slots, row_bytes};
      weigh_values<ROWS>(scores_, seen, values, result_, width);
    } else {
      weigh_values<ROWS>(scores_, seen, WideValues{values_, width}, result_, width);
    }
  }

  const Call& call_;
  const rl_attention_plan& plan_;
  const int row_first_, head_, rows_;
  const HeadKV kv_;
  float *q_, *keys_, *values_, *staging_, *zeros_, *scores_, *result_;
  State state_;
  Seen* seen_;
};

void do_above(const Call& call, const Task& task) {
  for (int head = task.head_first; head < task.head_last; ++head) {
    Tile tile(call, task.row_first, task.row_last, head);
    if (!task.folds) {
      tile.leave_parts(task.run, task.block_first, task.block_last);
      continue;
    }
    tile.start();
    tile.fold(task.run, task.block_first, task.block_last);
    tile.leave_state(task.run);
  }
}

void do_tail(const Call& call, const Task& task, const int* above, int num_above) {
  for (int head = task.head_first; head < task.head_last; ++head) {
    Tile tile(call, task.row_first, task.row_last, head);
    tile.start();
    for (int i = num_above - 1; i >= 0; --i) tile.fold_records(above[i], 0);
    if (call.schedule.parts[task.run].base >= 0) tile.fold_records(task.run, 0);
    tile.fold(task.run, task.block_first, task.block_last);
    tile.finish();
  }
}

// Runs above one, nearest first.
void do_tail(const Call& call, const Task& task) {
  const std::vector<Run>& runs = call.plan.runs;
  constexpr int kNear = 64;
  int near[kNear], count = 0;
  std::vector<int> deep;
  for (int r = runs[task.run].parent; r >= 0; r = runs[r].parent) {
    if (count < kNear) near[count++] = r;
    else {
      if (deep.empty()) deep.assign(near, near + kNear);
      deep.push_back(r);
    }
  }
  if (deep.empty()) do_tail(call, task, near, count);
  else do_tail(call, task, deep.data(), int(deep.size()));
}

}  // namespace

void attend(rl_attention_plan& plan, const rl_layer_kv& layer, const float* q, float* out,
            const rl_attention_options& options, int num_threads) {
  const Schedule& schedule = plan.schedule(int(options.window), num_threads);
  const int width = up(plan.head_dim, 16);
  PageReading* pages = plan.pages.get();
  if (pages && options.window) pages->count_all(int(options.window));
  else if (pages) pages->choose(layer, q, options, num_threads);
  Call call{plan, schedule, layer, q, out, options, options.window ? nullptr : pages, width,
            nullptr};
  call.records = scratch<float>(1, schedule.num_records * plan.num_heads * call.record_floats());
  parallel_for(num_threads, int(schedule.above.size()),
               [&](int i, int) { do_above(call, schedule.above[i]); });
  parallel_for(num_threads, int(schedule.tails.size()),
               [&](int i, int) { do_tail(call, schedule.tails[i]); });
}

namespace {

void store_kv(const rl_attention_plan& plan, const rl_layer_kv& layer, const float* k,
              const float* v, int num_threads) {
  const int rows = plan.num_rows, count = plan.num_kv_heads * plan.head_dim;
  constexpr int kRows = 32;
  const auto store_row = [&](const float* from, void* plane, int64_t slot) {
    int i = 0;
    for (; i + 16 <= count; i += 16)
      store_as(layer.dtype, plane, slot * count + i, load(from + i));
    if (i == count) return;
    alignas(64) char last[64];  // 8 more: one kv head of an odd multiple of 8
    store_as(layer.dtype, last, 0, load_n(from + i, 8));
    const int bytes = bytes_of(layer.dtype);
    std::memcpy(static_cast<char*>(plane) + (slot * count + i) * bytes, last, 8 * bytes);
  };
  parallel_for(num_threads, (rows + kRows - 1) / kRows, [&](int piece, int) {
    for (int row = piece * kRows; row < std::min(rows, (piece + 1) * kRows); ++row) {
      store_row(k + int64_t(row) * count, layer.k, plan.new_slots[row]);
      store_row(v + int64_t(row) * count, layer.v, plan.new_slots[row]);
    }
  });
}

}  // namespace

}  // namespace rl

rl_attention_plan* rl_attention_plan_new(const rl_tree_batch* batch, int num_heads,
                                         int num_kv_heads, int head_dim) {
  return rl::made([&] { return new rl_attention_plan(*batch, num_heads, num_kv_heads, head_dim); });
}

void rl_attention_free(rl_attention_plan* plan) { delete plan; }

int rl_attention_advance(rl_attention_plan* plan, const int32_t* new_slots) {
  return rl::guarded([&] { return plan->advance(new_slots) ? 0 : 1; });
}

int rl_attention_num_rows(const rl_attention_plan* plan) { return plan->num_rows; }

const int32_t* rl_attention_positions(const rl_attention_plan* plan) {
  return plan->positions.data();
}

const int32_t* rl_attention_new_slots(const rl_attention_plan* plan) {
  return plan->new_slots.data();
}

int rl_attention_limit(rl_attention_plan* plan, const int32_t* top_pages,
                       const double* top_mass) {
  return rl::guarded([&] {
    std::vector<rl::PageLimit> limits(plan->num_rows);
    for (int row = 0; row < plan->num_rows; ++row) {
      const int32_t flat = plan->flat_row[row];
      limits[row] = {top_pages[flat], top_mass[flat]};
    }
    plan->pages = std::make_unique<rl::PageReading>(*plan, std::move(limits));
  });
}

void rl_attention_take_tallies(rl_attention_plan* plan, int64_t* read, int64_t* all,
                               double* omitted) {
  for (int row = 0; row < plan->num_rows; ++row) {
    const rl::PageTally& tally = plan->pages->tally(row);
    const int32_t flat = plan->flat_row[row];
    read[flat] = tally.read;
    all[flat] = tally.all;
    omitted[flat] = tally.omitted;
  }
  plan->pages->clear_tallies();
}

void rl_attention_chosen(const rl_attention_plan* plan, int flat, int head, uint8_t* chosen) {
  int row = 0;
  while (plan->flat_row[row] != flat) ++row;
  for (int block = plan->pages->first_block(row); block <= plan->pages->own_block(row); ++block)
    chosen[block] = plan->pages->reads(row, head, block);
}

int rl_attend(rl_attention_plan* plan, const rl_layer_kv* layer, const float* q, float* out,
              const rl_attention_options* options, int num_threads) {
  return rl::guarded([&] { rl::attend(*plan, *layer, q, out, *options, num_threads); });
}

int rl_store_kv(const rl_attention_plan* plan, const rl_layer_kv* layer, const float* k,
                const float* v, int num_threads) {
  return rl::guarded([&] { rl::store_kv(*plan, *layer, k, v, num_threads); });
}
