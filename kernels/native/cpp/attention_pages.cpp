// Envelopes of blocks, the mass that they bound, and the choice of what is read.
#include "attention_pages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "attention_load.h"
#include "team.h"

namespace rl {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr int kLevels = 127;            // the largest code
constexpr float kFlat = 1e-30f;
constexpr float kRounding = 1.0f / (1 << 24);
constexpr float kSumError = 1e-4f;      // of exponentials and their sums, in any order
constexpr int kBlocksATask = 8;
constexpr int kNewest = 2;              // blocks that always count: a row's own and the one before

int padded(int x) { return (x + 15) / 16 * 16; }

// Boxes of one head's keys, which are loaded: [dim][64].
void enclose(const float* keys, int dim, float* middle, float* step, float* radius,
             int8_t* codes) {
  for (int d = 0; d < dim; ++d, keys += kBlock, codes += kBlock) {
    float most = keys[0], least = keys[0];
    for (int key = 1; key < kBlock; ++key) {
      most = std::max(most, keys[key]);
      least = std::min(least, keys[key]);
    }
    middle[d] = 0.5f * (most + least);
    step[d] = (most - least) / (2 * kLevels);
    const bool is_flat = step[d] < kFlat;  // all of its keys have the code 0
    const float inverse = is_flat ? 0.0f : 1 / step[d];
    for (int key = 0; key < kBlock; key += 16) {
      const F16 offset = mul(sub(load(keys + key), set1(middle[d])), set1(inverse));
      const F16 code = min(max(offset, set1(-kLevels)), set1(kLevels));
      store_i8(codes + key, round_to_int(code));
    }
    // Half a step, and what float32 may round: of the code's value, of a sum over the channels by
    // codes, and of the same sum by the keys themselves.
    const float size = std::max(std::abs(most), std::abs(least));
    radius[d] = (is_flat ? kLevels : 0.502f) * step[d] + (4 * dim + 16) * kRounding * size;
  }
}

// Codes of a block as floats, a vector of 16 keys of one channel.
struct CodedKeys {
  const int8_t* base;
  RL_INLINE F16 operator()(int d, int v) const {
    return to_float(load_i8(base + d * kBlock + 16 * v));
  }
  CodedKeys from(int key) const { return {base + key}; }
};

// Query heads of one new token over one block.
class BlockScores {
 public:
  BlockScores(const rl_attention_plan& plan, const rl_attention_options& options)
      : plan_(plan), options_(options), dim_(plan.head_dim) {
    const int sizes[] = {plan.group * dim_, kTile * kBlock, dim_ * kBlock, kBlock * dim_, dim_};
    size_t total = 0;
    for (int size : sizes) total += padded(size);
    float* at = scratch<float>(0, total);
    const auto take = [&](int count) { return std::exchange(at, at + padded(count)); };
    steps_ = take(sizes[0]);
    scores_ = take(sizes[1]);
    keys_ = take(sizes[2]);
    staging_ = take(sizes[3]);
    zeros_ = take(sizes[4]);
    std::fill(zeros_, zeros_ + dim_, 0.0f);
  }

  // The keys of a block, for `exact`.
  void load(const HeadKV& kv, const int32_t* slots, int first, int last, bool quantized) {
    load_keys(kv, slots, first, last, quantized, staging_, zeros_, keys_);
  }
  const float* keys() const { return keys_; }

  // By the block's envelope, of which every key is seen. q [group][dim].
  void bounded(const float* q, Envelope& envelope, int head, BlockMass* const* out) {
    const float *middle = envelope.middle(head), *step = envelope.step(head);
    const float* radius = envelope.radius(head);
    for (int i = 0; i < plan_.group * dim_; ++i) steps_[i] = q[i] * step[i % dim_];
    const CodedKeys codes{envelope.codes(head)};
    each_tile(steps_, codes, {0, kBlock}, [&](int row, float* scores) {
      const float* query = q + row * dim_;
      const float offset = dot(query, middle);
      for (int v = 0; v < kBlock; v += 16)
        store(scores + v, add(rl::load(scores + v), set1(offset)));
      out[row]->error = std::abs(options_.scale) * dot_of_sizes(query, radius) + kSumError;
      weigh(scores, {0, kBlock}, options_, &out[row]->max, &out[row]->sum);
    });
  }

  // By the keys that were loaded, of which `seen` are seen.
  void exact(const float* q, Seen seen, BlockMass* const* out) {
    each_tile(q, WideKeys{keys_}, seen, [&](int row, float* scores) {
      out[row]->error = kSumError;
      weigh(scores, seen, options_, &out[row]->max, &out[row]->sum);
    });
  }

 private:
  float dot(const float* a, const float* b) const {
    F16 total = zero();
    for (int d = 0; d < dim_; d += 16)
      total = fma(load_n(a + d, std::min(16, dim_ - d)), load_n(b + d, std::min(16, dim_ - d)),
                  total);
    return sum(total);
  }
  float dot_of_sizes(const float* a, const float* b) const {
    F16 total = zero();
    for (int d = 0; d < dim_; d += 16)
      total = fma(abs(load_n(a + d, std::min(16, dim_ - d))),
                  load_n(b + d, std::min(16, dim_ - d)), total);
    return sum(total);
  }

  template <class Keys, class Done>
  void each_tile(const float* rows, const Keys& keys, Seen seen, const Done& done) {
    for (int row = 0; row < plan_.group; row += kTile) {
      const int count = std::min(kTile, plan_.group - row);
      score_count<kTile>(count, rows + row * dim_, keys, seen);
      for (int i = 0; i < count; ++i) done(row + i, scores_ + i * kBlock);
    }
  }

  template <int MOST, class Keys>
  void score_count(int count, const float* rows, const Keys& keys, Seen seen) {
    if constexpr (MOST > 1)
      if (count < MOST) return score_count<MOST - 1>(count, rows, keys, seen);
    score_block<MOST>(rows, dim_, keys, seen.first / 16, (seen.last + 15) / 16, scores_);
  }

  const rl_attention_plan& plan_;
  const rl_attention_options& options_;
  const int dim_;
  float *steps_, *scores_, *keys_, *staging_, *zeros_;
};

// The choice of one new token and kv head, from the masses of its path's blocks.
class Choice {
 public:
  Choice(int first, int own, PageLimit limit, uint8_t* chosen)
      : first_(first), count_(own - first + 1), limit_(limit), chosen_(chosen + first) {
    std::fill(chosen_, chosen_ + count_, uint8_t(0));
    chosen_[0] = 1;
    for (int i = 0; i < kNewest && i < count_; ++i) chosen_[count_ - 1 - i] = 1;
    for (int block = 0; block < count_; ++block)
      if (!chosen_[block]) left_.push_back(block);
    shares_.assign(count_, 0.0);
  }

  // Takes in one query head; its sink's logit is -inf where it has none.
  void add(const BlockMass* masses, float sink) {
    masses += first_;
    Head head = weigh_blocks(masses, sink);
    if (limit_.top_mass > 0) choose_mass(head);
    else share(head);
    heads_.push_back(std::move(head));
  }

  PageTally finish() {
    if (limit_.top_pages > 0) choose_pages();
    PageTally tally;
    tally.all = count_;
    for (int block = 0; block < count_; ++block) tally.read += chosen_[block];
    for (const Head& head : heads_) {
      double missed = 0, held = head.sink;
      for (int block = 0; block < count_; ++block) {
        if (chosen_[block]) held += head.least[block];
        else missed += head.most[block];
      }
      tally.omitted = std::max(tally.omitted, missed / (missed + held));
    }
    return tally;
  }

 private:
  struct Head {
    std::vector<float> most, least;  // of each block, relative to the largest
    double sink;
  };

  Head weigh_blocks(const BlockMass* masses, float sink) const {
    Head head;
    float top = sink;
    for (int block = 0; block < count_; ++block)
      top = std::max(top, masses[block].max + masses[block].error);
    std::vector<float> errors(padded(count_)), maxima(padded(count_), kLowest);
    for (int block = 0; block < count_; ++block) {
      maxima[block] = masses[block].max - top;
      errors[block] = masses[block].error;
    }
    head.most.resize(padded(count_));
    head.least.resize(padded(count_));
    for (int block = 0; block < count_; block += 16) {
      const F16 max = load(maxima.data() + block), error = load(errors.data() + block);
      store(head.most.data() + block, exp(rl::add(max, error)));
      store(head.least.data() + block, exp(sub(max, error)));
    }
    for (int block = 0; block < count_; ++block) {
      head.most[block] *= masses[block].sum;
      head.least[block] *= masses[block].sum;
    }
    float alone[16] = {};
    store(alone, exp(set1(sink - top)));
    head.sink = alone[0];
    return head;
  }

  // Blocks in order of the most that they may hold, until the rest is below the share.
  void choose_mass(const Head& head) {
    std::vector<int> order = left_;
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      return head.most[a] != head.most[b] ? head.most[a] > head.most[b] : a < b;
    });
    std::vector<double> rest(order.size() + 1, 0.0);  // of those from each on
    for (int i = int(order.size()) - 1; i >= 0; --i) rest[i] = rest[i + 1] + head.most[order[i]];
    double held = head.sink;
    for (int block = 0; block < count_; ++block)
      if (!std::binary_search(left_.begin(), left_.end(), block)) held += head.least[block];
    const double share = limit_.top_mass / (1 - limit_.top_mass);
    for (size_t i = 0; i < order.size() && rest[i] > share * held; ++i) {
      chosen_[order[i]] = 1;
      held += head.least[order[i]];
    }
  }

  void share(const Head& head) {
    double total = 0;
    for (int block = 0; block < count_; ++block) total += head.most[block];
    for (int block = 0; block < count_; ++block) shares_[block] += head.most[block] / total;
  }

  void choose_pages() {
    std::vector<int> order = left_;
    const size_t count = std::min(order.size(), size_t(limit_.top_pages));
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int a, int b) {
      return shares_[a] != shares_[b] ? shares_[a] > shares_[b] : a < b;
    });
    for (size_t i = 0; i < count; ++i) chosen_[order[i]] = 1;
  }

  const int first_, count_;
  const PageLimit limit_;
  uint8_t* chosen_;            // [block] of the path
  std::vector<int> left_;      // blocks that do not always count, ascending
  std::vector<double> shares_; // of the heads together
  std::vector<Head> heads_;
};

}  // namespace

PageReading::PageReading(const rl_attention_plan& plan, std::vector<PageLimit> limits)
    : plan_(plan), limits_(std::move(limits)), rows_of_(plan.runs.size()) {
  clear_tallies();
  for (int rank = 0; rank < plan.num_branches; ++rank) {
    const Run& tail = plan.runs[plan.tail[rank]];
    for (int row = plan.row_offset[rank]; row < plan.row_offset[rank + 1]; ++row)
      first_block_.push_back(tail.begin / kBlock);
  }
  for (size_t r = 0; r < plan.runs.size(); ++r) {
    const Run& run = plan.runs[r];
    for (int row = plan.row_offset[run.rank_first]; row < plan.row_offset[run.rank_last]; ++row)
      if (limits_[row].any()) rows_of_[r].push_back(row);
  }
}

void PageReading::choose(const rl_layer_kv& layer, const float* q,
                         const rl_attention_options& options, int num_threads) {
  const int rows = int(limits_.size()), kv_heads = plan_.num_kv_heads;
  stride_ = 0;
  for (int row = 0; row < rows; ++row) stride_ = std::max(stride_, own_block(row) + 1);
  masses_.resize(size_t(rows) * plan_.num_heads * stride_);
  chosen_.resize(size_t(rows) * kv_heads * stride_);
  counts_.assign(size_t(rows) * kv_heads, PageTally());
  Envelopes& envelopes = envelopes_[layer.k];
  extend(layer, envelopes, num_threads);
  measure(layer, envelopes, q, options, num_threads);
  parallel_for(num_threads, rows * kv_heads, [&](int item, int) {
    const int row = item / kv_heads, head = item % kv_heads;
    if (!limits_[row].any()) return;
    Choice choice(first_block_[row], own_block(row), limits_[row],
                  chosen_.data() + chosen_at(row, head));
    for (int h = head * plan_.group; h < (head + 1) * plan_.group; ++h)
      choice.add(masses_of(row, h), options.sinks ? options.sinks[h] : kLowest);
    counts_[item] = choice.finish();
  });
  for (int item = 0; item < rows * kv_heads; ++item) {
    PageTally& tally = tallies_[item / kv_heads];
    tally.read += counts_[item].read;
    tally.all += counts_[item].all;
    tally.omitted = std::max(tally.omitted, counts_[item].omitted);
  }
}

void PageReading::count_all(int window) {
  for (size_t row = 0; row < limits_.size(); ++row) {
    if (!limits_[row].any()) continue;
    const int last = plan_.row_position[row];
    const int first = std::max(first_block_[row], std::max(0, last - window + 1) / kBlock);
    const int64_t count = int64_t(last / kBlock - first + 1) * plan_.num_kv_heads;
    tallies_[row].read += count;
    tallies_[row].all += count;
  }
}

// Builds the envelopes of blocks that have become whole.
void PageReading::extend(const rl_layer_kv& layer, Envelopes& envelopes, int num_threads) {
  struct Missing {
    int run, block;
    std::unique_ptr<Envelope> envelope;
  };
  std::vector<Missing> missing;
  envelopes.resize(plan_.runs.size());
  for (int r = 0; r < int(plan_.runs.size()); ++r) {
    const Run& run = plan_.runs[r];
    if (rows_of_[r].empty()) continue;
    for (int block = int(envelopes[r].size()); block < int(run.slots.size()) / kBlock; ++block)
      missing.push_back(
          {r, block, std::make_unique<Envelope>(plan_.num_kv_heads, plan_.head_dim)});
  }
  const rl_attention_options none{};
  parallel_for(num_threads, int(missing.size()), [&](int item, int) {
    const Run& run = plan_.runs[missing[item].run];
    const int block = missing[item].block;
    Envelope& envelope = *missing[item].envelope;
    BlockScores scores(plan_, none);
    for (int head = 0; head < plan_.num_kv_heads; ++head) {
      const HeadKV kv(layer, plan_.num_kv_heads, head, plan_.head_dim);
      scores.load(kv, run.slots.data() + block * kBlock, 0, kBlock, run.has_quantized);
      enclose(scores.keys(), plan_.head_dim, envelope.middle(head), envelope.step(head),
              envelope.radius(head), envelope.codes(head));
    }
  });
  for (Missing& each : missing) envelopes[each.run].push_back(std::move(each.envelope));
}

// The mass of every block for every limited row: by its envelope where the row sees all of it.
void PageReading::measure(const rl_layer_kv& layer, const Envelopes& envelopes, const float* q,
                          const rl_attention_options& options, int num_threads) {
  struct Part {
    int run, head, block;
  };
  std::vector<Part> parts;
  for (int r = 0; r < int(plan_.runs.size()); ++r)
    for (int block = 0; !rows_of_[r].empty() && block < plan_.runs[r].num_blocks();
         block += kBlocksATask)
      for (int head = 0; head < plan_.num_kv_heads; ++head) parts.push_back({r, head, block});
  parallel_for(num_threads, int(parts.size()), [&](int item, int) {
    const Part& part = parts[item];
    const Run& run = plan_.runs[part.run];
    const HeadKV kv(layer, plan_.num_kv_heads, part.head, plan_.head_dim);
    BlockScores scores(plan_, options);
    std::vector<BlockMass*> out(plan_.group);
    const int last = std::min(part.block + kBlocksATask, run.num_blocks());
    for (int block = part.block; block < last; ++block) {
      const int number = run.first_block + block, start = number * kBlock;
      const int first = std::max(0, run.begin - start), end = std::min(run.end - start, kBlock);
      const bool enclosed = first == 0 && block < int(envelopes[part.run].size());
      bool is_loaded = false;
      for (int row : rows_of_[part.run]) {
        const Seen seen{first, std::min(plan_.row_position[row] - start + 1, end)};
        if (!seen.any()) continue;
        const int64_t flat = int64_t(plan_.flat_row[row]) * plan_.num_heads +
                             part.head * plan_.group;
        for (int i = 0; i < plan_.group; ++i)
          out[i] = masses_of(row, part.head * plan_.group + i) + number;
        if (enclosed && seen.last == kBlock) {
          scores.bounded(q + flat * plan_.head_dim, *envelopes[part.run][block], part.head,
                         out.data());
          continue;
        }
        if (!is_loaded)
          scores.load(kv, run.slots.data() + block * kBlock, first, end, run.has_quantized);
        is_loaded = true;
        scores.exact(q + flat * plan_.head_dim, seen, out.data());
      }
    }
  });
}

}  // namespace rl
