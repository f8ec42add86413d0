#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include "runtime/session_options.h"
// From a file to the planner's terms, and the report that `tandem plan` prints.
#include "runtime/plan_model.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "placement/check.h"
#include "placement/cost_model.h"
#include "placement/files.h"
#include "placement/units.h"
#include "runtime/cmd_plan.h"
#include "runtime/expert_blob.h"
#include "runtime/model_visit.h"
#include "runtime/packed_matrix.h"
#include "runtime/region.h"
#include "runtime/replay_plan.h"
#include "runtime/sequence_state.h"
#include "runtime/workspace.h"
#include "tests/real_shape.h"
#include "tests/runtime/model_cases.h"

namespace tandem::testing {
namespace {

const std::filesystem::path kNano = TANDEM_SOURCE_DIR "/models/flash-next-nano-q4.gguf";

// The formula is what a Workspace really takes.
TEST(PlanModel, WorkspaceBytes) {
  ModelShape bare = tiny_shape();
  bare.ple_layer = -1;
  bare.mtp_layers = 0;
  ModelShape narrow = tiny_shape();
  narrow.streams = 1;
  narrow.gdn_value_heads = 64;
  for (const ModelShape& shape : {tiny_shape(), bare, narrow, real_shape()}) {
    for (const std::size_t rows : {1U, 16U, 37U}) {
      for (const std::size_t context : {8U, 100000U}) {
        Workspace workspace(host_memory(), shape, rows, context);
        workspace.reserve_logits(3, static_cast<std::size_t>(shape.vocab));
        EXPECT_EQ(workspace_bytes(shape, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(context), 3),
                  static_cast<std::int64_t>(workspace.bytes()))
            << rows << " " << context;
      }
    }
  }
}

// The formula of a sequence's state is what one takes.
TEST(PlanModel, StateBytes) {
  ModelShape bare = tiny_shape();
  bare.ple_layer = -1;
  bare.mtp_layers = 0;
  for (const ModelShape& shape : {tiny_shape(), bare, real_shape()})
    for (const KvType kv : {KvType::kF16, KvType::kF32}) {
      Region memory(host_memory(), std::size_t{1} << 30);
      const SequenceState state(shape, {1000, kv}, memory);
      StateLayout layout;
      layout.context = 1000;
      layout.kv_bits = kv == KvType::kF16 ? 16 : 32;
      layout.window = static_cast<int>(kMaxWindow);
      const std::int64_t planned = state_bytes(shape, layout).total();
      // Arrays begin at multiples of 256, eight of them a layer at most, and the open block's keys are one row fewer.
      const auto taken = static_cast<std::int64_t>(memory.used());
      EXPECT_LE(std::abs(taken - planned), (shape.layers + 2) * 8 * 256 + (shape.layers + 1) * shape.indexer_dim * 4)
          << taken << " taken, " << planned << " planned";
      EXPECT_GT(planned, 0);
    }
}

// What a plan sets aside to be lent holds the work memory of long passes, all but what grows, and nothing of it lies
// elsewhere.
TEST(PlanModel, LongPassesFitTheirRegion) {
  for (const ModelShape& shape : {tiny_shape(), real_shape()}) {
    const std::int64_t bytes = workspace_bytes(shape, 100, 5000, 0) + (64 << 10);
    Region outside(host_memory(), std::size_t{1} << 20), growing(host_memory(), std::size_t{8} << 20);
    Region region(outside, host_memory().allocate(static_cast<std::size_t>(bytes)), static_cast<std::size_t>(bytes));
    std::memset(region.data(), 0xab, region.bytes());
    Workspace workspace(growing, region, shape, 100, 5000, 48);
    EXPECT_EQ(outside.used(), 0U);
    EXPECT_EQ(growing.used(), 0U);
    EXPECT_GT(region.used(), region.bytes() / 2);
    EXPECT_EQ(workspace.mixed.rows(1).data[0], 0.0F);  // zeros, whoever was there before
    EXPECT_EQ(workspace.x.rows(100).row(99)[3], 0.0F);
    workspace.reserve_logits(1, static_cast<std::size_t>(shape.vocab));
    EXPECT_GE(growing.used(), static_cast<std::size_t>(shape.vocab) * 4);
    EXPECT_EQ(outside.used(), 0U);
    // More than is left of it is the machine's.
    const std::size_t used = region.used();
    const std::shared_ptr<std::uint8_t> more = region.allocate(region.bytes());
    EXPECT_EQ(region.used(), used);
    EXPECT_TRUE(more.get() < region.data() || more.get() >= region.data() + region.bytes());
  }
}

// Arrays in a region begin where a card's own do, and are zeroed to their last byte.
TEST(PlanModel, ARegionLaysArraysOutAsACardDoes) {
  Region region(host_memory(), 1000);
  std::memset(region.data(), 0xab, region.bytes());
  const auto first = region.allocate(300), second = region.allocate(1), rest = region.allocate(232);
  EXPECT_EQ(first.get(), region.data());
  EXPECT_EQ(second.get(), region.data() + 512);
  EXPECT_EQ(rest.get(), region.data() + 768);
  EXPECT_EQ(region.used(), region.bytes());
  for (std::size_t i = 0; i < 1000; ++i) EXPECT_EQ(region.data()[i], i < 300 || i == 512 || i >= 768 ? 0 : 0xab) << i;
  const auto outside = region.allocate(1);
  EXPECT_TRUE(outside.get() < region.data() || outside.get() >= region.data() + 1000);
}

// What is planned for short and for long passes where memory is lent; only short ones count logits.
TEST(PlanModel, WorkMemoryOfShortAndLongPasses) {
  const Model model = Model::open(kNano);
  const PlanModel plan = plan_model(model, 700);
  EXPECT_EQ(plan.workspace, workspace_bytes(model.shape, 700, model.shape.max_positions, 16));
  EXPECT_EQ(plan.long_workspace, workspace_bytes(model.shape, 700, model.shape.max_positions, 0));
  EXPECT_EQ(plan.short_workspace, workspace_bytes(model.shape, 64, model.shape.max_positions, 16));
}

// Packs every matrix and bank of the nano model and counts.
TEST(PlanModel, PackedSizesAreThoseOfThePackedModel) {
  const Model model = Model::open(kNano);
  const PlanModel plan = plan_model(model);
  const auto serial = [](std::size_t n, const std::function<void(std::size_t)>& body) {
    for (std::size_t i = 0; i < n; ++i) body(i);
  };
  std::int64_t growth = 0;
  for_each_matrix(model, [&](const WeightView& view) {
    if (has_tile_layout(view.type))
      growth += static_cast<std::int64_t>(pack_matrix(view, serial).bytes()) - static_cast<std::int64_t>(view.bytes());
  });
  const WeightBytes& weights = plan.weights;
  EXPECT_EQ(plan.dense_packed + plan.head_packed + plan.draft_packed,
            weights.dense + weights.head + weights.mtp_dense + growth);
  std::int64_t shared = 0;
  for (const LayerWeights& layer : model.layers)
    for (const WeightView* view :
         {&layer.moe.shared.gate, &layer.moe.shared.up, &layer.moe.shared.down, &layer.moe.shared_gate})
      shared +=
          static_cast<std::int64_t>(has_tile_layout(view->type) ? pack_matrix(*view, serial).bytes() : view->bytes());
  EXPECT_EQ(plan.shared_packed, shared);
  ASSERT_EQ(plan.expert_bytes.size(), 9U);
  for (std::size_t b = 0; b < 9; ++b) {
    const ExpertBank& bank = b < 8 ? model.layers[b].moe.routed : model.mtp->layer.moe.routed;
    EXPECT_EQ(plan.expert_bytes[b], static_cast<std::int64_t>(ExpertBlobLayout::of(bank).bytes));
  }
}

TEST(PlanModel, WithoutADraftBlockNothingOfItCounts) {
  const PlanModel with = plan_model(Model::open(kNano));
  const PlanModel without = plan_model(Model::open(kNano, {}, MtpPolicy::kOff));
  EXPECT_EQ(without.expert_bytes.size(), 8U);
  EXPECT_EQ(without.draft_packed, 0);
  EXPECT_EQ(without.weights.mtp_dense + without.weights.mtp_experts, 0);
  EXPECT_EQ(without.dense_packed, with.dense_packed);
  EXPECT_GT(with.draft_packed, 0);
  EXPECT_LT(without.workspace, with.workspace);
}

// The block of a separate file replaces the one in the model file.
TEST(PlanModel, SeparateDraftFile) {
  SyntheticOptions small;
  small.shape.mtp_layers = 0;
  SyntheticOptions draft;
  draft.type = [](const tandem::TensorSpec& spec) {
    return spec.form == TensorForm::kMatrix || spec.form == TensorForm::kBank ? DType::F16 : DType::F32;
  };
  const BoundModel alone = bind(base_model());
  const BoundModel separate = bind(base_model(), synthetic_mtp(draft, false));
  const BoundModel added = bind(synthetic_model(small), synthetic_mtp(draft, false));
  const PlanModel a = plan_model(*alone.model), b = plan_model(*separate.model), c = plan_model(*added.model);
  EXPECT_EQ(a.dense_packed, b.dense_packed);
  EXPECT_EQ(b.draft_packed, c.draft_packed);
  EXPECT_GT(b.draft_packed, a.draft_packed * 3 / 2);  // 16 bits instead of 8.5
  EXPECT_EQ(b.weights.mtp_dense, c.weights.mtp_dense);
  EXPECT_EQ(b.expert_bytes, c.expert_bytes);
  EXPECT_NE(a.expert_bytes[4], b.expert_bytes[4]);
}

TEST(PlanModel, ExpertsWithoutTilesCountTheirRows) {
  SyntheticOptions options;
  options.type = [](const tandem::TensorSpec& spec) {
    return spec.form == TensorForm::kBank || spec.form == TensorForm::kMatrix ? DType::F16 : DType::F32;
  };
  const BoundModel model = bind(synthetic_model(options));
  const ModelShape& s = model->shape;
  EXPECT_EQ(plan_model(*model.model).expert_bytes[0], 3 * s.hidden * s.expert_ff * 2);
}

Census tiny_census(const ModelShape& shape, int banks, int hot) {
  Census census;
  census.banks = banks;
  census.experts = shape.experts;
  census.used = shape.experts_used;
  std::vector<std::int32_t> ids;
  for (int i = 0; i < shape.experts_used; ++i) ids.push_back((hot + i) % shape.experts);
  for (int b = 0; b < banks; ++b) census.add("code", Phase::kDecode, b, ids);
  return census;
}

TEST(PlanModel, CensusFilesBecomeShares) {
  TempDir dir;
  const BoundModel model = bind(base_model());  // 4 layers and a draft block, 8 experts
  const ModelShape& shape = model->shape;
  const double each = 1.0 / shape.experts_used;
  save_census(tiny_census(shape, 4, 0), dir / "a.census.csv");
  save_census(tiny_census(shape, 5, 4), dir / "b.census.csv");
  Policy policy;
  EXPECT_EQ(plan_shares(policy, *model.model).share, uniform_shares(5, 8, shape.experts_used).share);
  policy.census = {{dir / "a.census.csv", "", 3.0}, {dir / "b.census.csv", "code", 1.0}};
  const RouteShares shares = plan_shares(policy, *model.model);
  EXPECT_EQ(shares.banks, 5);
  EXPECT_NEAR(shares.at(2, 0), 0.75 * each, 1e-12);
  EXPECT_NEAR(shares.at(2, 4), 0.25 * each + (shape.experts_used > 4 ? 0.75 * each : 0), 1e-12);
  EXPECT_NEAR(shares.at(4, 4), 0.25 * each + 0.75 / 8, 1e-12);  // the first file knows no draft block
  const BoundModel trunk = bind(base_model(), MtpPolicy::kOff);
  EXPECT_EQ(plan_shares(policy, *trunk.model).banks, 4);

  policy.census[1].domain = "prose";
  try {
    plan_shares(policy, *model.model);
    FAIL();
  } catch (const InputError& error) {
    expect_parts(error.what(), {"b.census.csv: expected the domain \"prose\"", "Fix: "});
  }
  save_census(tiny_census(shape, 3, 0), dir / "b.census.csv");
  try {
    plan_shares(policy, *model.model);
    FAIL();
  } catch (const InputError& error) {
    expect_parts(error.what(), {"b.census.csv: expected a census of 4 layers, 8 experts", "found 3, 8 and "});
  }
}

TEST(PlanModel, StateOfThePolicy) {
  Policy policy;
  ModelShape shape = real_shape();
  EXPECT_EQ(plan_state(policy, shape).context, 32768);
  EXPECT_EQ(plan_state(policy, shape).kv_bits, 16);
  policy.kv = KvFormat::kF32;
  policy.context = 262144;
  EXPECT_EQ(plan_state(policy, shape).context, 262144);
  EXPECT_EQ(plan_state(policy, shape).kv_bits, 32);
  policy.context = 262145;
  EXPECT_THROW(plan_state(policy, shape), InputError);
  policy.context.reset();
  shape.max_positions = 4096;
  EXPECT_EQ(plan_state(policy, shape).context, 4096);
}

TEST(PlanReport, ShippedPoliciesOnShippedMachines) {
  int pairs = 0;
  for (const auto& policy : std::filesystem::directory_iterator(TANDEM_SOURCE_DIR "/configs/policies")) {
    for (const auto& machine : std::filesystem::directory_iterator(TANDEM_SOURCE_DIR "/configs/hardware")) {
      PlanOptions options;
      options.model = kNano;
      options.placement.policy = policy.path();
      options.placement.hardware = machine.path();
      options.placement.context = 2048;
      const PlanReport report = make_plan_report(options);
      EXPECT_TRUE(report.plan.fits()) << policy.path() << " " << machine.path() << " " << report.plan.shortfall;
      EXPECT_FALSE(report.plan.rounds.empty());
      ++pairs;
    }
  }
  EXPECT_GE(pairs, 2);
}

// ---- the report

constexpr std::string_view kMachine = R"(name: test machine
source: made up
cpu: {performance_cores: 8, threads: 16, isa: avx2}
ram: {total: 64GiB, available: 60GiB, read_gbps: {1: 12, 8: 50}}
disk: {large_read_gbps: 3.0}
gpu: {model: test, arch: sm_86, vram_total: 24GiB, vram_free: 23GiB, copy_gbps: 900, pcie_to_card_gbps: 25,
      pcie_from_card_gbps: 25}
)";

std::filesystem::path real_size_file(const TempDir& dir) {
  SyntheticOptions options;
  options.shape = real_shape();
  options.shape.ple_eos = 248044;
  options.shape.image_token = 248056;
  options.shape.ple_multipliers = {23703573157769, 20109073645365, 8052911324071};
  options.shape.ple_vocab_sizes.assign(16, 20000003);
  for (std::uint64_t h = 0; h < 16; ++h) options.shape.ple_offsets.push_back(h * 20000003);
  options.tokenizer = false;
  options.zeros = true;
  options.type = [](const tandem::TensorSpec& spec) {
    if (spec.role == TensorRole::kNgramTable) return DType::Q4_0;
    if (spec.form == TensorForm::kBank) return spec.block == 2 ? DType::Q8_0 : DType::Q3_K;
    return spec.form == TensorForm::kMatrix ? DType::Q8_0 : DType::F32;
  };
  return synthetic_model(options).write(dir / "real.gguf");
}

PlanOptions real_size_options(const TempDir& dir) {
  PlanOptions options;
  options.model = real_size_file(dir);
  options.placement.hardware = dir / "machine.yaml";
  tandem::write_file(options.placement.hardware, kMachine);
  return options;
}

long faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

TEST(PlanReport, FetchingAheadAsChosen) {
  TempDir dir;
  PlanOptions options = real_size_options(dir);
  for (const auto& [word, how] :
       {std::pair{"auto", FetchAhead::kAuto}, {"on", FetchAhead::kOn}, {"off", FetchAhead::kOff}}) {
    CLI::App app;
    options.placement.fetch_ahead.reset();
    add_placement_flags(app, options.placement);
    app.parse(std::string("--fetch-ahead ") + word);
    EXPECT_EQ(options.placement.fetch_ahead, how) << word;
    EXPECT_EQ(resolve_policy(options.placement).adapt.fetch_ahead, how) << word;
    const PlanReport report = make_plan_report(options);
    const bool fetches = how != FetchAhead::kOff;
    EXPECT_EQ(plan_text(report).find("fetched ahead") != std::string::npos, fetches) << word;
    EXPECT_EQ(plan_text(report).find("fetch buffers") != std::string::npos, fetches) << word;
    double most = 0;
    const auto json = nlohmann::json::parse(plan_json(report));
    for (const auto& round : json.at("rounds")) most = std::max(most, round.at("fetched").get<double>());
    EXPECT_EQ(most > 1, fetches) << word;
  }
  // By the round that the star is at.
  PlanReport report = make_plan_report(options);
  for (const auto& [drafts, words] :
       {std::pair{0, "  Without drafts, 7 of"}, {1, "  With a draft, 7 of"}, {3, "  With 3 drafts, 7 of"}}) {
    RoundTime round;
    round.rows = 1 + drafts, round.total = 0.01, round.fetched = 7;
    report.plan.rounds = {round};
    report.plan.slowest.clear();
    report.plan.fastest.clear();
    EXPECT_NE(plan_text(report).find(words), std::string::npos) << words;
  }
}

TEST(PlanReport, RealSizeFromTheHeaderAlone) {
  TempDir dir;
  PlanOptions options = real_size_options(dir);
  options.what_ifs = {"vram=16GiB,ram=32GiB", "slots=100", "vram=2GiB"};
  const long before = faults();
  const PlanReport report = make_plan_report(options);
  // The file has 20 million pages. The header, a sample of each tensor (the fingerprint) and the plan itself need some
  // thousands; an expert read from each bank would add 25,000.
  EXPECT_LT(faults() - before, 15000);
  EXPECT_GT(std::filesystem::file_size(options.model), 80000000000U);
  EXPECT_TRUE(report.plan.fits());
  EXPECT_EQ(report.plan.placement.place.size(), 25088U);
  EXPECT_LE(report.plan.vram_used, report.plan.vram_budget);
  EXPECT_LE(report.plan.ram_used, report.plan.ram_budget);

  const std::string text = plan_text(report);
  for (const char* line : {
           "real.gguf on test machine, policy default\n",
           "  KV cache             832 MiB   32,768 positions, 16 bits; half of it lent to 130 experts\n",
           "  on the card       5,785 of 25,088 while text is generated: 5,008 in slots, 777 in lent memory\n",
           "  conversation      23.6 % hits, 14.7 tok/s at its start, 22.5 % hits, 14.7 tok/s when the context\n",
           "  reserve              512 MiB   left alone\n",
           "  fetch buffers       39.9 MiB\n",
           "  Without drafts, 21 of the experts that the card lacks are fetched ahead of their layers, so that\n",
           " of 25,088 experts, ",
           "  n-gram table        26.8 GiB   read row by row\n",
           "  likely by         nothing: no census, every expert counts the same\n",
           "  limit             VRAM: the card is full\n",
           "                    1 GiB more VRAM: ",
           "Speed     predicted, ms a round; a crew of 8\n",
           "  slots=100                        100     0.4 %    488.0",
           "  vram=2GiB                   does not fit\n    VRAM: ",
       })
    EXPECT_NE(text.find(line), std::string::npos) << line << "\nin\n" << text;
  std::size_t start = 0;
  for (std::size_t end; (end = text.find('\n', start)) != std::string::npos; start = end + 1)
    EXPECT_LE(end - start, 100U) << text.substr(start, end - start);
  EXPECT_EQ(start, text.size());

  // JSON holds the same plan.
  const nlohmann::json json = nlohmann::json::parse(plan_json(report));
  EXPECT_EQ(json["slots"], report.plan.slots);
  EXPECT_EQ(json["card"], "gpu");
  EXPECT_EQ(json["experts"], 25088);
  EXPECT_EQ(json["items"].size(), report.plan.items.size());
  EXPECT_EQ(json["hit_rate"], report.plan.hit_rate);
  std::size_t on_card = 0;
  for (const auto& bank : json["on_card"]) on_card += bank.size();
  EXPECT_EQ(on_card, static_cast<std::size_t>(report.plan.slots));
  // Lent experts are told apart, in the layers' reports as well.
  ASSERT_FALSE(report.plan.lent.empty());
  EXPECT_EQ(json["lent_bytes"], report.plan.lent_bytes);
  ASSERT_GT(report.plan.lent_in_cache, 0);
  ASSERT_LT(report.plan.lent_in_cache, std::ssize(report.plan.lent));
  EXPECT_EQ(json["lent_in_cache"], report.plan.lent_in_cache);
  EXPECT_EQ(json["cache_empty"]["hit_rate"], report.plan.cache_empty->hit_rate);
  EXPECT_EQ(json["cache_full"]["hit_rate"], report.plan.cache_full->hit_rate);
  EXPECT_GT(report.plan.cache_empty->hit_rate, report.plan.cache_full->hit_rate);
  std::vector<std::int32_t> lent;
  for (int bank = 0; bank < 49; ++bank) {
    const auto& experts = json["lent"][static_cast<std::size_t>(bank)];
    for (const auto& expert : experts) lent.push_back(bank * 512 + expert.get<std::int32_t>());
    const std::string shown = explain_layer(report, bank);
    const int slots = report.plan.slots_by_bank[static_cast<std::size_t>(bank)];
    EXPECT_NE(shown.find(fmt::format(" {} of 512 experts", slots + static_cast<int>(experts.size()))),
              std::string::npos)
        << shown;
    EXPECT_EQ(shown.find(fmt::format("  {} of them in lent memory\n", experts.size())) == std::string::npos,
              experts.empty())
        << shown;
  }
  std::vector<std::int32_t> planned = report.plan.lent;
  std::sort(planned.begin(), planned.end());
  EXPECT_EQ(lent, planned);
  ASSERT_EQ(json["rounds"].size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(json["rounds"][i]["drafts"], i);
    EXPECT_EQ(json["rounds"][i]["seconds"], report.plan.rounds[i].total);
    EXPECT_EQ(json["rounds"][i]["tokens_per_second"], report.plan.rounds[i].tokens_per_second());
  }
  ASSERT_EQ(json["what_if"].size(), 3U);
  EXPECT_EQ(json["what_if"][0]["what_if"], "vram=16GiB,ram=32GiB");
  EXPECT_EQ(json["what_if"][0]["vram"]["budget"], 16 * kGiB - 512 * kMiB);
  EXPECT_EQ(json["what_if"][0]["ram"]["budget"], 30 * kGiB);
  EXPECT_EQ(json["what_if"][1]["slots"], 100);
  EXPECT_EQ(json["what_if"][2]["fits"], false);

  // The 100 slots hit what the report says: 100 of 25,088 equal experts.
  const std::string layer = explain_layer(report, 2);
  EXPECT_TRUE(layer.starts_with("\nLayer 2     ")) << layer;
  EXPECT_NE(explain_layer(report, 48).find("Layer 48 (draft block)"), std::string::npos);
}

// A plan as the case of a replay lends what it lends; to nobody of a draft block that only the trace has.
TEST(PlanReport, ReplaysLendAsPlanned) {
  TempDir dir;
  ReplayPlanOptions options;
  options.model = real_size_file(dir);
  options.hardware = dir / "machine.yaml";
  tandem::write_file(options.hardware, kMachine);
  for (const bool drafts : {true, false}) {
    tandem::write_file(dir / "p.yaml", fmt::format("drafting: {{mtp: {}}}\n", drafts));
    options.policies = {(dir / "p.yaml").string()};
    PlanOptions plan_options;
    plan_options.model = options.model;
    plan_options.placement.hardware = options.hardware;
    plan_options.placement.policy = dir / "p.yaml";
    const Plan plan = make_plan_report(plan_options).plan;
    ASSERT_FALSE(plan.lent.empty());
    TraceHeader header;
    header.banks = 49;
    header.experts = 512;
    const std::vector<PlannedCase> cases = planned_cases(options, header);
    ASSERT_EQ(cases.size(), 1U);
    const ReplayCase& replay = cases[0].replay;
    EXPECT_EQ(replay.lending.bytes, plan.lent_bytes);
    EXPECT_EQ(replay.lending.rows, kShortRows);
    std::vector<double> expected = plan.expected;
    expected.resize(25088, 0.0);
    EXPECT_EQ(replay.lending.expected, expected);
    Adapter adapter(replay.settings, replay.start, replay.expert_bytes, replay.movable, replay.lending);
    adapter.end_round(true);
    EXPECT_FALSE(adapter.loans().empty());
  }
}

// The same of a cache that has room for experts at the start of a conversation only.
TEST(PlanReport, ACacheIsLentFromTheStart) {
  TempDir dir;
  PlanOptions options;
  options.model = real_size_file(dir);
  options.placement.hardware = dir / "machine.yaml";
  options.placement.policy = dir / "p.yaml";
  tandem::write_file(options.placement.hardware, kMachine);
  tandem::write_file(options.placement.policy, "memory: {lend_prompt_memory: false}\ncontext: 4096\n");
  const Plan plan = make_plan_report(options).plan;
  ASSERT_TRUE(plan.lent.empty() && plan.cache_empty);
  const Lending lending = plan_lending(plan);
  EXPECT_EQ(lending.bytes, 0);
  EXPECT_GT(lending.cache.count, 0);
  EXPECT_EQ(lending.cache.stride, plan.lent_cache.stride);
  EXPECT_EQ(lending.cache.position_bytes, 1024);  // 2 heads of 256 values of 16 bits
  EXPECT_EQ(lending.cache.bytes, 4096 * 1024);
  EXPECT_EQ(lending.expected, plan.expected);
}

TEST(PlanReport, NanoWithACensusExplained) {
  TempDir dir;
  Census census;
  census.banks = 9;
  census.experts = 32;
  census.used = 6;
  // Expert 31 in every row, then 30 and 29 in half of them each, and so on: heat falls with the number.
  for (int bank = 0; bank < 9; ++bank)
    for (int row = 0; row < 64; ++row) {
      std::vector<std::int32_t> ids{31, 30 - row % 2, 28 - row % 4, 24 - row % 8, 16 - row % 8, 8 - row % 9};
      census.add("code", Phase::kDecode, bank, ids);
    }
  save_census(census, dir / "c.census.csv");
  tandem::write_file(dir / "p.yaml",
                     "name: trial\nobjective: hit_rate\ncensus: [{file: c.census.csv}]\n"
                     "experts: {pins: [{layers: 4, experts: 0}]}\n");
  PlanOptions options;
  options.model = kNano;
  options.placement.policy = dir / "p.yaml";
  options.placement.cpu = true;
  options.placement.slots = 45;
  const PlanReport report = make_plan_report(options);
  EXPECT_TRUE(report.input.plays_card);
  EXPECT_EQ(report.plan.slots, 45);
  for (int bank = 0; bank < 9; ++bank)
    for (const int expert : {31, 30, 29}) EXPECT_EQ(report.plan.placement.at(bank, expert), Place::kCard);
  EXPECT_EQ(report.plan.placement.at(4, 0), Place::kCard);
  const std::string text = plan_text(report) + explain_layer(report, 4);
  for (const char* line : {
           "flash-next-nano-q4.gguf on this machine, the CPU playing the card, policy trial\n",
           "45 of 288 experts, ",
           "  likely by         the census of the policy\n",
           "  limit             slots: the policy allows 45\n",
           "Speed     not predicted without RAM bandwidth: `tandem doctor` measures this machine",
           "\nLayer 4     ",
           "    31  16.67 %   29   8.33 %   30   8.33 %",
           "  coldest on the card         0",
       })
    EXPECT_NE(text.find(line), std::string::npos) << line << "\nin\n" << text;
}

std::string what_if_refusal(const std::string& text) {
  PlanOptions options;
  options.model = kNano;
  options.what_ifs = {text};
  try {
    make_plan_report(options);
  } catch (const InputError& error) {
    return error.what();
  }
  return "planned";
}

TEST(PlanReport, WhatIfRefusals) {
  EXPECT_EQ(what_if_refusal("vram=16GiB"), "planned");
  EXPECT_EQ(what_if_refusal(""), "--what-if: expected vram=SIZE, ram=SIZE, context=N or slots=N, found nothing");
  EXPECT_EQ(what_if_refusal("vrm=16GiB"),
            "--what-if: expected vram=SIZE, ram=SIZE, context=N or slots=N, found \"vrm=16GiB\". Fix: did you mean "
            "vram?");
  EXPECT_EQ(what_if_refusal("vram"), "--what-if vram: expected a size such as 24GiB, 512MiB or 1.5GB, found \"\"");
  EXPECT_EQ(what_if_refusal("slots=-1"), "--what-if slots: expected a whole number from 0 to 16777216, found \"-1\"");
  expect_parts(what_if_refusal("context=999999"), {"context: expected 1 to 4096 (the trained context), found 999999"});
}

// A what-if is another machine: limits that were given for this one do not hold there.
TEST(PlanReport, WhatIfReplacesLimits) {
  TempDir dir;
  PlanOptions options;
  options.model = kNano;
  options.placement.hardware = dir / "machine.yaml";
  tandem::write_file(options.placement.hardware, kMachine);
  options.placement.vram = 12 * kGiB;
  options.placement.ram = 10 * kGiB;
  options.what_ifs = {"vram=16GiB", "ram=32GiB", "context=77"};
  const PlanReport report = make_plan_report(options);
  EXPECT_EQ(report.plan.vram_budget, 12 * kGiB - 512 * kMiB);
  EXPECT_EQ(report.plan.ram_budget, 10 * kGiB);
  EXPECT_EQ(report.what_ifs[0].plan.vram_budget, 16 * kGiB - 512 * kMiB);
  EXPECT_EQ(report.what_ifs[0].plan.ram_budget, 10 * kGiB);
  EXPECT_EQ(report.what_ifs[1].plan.ram_budget, 30 * kGiB);
  EXPECT_EQ(report.what_ifs[1].plan.vram_budget, 12 * kGiB - 512 * kMiB);
  EXPECT_EQ(report.what_ifs[2].plan.items[3].note, "77 positions, 16 bits");
}

TEST(PlanReport, ThisMachinesRam) {
  const Hardware hardware = known_hardware();
  EXPECT_GT(hardware.ram.total, 512 * kMiB);
  EXPECT_GT(hardware.ram.available, 0);
  EXPECT_LE(hardware.ram.available, hardware.ram.total);
  EXPECT_TRUE(hardware.ram.read_gbps.empty());
  EXPECT_FALSE(hardware.gpu.has_value());
  PlanOptions options;
  options.model = kNano;
  options.placement.vram = 24 * kGiB;
  options.placement.ram = 640 * kGiB;  // more than any machine that runs this
  const PlanReport report = make_plan_report(options);
  EXPECT_TRUE(report.input.card);
  EXPECT_EQ(report.hardware, "a card of 24.0 GiB with 640 GiB of RAM");
  EXPECT_EQ(report.plan.vram_budget, 24 * kGiB - 512 * kMiB);
  EXPECT_EQ(report.plan.ram_budget, 600 * kGiB);
}

}  // namespace
}  // namespace tandem::testing
