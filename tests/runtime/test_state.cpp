// State files: what restore() refuses, that a refusal and a failed save change nothing, and that histories behave.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <random>

#include "cpu/cpu_ops.h"
#include "runtime/pipeline.h"
#include "tests/synthetic_model.h"

namespace tandem::testing {
namespace {

// A plain vector of all rows is the model that RowHistory is compared with.
TEST(RowHistory, AgainstAListOfAllRows) {
  std::mt19937 random(1);
  for (const std::size_t depth : {0UL, 1UL, 3UL, 9UL}) {
    const std::size_t width = 5;
    MachineMemory& memory = host_memory();
    const RowHistory history(memory, depth, width);
    std::vector<std::vector<float>> all(depth, std::vector<float>(width, 0.0F));
    std::vector<std::vector<float>> window;
    const auto make_rows = [&](std::size_t n) {
      std::vector<float> rows(n * width);
      for (float& v : rows) v = static_cast<float>(random() % 1000);
      return rows;
    };
    const auto append = [&](std::vector<std::vector<float>>& to, const std::vector<float>& rows) {
      for (std::size_t r = 0; r < rows.size() / width; ++r)
        to.emplace_back(rows.begin() + static_cast<std::ptrdiff_t>(r * width),
                        rows.begin() + static_cast<std::ptrdiff_t>((r + 1) * width));
    };
    for (int step = 0; step < 200; ++step) {
      if (window.empty() && random() % 2 == 0) {
        const auto rows = make_rows(1 + random() % 12);
        memory.commit_rows(history.view(), ConstRows(rows.data(), rows.size() / width, width));
        append(all, rows);
      } else if (window.size() < kMaxWindow && random() % 3 != 0) {
        const auto rows = make_rows(1 + random() % (kMaxWindow - window.size()));
        memory.log_rows(history.view(), window.size(), ConstRows(rows.data(), rows.size() / width, width));
        append(window, rows);
      } else {
        const std::size_t kept = random() % (window.size() + 1);
        const HistoryRows list[] = {history.view()};
        memory.keep_rows(list, kept);
        all.insert(all.end(), window.begin(), window.begin() + static_cast<std::ptrdiff_t>(kept));
        window.clear();
      }
      for (std::size_t i = 0; i < depth; ++i)
        for (std::size_t c = 0; c < width; ++c)
          ASSERT_EQ(history.committed().row(i)[c], all[all.size() - depth + i][c]) << "step " << step;
      for (std::size_t i = 0; i < window.size(); ++i) {
        const float* row = history.view().window + i * width;
        ASSERT_EQ(std::vector<float>(row, row + width), window[i]) << "step " << step;
      }
    }
  }
}

class StateFile : public ::testing::Test {
 protected:
  StateFile()
      : image_(synthetic_model().build()),
        model_(Model::bind(Gguf::parse(image_))),
        ops_(make_cpu_ops(1)),
        pipeline_(model_, *ops_, 64),
        path_(dir_ / "sequence.state") {
    SequenceState state = fresh();
    pipeline_.forward(state, tokens_, PassMode::kCommit, LogitRows::kNone);
    state.save(path_, model_.fingerprint());
    std::ifstream file(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }
  SequenceState fresh(std::size_t context = 64, KvType kv = KvType::kF16) const {
    return SequenceState(model_.shape, {context, kv});
  }
  void write(const std::vector<char>& bytes) const {
    std::ofstream(path_, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  // restore() must refuse with all the words, and leave the state as it was.
  void expect_refused(SequenceState& state, std::uint64_t fingerprint, std::initializer_list<const char*> words) {
    const std::vector<TokenId> before(state.tokens().begin(), state.tokens().end());
    try {
      state.restore(path_, fingerprint);
      FAIL() << "accepted";
    } catch (const InputError& error) {
      for (const char* word : words) EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("sequence.state"), std::string::npos) << error.what();
    }
    EXPECT_EQ(std::vector<TokenId>(state.tokens().begin(), state.tokens().end()), before);
  }

  TempDir dir_;
  std::vector<std::uint8_t> image_;
  Model model_;
  std::unique_ptr<Ops> ops_;
  Pipeline pipeline_;
  std::filesystem::path path_;
  std::vector<char> bytes_;
  std::vector<TokenId> tokens_{5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
};

TEST_F(StateFile, RoundTrip) {
  SequenceState state = fresh(128);
  state.restore(path_, model_.fingerprint());
  EXPECT_EQ(std::vector<TokenId>(state.tokens().begin(), state.tokens().end()), tokens_);
}

TEST_F(StateFile, FillsTheContext) {
  SequenceState state = fresh(tokens_.size());
  state.restore(path_, model_.fingerprint());
  EXPECT_EQ(state.room(), 0U);
}

TEST_F(StateFile, RefusesOtherModel) {
  SequenceState state = fresh();
  expect_refused(state, model_.fingerprint() + 1, {"another model", "expected", "found"});
  expect_refused(state, model_.fingerprint() - 1, {"another model", "expected", "found"});
}

TEST_F(StateFile, RefusesOtherKvType) {
  SequenceState state = fresh(64, KvType::kF32);
  expect_refused(state, model_.fingerprint(), {"KV type", "f32", "f16", "--kv"});
}

TEST_F(StateFile, RefusesSmallContext) {
  SequenceState state = fresh(8);
  expect_refused(state, model_.fingerprint(), {"at most 8 tokens", "found 11", "--context"});
}

// The draft head may be ahead of the sequence; its rows must fit as well.
TEST_F(StateFile, RefusesMoreDraftRowsThanTheContextHolds) {
  ASSERT_GT(model_.shape.mtp_layers, 0);
  SequenceState saved = fresh(), state = fresh(8);
  saved.mtp.rows = 9;
  saved.save(path_, model_.fingerprint());
  expect_refused(state, model_.fingerprint(), {"at most 8 tokens", "--context"});
}

TEST_F(StateFile, RefusesOtherVersion) {
  bytes_[8] = 99;
  write(bytes_);
  SequenceState state = fresh();
  expect_refused(state, model_.fingerprint(), {"version 1", "found 99"});
}

TEST_F(StateFile, RefusesOtherFiles) {
  write({'G', 'G', 'U', 'F'});
  SequenceState state = fresh();
  expect_refused(state, model_.fingerprint(), {"expected a Tandem state file"});
  write({});
  expect_refused(state, model_.fingerprint(), {"expected a Tandem state file"});
  std::filesystem::remove(path_);
  expect_refused(state, model_.fingerprint(), {"cannot open"});
  std::filesystem::create_directory(path_);
  expect_refused(state, model_.fingerprint(), {"state file"});
}

TEST_F(StateFile, RefusesEveryTruncation) {
  SequenceState state = fresh();
  pipeline_.forward(state, std::span(tokens_).first(3), PassMode::kCommit, LogitRows::kNone);
  for (std::size_t size = 48; size < bytes_.size(); size += 997) {
    write({bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(size)});
    expect_refused(state, model_.fingerprint(), {"damaged or incomplete"});
  }
  bytes_.push_back(0);
  write(bytes_);
  expect_refused(state, model_.fingerprint(), {"damaged or incomplete"});
}

TEST_F(StateFile, RefusesEveryFlippedBit) {
  SequenceState state = fresh();
  std::mt19937 random(5);
  for (int i = 0; i < 60; ++i) {
    std::vector<char> broken = bytes_;
    // Beyond the header; its fields are covered above.
    const std::size_t at = 48 + random() % (bytes_.size() - 48);
    broken[at] = static_cast<char>(broken[at] ^ (1 << (random() % 8)));
    write(broken);
    expect_refused(state, model_.fingerprint(), {"checksum", "damaged"});
  }
  for (std::size_t at = bytes_.size() - 8; at < bytes_.size(); ++at) {  // the checksum itself
    std::vector<char> broken = bytes_;
    broken[at] = static_cast<char>(broken[at] ^ 1);
    write(broken);
    expect_refused(state, model_.fingerprint(), {"checksum", "damaged"});
  }
}

// What a checkpoint copies, counted from the shape: state and logs of the delta rule, and every row history.
TEST_F(StateFile, CheckpointBytes) {
  const ModelShape& shape = model_.shape;
  const std::int64_t window = static_cast<std::int64_t>(kMaxWindow);
  std::int64_t floats = (shape.ple_history() + window) * shape.wide();
  const std::int64_t raw_keys = (shape.indexer_ratio - 1 + window) * shape.indexer_dim;
  for (int layer = 0; layer < shape.layers; ++layer) {
    if (!shape.is_gdn[static_cast<std::size_t>(layer)]) {
      floats += raw_keys;
      continue;
    }
    floats += shape.gdn_value_heads * shape.gdn_dim * shape.gdn_dim;
    floats += window * (shape.gdn_key_width() + shape.gdn_value_width() + shape.gdn_value_heads);
    floats += (shape.gdn_conv - 1 + window) * shape.gdn_conv_width();
  }
  if (shape.mtp_layers > 0) floats += raw_keys;
  EXPECT_EQ(fresh().checkpoint_bytes(), static_cast<std::size_t>(floats) * sizeof(float));
}

// A save that cannot finish leaves the earlier file and no temporary one.
TEST_F(StateFile, FailedSaveKeepsTheOldFile) {
  SequenceState state = fresh();
  std::filesystem::create_directory(path_.string() + ".tmp");
  EXPECT_THROW(state.save(path_, model_.fingerprint()), InputError);
  std::ifstream file(path_, std::ios::binary);
  EXPECT_EQ(std::vector<char>(std::istreambuf_iterator<char>(file), {}), bytes_);
  EXPECT_THROW(state.save(dir_ / "no such folder" / "x.state", model_.fingerprint()), InputError);
}

}  // namespace
}  // namespace tandem::testing
