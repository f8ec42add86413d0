// The published shape of Qwen3.8-Flash-Next, for tests of figures that need no file.
#pragma once

#include "placement/model_shape.h"

namespace tandem {

inline ModelShape real_shape() {
  ModelShape s;
  s.hidden = 2560;
  s.vocab = 248320;
  s.layers = 48;
  s.mtp_layers = 1;
  s.max_positions = 262144;
  for (int i = 0; i < 48; ++i) s.is_gdn.push_back((i + 1) % 4 != 0);
  s.streams = 4;
  s.hc_rank = 320;
  s.heads = 24;
  s.kv_heads = 2;
  s.head_dim = 256;
  s.rope_dims = 64;
  s.rope_theta = 1e7;
  s.indexer_heads = 4;
  s.indexer_dim = 128;
  s.indexer_ratio = 4;
  s.indexer_budget = 2048;
  s.gdn_key_heads = 16;
  s.gdn_value_heads = 48;
  s.gdn_dim = 128;
  s.gdn_conv = 4;
  s.experts = 512;
  s.experts_used = 10;
  s.expert_ff = 640;
  s.shared_expert_ff = 640;
  s.ple_layer = 1;
  s.ngram_size = 3;
  s.heads_per_ngram = 8;
  s.ple_row_width = 160;
  s.ple_conv = 4;
  s.ple_rows = 320001536;
  return s;
}

}  // namespace tandem
