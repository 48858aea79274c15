// A decoder step. Few rows share every product among the threads; of many rows each thread takes
// some through all that is between two attentions, so that what a row needs stays in its cache.
#include "step.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "guard.h"
#include "team.h"

namespace rl {
namespace {

constexpr int64_t kTogether = 64;      // rows up to which threads share products
constexpr int64_t kTaskRows = 64;      // rows that a thread takes at once, beyond that
constexpr int64_t kOpRows = 2;         // rows of an operation that are worth handing out
constexpr int64_t kProductFloats = 1 << 20;

int64_t rounded(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Memory of one thread that is kept from step to step; what it holds is lost when it grows.
class Kept {
 public:
  ~Kept() { std::free(memory_); }

  template <class T>
  T* of(int64_t count) {
    const std::size_t bytes = rounded(count * sizeof(T), 64);
    if (bytes > size_) {
      std::free(memory_);
      memory_ = nullptr;
      size_ = 0;
      if (posix_memalign(&memory_, 64, bytes)) throw std::bad_alloc();
      size_ = bytes;
    }
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

template <class T>
T* moved(T* at, int64_t by) {
  return at ? at + by : nullptr;
}

Levels from(const Levels& levels, int64_t row) {
  return {moved(levels.values, row * levels.stride), levels.stride, moved(levels.scale, row),
          moved(levels.sums, row), moved(levels.floats, row * levels.stride),
          moved(levels.groups, row * levels.group_stride), levels.group_stride};
}

Product from(const Product& product, int64_t row) {
  return {product.data + row * product.stride, product.stride, moved(product.scale, row)};
}

// Calls body(first, last) for all rows, in pieces on the team where there are several.
template <class Each>
void for_rows(int threads, int64_t count, const Each& body) {
  if (threads < 2 || count < 2 * kOpRows) return body(int64_t(0), count);
  const int64_t piece = std::max<int64_t>(kOpRows, rounded(count, 4 * threads) / (4 * threads));
  parallel_for(threads, static_cast<int>((count + piece - 1) / piece), [&](int item, int) {
    body(item * piece, std::min(count, (item + 1) * piece));
  });
}

int64_t widest_input(const RlShape& shape) {
  return rounded(std::max({shape.hidden_size, shape.intermediate_size,
                           shape.num_heads * shape.head_dim}), 64);
}

int64_t product_stride(const Weight& weight) { return rounded(columns_of_all(weight), 16); }

int64_t widest_product(const RlModel& model) {
  int64_t widest = 0;
  for (int64_t i = 0; i < model.num_layers; ++i) {
    const RlLayer& layer = model.layers[i];
    for (const Weight* weight : {layer.qkv, layer.o, layer.gate_up, layer.down})
      widest = std::max(widest, product_stride(*weight));
  }
  return widest;
}

// What products read and write, for up to some rows.
struct Work {
  Work(const RlModel& model, int64_t product_width, int64_t rows) {
    thread_local Kept kept[6];
    // a line more: rows at distances of 4,096 bytes would push each other out of the cache
    const int64_t stride = widest_input(model.shape) + 64, groups = stride / 32;
    const int kind = model.head->kind;
    if (kind == kDense)
      levels = {nullptr, stride, nullptr, nullptr, kept[4].of<float>(rows * stride)};
    else
      levels = {kept[0].of<int8_t>((rows + 16) * stride), stride, kept[1].of<float>(rows),
                kept[2].of<int32_t>(rows), nullptr,
                kind == kByRow ? nullptr : kept[5].of<Group>(rows * groups), groups};
    product = kept[3].of<float>(rows * product_width);
  }

  Rows rows(int64_t count) const {
    return {levels.values, levels.stride, levels.sums, count,
            levels.floats, levels.groups, levels.group_stride};
  }

  Levels levels;
  float* product;
};

class Step {
 public:
  Step(const RlModel& model, rl_attention_plan* plan, const rl_layer_kv* kv, float* stream,
       const RlAdapters* adapters, int threads)
      : model_(model), shape_(model.shape), plan_(plan), kv_(kv), stream_(stream),
        adapters_(adapters), threads_(threads), num_rows_(rl_attention_num_rows(plan)),
        product_width_(widest_product(model)) {
    thread_local Kept kept[4];
    const int64_t width = shape_.num_heads * shape_.head_dim;
    q_ = kept[0].of<float>(num_rows_ * width);
    attended_ = kept[1].of<float>(num_rows_ * width);
    const int64_t turns = model.num_ropes * num_rows_ * shape_.head_dim;
    cosines_ = kept[2].of<float>(turns + 16);
    sines_ = kept[3].of<float>(turns + 16);
  }

  void run() {
    turn_positions();
    for (int64_t index = 0; index <= model_.num_layers; ++index) {
      between_attentions(index);
      if (index < model_.num_layers) attend(index);
    }
  }

 private:
  void turn_positions() {
    const int32_t* positions = rl_attention_positions(plan_);
    const int64_t dim = shape_.head_dim;
    for (int64_t i = 0; i < model_.num_ropes; ++i)
      for_rows(threads_, num_rows_, [&](int64_t first, int64_t last) {
        const RlRope& rope = model_.ropes[i];
        const int64_t at = (i * num_rows_ + first) * dim;
        make_angles(rope.inverse_freq, rope.num_turned, rope.factor, dim, positions + first,
                    last - first, cosines_ + at, sines_ + at);
      });
  }

  void attend(int64_t index) {
    rl::attend(*plan_, kv_[index], q_, attended_, model_.layers[index].attention, threads_);
  }

  // What is behind the attention of layer index - 1 and before that of layer index.
  void between_attentions(int64_t index) {
    const int64_t most = std::max<int64_t>(16, kProductFloats / product_width_ / 16 * 16);
    if (num_rows_ <= kTogether || threads_ < 2) {
      const int64_t piece = std::min(most, threads_ < 2 ? kTaskRows : kTogether);
      for (int64_t first = 0; first < num_rows_; first += piece)
        through(index, first, std::min(num_rows_, first + piece), threads_);
      return;
    }
    const int64_t fair = rounded((num_rows_ + threads_ - 1) / threads_, 16);
    const int64_t piece = std::min({fair, most, kTaskRows});
    const int pieces = static_cast<int>((num_rows_ + piece - 1) / piece);
    parallel_for(threads_, pieces, [&](int item, int) {
      through(index, item * piece, std::min(num_rows_, (item + 1) * piece), 1);
    });
  }

  void through(int64_t index, int64_t first, int64_t last, int threads) {
    const Work work(model_, product_width_, last - first);
    if (index)
      finish_layer(index - 1, first, last, threads, work);
    else
      begin(first, last, threads, work);
    if (index < model_.num_layers) begin_layer(index, first, last, threads, work);
  }

  void begin(int64_t first, int64_t last, int threads, const Work& work) {
    for_rows(threads, last - first, [&](int64_t from_row, int64_t to_row) {
      float* rows = stream_ + (first + from_row) * shape_.hidden_size;
      if (model_.after_embed) rotate_rows(*model_.after_embed, rows, to_row - from_row);
      read_rows(shape_, rows, model_.layers[0].attn_gain, to_row - from_row,
                from(work.levels, from_row));
    });
  }

  // The product of rows from `first` on, with what adapters add to it.
  Product multiplied(const Weight& weight, int64_t index, Place place, int64_t first,
                     int64_t count, int threads, const Work& work) {
    const int64_t stride = product_stride(weight);
    multiply(weight, work.rows(count), {work.product, stride}, threads);
    if (adapters_)
      add_low_rank(*adapters_, index, place, work.levels, first, first + count, work.product,
                   stride, threads);
    return {work.product, stride, work.levels.scale};
  }

  void begin_layer(int64_t index, int64_t first, int64_t last, int threads, const Work& work) {
    const RlLayer& layer = model_.layers[index];
    const int64_t dim = shape_.head_dim;
    const Product qkv = multiplied(*layer.qkv, index, kQkv, first, last - first, threads, work);
    const int32_t* slots = rl_attention_new_slots(plan_);
    for_rows(threads, last - first, [&](int64_t from_row, int64_t to_row) {
      const int64_t row = first + from_row, turn = (layer.rope * num_rows_ + row) * dim;
      const Heads heads{q_ + row * shape_.num_heads * dim, kv_[index].k, kv_[index].v, slots + row,
                        kv_[index].dtype};
      split_rows(shape_, from(qkv, from_row), {cosines_ + turn, sines_ + turn}, layer.qkv_bias,
                 layer.qk_gain, to_row - from_row, heads);
    });
  }

  void finish_layer(int64_t index, int64_t first, int64_t last, int threads, const Work& work) {
    const RlLayer& layer = model_.layers[index];
    const int64_t count = last - first, width = shape_.num_heads * shape_.head_dim;
    for_rows(threads, count, [&](int64_t from_row, int64_t to_row) {
      quantize_rows(attended_ + (first + from_row) * width, width, to_row - from_row,
                    from(work.levels, from_row));
    });
    const Product o = multiplied(*layer.o, index, kO, first, count, threads, work);
    add_read(o, layer.o_bias, layer.attn_post_gain, layer.mlp_gain, first, count, threads, work);
    const Product gate_up =
        multiplied(*layer.gate_up, index, kGateUp, first, count, threads, work);
    for_rows(threads, count, [&](int64_t from_row, int64_t to_row) {
      activate_rows(shape_, from(gate_up, from_row), layer.gate_up_bias, to_row - from_row,
                    from(work.levels, from_row));
    });
    const bool is_last = index + 1 == model_.num_layers;
    const Product down = multiplied(*layer.down, index, kDown, first, count, threads, work);
    add_read(down, layer.down_bias, layer.mlp_post_gain,
             is_last ? model_.head_gain : model_.layers[index + 1].attn_gain, first, count, threads,
             work);
  }

  void add_read(const Product& added, const float* bias, const float* post_gain, const float* gain,
                int64_t first, int64_t count, int threads, const Work& work) {
    for_rows(threads, count, [&](int64_t from_row, int64_t to_row) {
      add_read_rows(shape_, stream_ + (first + from_row) * shape_.hidden_size,
                    from(added, from_row), bias, post_gain, gain, to_row - from_row,
                    from(work.levels, from_row));
    });
  }

  const RlModel& model_;
  const RlShape& shape_;
  rl_attention_plan* plan_;
  const rl_layer_kv* kv_;
  float* stream_;
  const RlAdapters* adapters_;
  int threads_;
  int64_t num_rows_, product_width_;
  float *q_, *attended_, *cosines_, *sines_;
};

// Columns of one weight of the head, `at` of all, whose products are finished as they are made.
void part_logits(const RlModel& model, const Weight& part, int64_t at, const Work& work,
                 const Floats& out, int64_t count, int threads) {
  const int64_t piece = std::min<int64_t>(blocks_a_piece(part, count, threads), 64);
  const float* bias = model.head_bias ? model.head_bias + at : nullptr;
  parallel_for(threads, static_cast<int>((part.blocks + piece - 1) / piece), [&](int item, int) {
    const int64_t first = item * piece, last = std::min(part.blocks, first + piece);
    multiply_blocks(part, work.rows(count), {out.data + at, out.stride}, first, last);
    finish_logits(out.data + at, out.stride, work.levels.scale, bias, model.logit_soft_cap, count,
                  16 * first, std::min(16 * last, part.out));
  });
}

void head_logits(const RlModel& model, const float* hidden, int64_t count, float* logits,
                 int threads) {
  const Work work(model, 1, count);
  for_rows(threads, count, [&](int64_t first, int64_t last) {
    read_rows(model.shape, hidden + first * model.shape.hidden_size, model.head_gain, last - first,
              from(work.levels, first));
  });
  const Floats out{logits, columns_of_all(*model.head)};
  int64_t at = 0;
  for (const Weight* part = model.head; part; at += part->out, part = part->behind)
    part_logits(model, *part, at, work, out, count, threads);
}

}  // namespace
}  // namespace rl

int rl_step(const RlModel* model, rl_attention_plan* plan, const rl_layer_kv* kv, float* stream,
            const RlAdapters* adapters, int threads) {
  return rl::guarded([&] { rl::Step(*model, plan, kv, stream, adapters, threads).run(); });
}

int rl_logits(const RlModel* model, const float* hidden, int64_t count, float* logits,
              int threads) {
  return rl::guarded([&] { rl::head_logits(*model, hidden, count, logits, threads); });
}
