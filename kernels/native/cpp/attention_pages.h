// Rows that read less than all of their path: which blocks of 64 positions each of them reads.
//
// The envelope of a block holds every key of it in a box: a code of 8 bits a channel, and how far
// the key may lie from what the code says. So the mass of a block is known, before it is read, up
// to a factor; blocks are read in order of the most that they may hold. What a row reads depends on
// its own path and query alone, so a block that several rows share is read once for those that
// chose it, and the others do not see it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "attention_plan.h"
#include "attention_tile.h"

namespace rl {

// How much a row reads; both 0: all of its path.
struct PageLimit {
  int32_t top_pages = 0;  // so many blocks beside those that always count
  double top_mass = 0;    // blocks until what is left holds less than this share of the mass
  bool any() const { return top_pages > 0 || top_mass > 0; }
};

// What rows have read: blocks of one kv head, and the most mass that any query head has missed.
struct PageTally {
  int64_t read = 0, all = 0;
  double omitted = 0;
};

// The most and the least that a block may hold, as max and sum of weights, times exp(+-error).
struct BlockMass {
  float max, sum, error;
};

// Boxes of the keys of one block of one layer, head by head.
class Envelope {
 public:
  Envelope(int heads, int dim)
      : dim_(dim), ranges_(size_t(heads) * 3 * dim), codes_(size_t(heads) * dim * kBlock) {}

  // A key is middle + step * code, give or take `radius`, in each channel.
  float* middle(int head) { return ranges_.data() + size_t(head) * 3 * dim_; }
  float* step(int head) { return middle(head) + dim_; }
  float* radius(int head) { return middle(head) + 2 * dim_; }
  int8_t* codes(int head) { return codes_.data() + size_t(head) * dim_ * kBlock; }  // [dim][64]

 private:
  int dim_;
  std::vector<float> ranges_;
  std::vector<int8_t> codes_;
};

class PageReading {
 public:
  // [row] in depth-first order, as in the plan.
  PageReading(const rl_attention_plan& plan, std::vector<PageLimit> limits);

  // Chooses what the rows of a call read.
  void choose(const rl_layer_kv& layer, const float* q, const rl_attention_options& options,
              int num_threads);
  // Counts a layer in which every row reads all of its window.
  void count_all(int window);

  bool reads(int row, int head, int block) const {
    return !limits_[row].any() || chosen_[chosen_at(row, head) + block];
  }
  int first_block(int row) const { return first_block_[row]; }
  int own_block(int row) const { return plan_.row_position[row] / kBlock; }
  const PageTally& tally(int row) const { return tallies_[row]; }
  void clear_tallies() { tallies_.assign(limits_.size(), PageTally()); }

 private:
  using Envelopes = std::vector<std::vector<std::unique_ptr<Envelope>>>;  // [run][block]

  size_t chosen_at(int row, int head) const {
    return (size_t(row) * plan_.num_kv_heads + head) * stride_;
  }
  BlockMass* masses_of(int row, int head) {
    return masses_.data() + (size_t(row) * plan_.num_heads + head) * stride_;
  }
  void extend(const rl_layer_kv& layer, Envelopes& envelopes, int num_threads);
  void measure(const rl_layer_kv& layer, const Envelopes& envelopes, const float* q,
               const rl_attention_options& options, int num_threads);

  const rl_attention_plan& plan_;
  std::vector<PageLimit> limits_;    // [row]
  std::vector<PageTally> tallies_;   // [row]
  std::vector<int> first_block_;     // [row] of its path
  std::vector<std::vector<int>> rows_of_;  // [run] limited rows of the branches below
  std::map<const void*, Envelopes> envelopes_;  // by the layer's keys
  int stride_ = 0;                   // blocks of the longest path
  std::vector<BlockMass> masses_;    // [row][query head][block]
  std::vector<uint8_t> chosen_;      // [row][kv head][block]
  std::vector<PageTally> counts_;    // [row][kv head] of one call
};

}  // namespace rl
