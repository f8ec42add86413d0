// The planner's figures for the real shape, against the numbers that the model's specification states (decimal units).
#include "placement/footprint.h"

#include <gtest/gtest.h>

#include "tests/real_shape.h"

namespace tandem {
namespace {

// 16-bit caches with raw keys for all positions: the layout that the specification counts.
StateLayout spec_layout(std::int64_t context) {
  StateLayout layout;
  layout.context = context;
  layout.kv_bits = layout.pooled_bits = layout.raw_bits = 16;
  layout.raw_everywhere = true;
  return layout;
}

TEST(Footprint, FixedStatesOfTheRealModel) {
  const StateBytes bytes = state_bytes(real_shape(), spec_layout(1));
  EXPECT_EQ(bytes.gdn_state, 113246208);  // 36 x 48 x 128 x 128 floats, 113.2 MB
  EXPECT_EQ(bytes.gdn_conv, 4423680);     // 36 x 3 x 10240 floats, 4.4 MB
  EXPECT_EQ(bytes.ple_conv, 368640);      // 9 x 10240 floats, 369 kB
}

TEST(Footprint, CachesPerToken) {
  const StateBytes bytes = state_bytes(real_shape(), spec_layout(4));
  EXPECT_EQ(bytes.kv, 4 * 24576);
  EXPECT_EQ(bytes.raw, 4 * 3072);
  EXPECT_EQ(bytes.pooled, 4 * 768);
  EXPECT_EQ(bytes.mtp_kv, 4 * 2048);
  EXPECT_EQ(bytes.mtp_raw, 4 * 256);
  EXPECT_EQ(bytes.mtp_pooled, 4 * 64);
}

TEST(Footprint, CachesAtFullContext) {
  const StateBytes bytes = state_bytes(real_shape(), spec_layout(262144));
  EXPECT_EQ(bytes.kv, 6442450944);     // 6.44 GB
  EXPECT_EQ(bytes.raw, 805306368);     // 0.81 GB
  EXPECT_EQ(bytes.pooled, 201326592);  // 0.20 GB
}

TEST(Footprint, OpenPooledBlockIsNotStored) {
  StateLayout layout = spec_layout(4095);
  const StateBytes bytes = state_bytes(real_shape(), layout);
  EXPECT_EQ(bytes.pooled, 1023 * 12 * 128 * 2);
  EXPECT_EQ(bytes.raw, std::int64_t{4095} * 3072);
}

TEST(Footprint, RawKeysOfTheOpenBlockOnly) {
  StateLayout layout;
  layout.context = 100000;
  layout.window = 8;
  const StateBytes bytes = state_bytes(real_shape(), layout);
  EXPECT_EQ(bytes.raw, 12 * (4 + 8) * 128 * 4);
  EXPECT_EQ(bytes.mtp_raw, (4 + 8) * 128 * 4);
  EXPECT_EQ(bytes.pooled, 12 * 25000 * 128 * 4);
}

TEST(Footprint, ReplayLogPerRow) {
  EXPECT_EQ(replay_bytes_per_row(real_shape()), 36 * 8240 * 4);  // 8,240 floats a layer, 1.19 MB in all
  StateLayout layout = spec_layout(1);
  layout.window = 16;
  EXPECT_EQ(state_bytes(real_shape(), layout).replay, 16 * (36 * (8240 + 10240) + 10240) * 4);
}

TEST(Footprint, FractionalBitsAreRoundedUp) {
  ModelShape shape = real_shape();
  StateLayout layout = spec_layout(1);
  layout.kv_bits = 8.5;  // int8 with a half per 32 values
  EXPECT_EQ(state_bytes(shape, layout).kv, 12288 * 17 / 16);
  shape.head_dim = 3;  // 12 layers x 2 x 2 heads x 3 values x 8.5 bits = 153 bytes
  layout.kv_bits = 8.25;
  EXPECT_EQ(state_bytes(shape, layout).kv, 149);  // 148.5
}

// The areas of a cache are the keys and values that a state is planned to have, an array for each.
TEST(Footprint, CacheAreasAreTheKeysAndValues) {
  for (const double bits : {16.0, 32.0})
    for (const std::int64_t context : {1, 4095, 32768}) {
      StateLayout layout = spec_layout(context);
      layout.kv_bits = bits;
      const StateBytes state = state_bytes(real_shape(), layout);
      const CacheAreas areas = cache_areas(real_shape(), layout);
      EXPECT_EQ(areas.count, 2 * (12 + 1));
      EXPECT_EQ(areas.count * areas.bytes, state.kv + state.mtp_kv);
      EXPECT_EQ(areas.bytes, context * areas.position_bytes);
      EXPECT_EQ(areas.stride, areas.bytes);
      EXPECT_EQ(areas.total(), state.kv + state.mtp_kv);
    }
  // Arrays begin at multiples of 256 bytes.
  ModelShape shape = real_shape();
  shape.kv_heads = 1;
  shape.head_dim = 3;
  shape.mtp_layers = 0;
  const CacheAreas odd = cache_areas(shape, spec_layout(100));
  EXPECT_EQ(odd.position_bytes, 6);
  EXPECT_EQ(odd.bytes, 600);
  EXPECT_EQ(odd.stride, 768);
  EXPECT_EQ(odd.total(), 24 * 768);
  shape.kv_heads = 0;
  EXPECT_EQ(cache_areas(shape, spec_layout(100)).count, 0);
}

TEST(Footprint, TotalIsTheSumOfAllParts) {
  const StateBytes b = state_bytes(real_shape(), spec_layout(1000));
  EXPECT_EQ(b.total(), b.kv + b.pooled + b.raw + b.gdn_state + b.gdn_conv + b.ple_conv + b.replay + b.mtp_kv +
                           b.mtp_pooled + b.mtp_raw);
  EXPECT_GT(b.mtp_pooled, 0);
}

TEST(Footprint, WithoutPleAndMtp) {
  ModelShape shape = real_shape();
  shape.ple_layer = -1;
  shape.mtp_layers = 0;
  const StateBytes bytes = state_bytes(shape, spec_layout(1000));
  EXPECT_EQ(bytes.ple_conv, 0);
  EXPECT_EQ(bytes.mtp_kv + bytes.mtp_pooled + bytes.mtp_raw, 0);
  EXPECT_EQ(bytes.kv, 1000 * 24576);
}

// The BF16 row of the specification's table: 7.35 GB dense and 1.27 GB head a pass, 9.83 MB an expert.
TEST(Footprint, PlacesWeights) {
  WeightBytes weights;
  weights.dense = std::int64_t{2} * 3676300160;
  weights.head = std::int64_t{2} * 635699200;
  weights.embedding = std::int64_t{2} * 635699200;
  weights.experts = std::int64_t{2} * 120795955200;
  weights.ngram_table = std::int64_t{2} * 51200245760;
  weights.mtp_dense = std::int64_t{2} * 90568448;
  weights.mtp_experts = std::int64_t{2} * 2516582400;
  weights.unused = 12345;
  const StateLayout layout = spec_layout(262144);
  const Footprint place = footprint(real_shape(), weights, layout);
  EXPECT_EQ(place.card_weights, 7352600320 + 1271398400 + 181136896);
  EXPECT_EQ(place.card_state, state_bytes(real_shape(), layout).total());
  EXPECT_EQ(place.card(), place.card_weights + place.card_state);
  EXPECT_EQ(place.ram(), std::int64_t{2} * (120795955200 + 2516582400 + 635699200));
  EXPECT_EQ(place.disk_or_ram, std::int64_t{2} * 51200245760);
  EXPECT_EQ(place.expert_count, 49 * 512);
  EXPECT_EQ(place.expert_bytes(), 9830400);
  // 176,943,899,520 trunk + 2,607,150,848 MTP parameters; unused bytes are nobody's.
  EXPECT_EQ(weights.total(), std::int64_t{2} * (176943899520 + 2607150848));
}

TEST(Footprint, NoExpertsNoDivision) {
  EXPECT_EQ(footprint(real_shape(), WeightBytes{}, spec_layout(1)).expert_bytes(), 0);
}

TEST(Footprint, TrunkExpertsOnlyWithoutDraftBlock) {
  WeightBytes weights;
  weights.experts = std::int64_t{2} * 120795955200;
  const Footprint place = footprint(real_shape(), weights, spec_layout(1));
  EXPECT_EQ(place.expert_count, 48 * 512);
  EXPECT_EQ(place.expert_bytes(), 9830400);
}

}  // namespace
}  // namespace tandem
