// All layers of a decoder in one call, and its output head. Its weights are all of one kind.
#pragma once

#include <cstdint>

#include "attention.h"
#include "low_rank.h"
#include "ops.h"
#include "products.h"

extern "C" {

// Weights of one layer; a gain or bias that the model has not is null.
struct RlLayer {
  const rl::Weight* qkv;
  const rl::Weight* o;
  const rl::Weight* gate_up;
  const rl::Weight* down;
  const float* attn_gain;
  const float* qkv_bias;
  const float* qk_gain;  // [num_heads + num_kv_heads, head_dim]
  const float* o_bias;
  const float* attn_post_gain;
  const float* mlp_gain;
  const float* gate_up_bias;
  const float* down_bias;
  const float* mlp_post_gain;
  int64_t rope;  // index of its RlRope
  rl_attention_options attention;
};

struct RlRope {
  const float* inverse_freq;  // [num_turned], radians a token
  int64_t num_turned;         // pairs of a head that turn, from the first
  float factor;               // on cosine and sine
  float unused;
};

struct RlModel {
  RlShape shape;
  int64_t num_layers;
  const RlLayer* layers;
  const RlRope* ropes;
  int64_t num_ropes;
  const RlRotation* after_embed;  // null: the stream is what was embedded
  const rl::Weight* head;
  const float* head_gain;
  const float* head_bias;
  float logit_soft_cap;  // 0: none
  float unused;
};

// Runs the layers over the plan's rows. stream [num_rows, hidden_size] holds the embedded tokens
// and is left holding the residual stream; keys and values go to kv[layer]. `adapters` may be null.
// A Status (guard.h).
int rl_step(const RlModel* model, rl_attention_plan* plan, const rl_layer_kv* kv, float* stream,
            const RlAdapters* adapters, int threads);

// logits [count, head's out] of rows of the residual stream [count, hidden_size]. A Status.
int rl_logits(const RlModel* model, const float* hidden, int64_t count, float* logits, int threads);

}  // extern "C"
