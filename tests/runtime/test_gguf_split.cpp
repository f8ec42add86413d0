// Sets of shards: opened through any shard, checked against the unsplit file; and every refusal of a set.
#include <algorithm>
#include <cstring>

#include "tests/runtime/gguf_cases.h"

namespace tandem {
namespace {

using testing::expect_refusal;
using testing::GgufBuilder;
using testing::message_of;
using testing::small_file;
using testing::TempDir;

namespace fs = std::filesystem;

void expect_same_directory(const Gguf& set, const Gguf& whole) {
  ASSERT_EQ(set.tensors().size(), whole.tensors().size());
  for (std::size_t i = 0; i < whole.tensors().size(); ++i) {
    const GgufTensor& expected = whole.tensors()[i];
    const GgufTensor& found = set.tensors()[i];
    EXPECT_EQ(found.name, expected.name);
    EXPECT_EQ(found.type, expected.type);
    EXPECT_EQ(found.ne, expected.ne);
    ASSERT_EQ(found.bytes, expected.bytes);
    EXPECT_EQ(std::memcmp(found.data, expected.data, expected.bytes), 0) << found.name;
    EXPECT_EQ(set.find_tensor(expected.name), &found);
  }
  EXPECT_EQ(set.string("general.architecture"), whole.string("general.architecture"));
  EXPECT_EQ(set.strings("tokenizer.ggml.tokens"), whole.strings("tokenizer.ggml.tokens"));
}

// Metadata alone in shard 1 (0 tensors), a shard of two tensors, one of one tensor.
TEST(GgufSplit, OpensThroughAnyShard) {
  const TempDir dir;
  const Gguf whole = Gguf::open(small_file().write(dir / "whole.gguf"));
  const std::vector<fs::path> paths = testing::write_shards(small_file().split({0, 2, 1}), dir / "set");
  EXPECT_EQ(paths[1].filename(), "set-00002-of-00003.gguf");
  for (const fs::path& path : paths) {
    const Gguf set = Gguf::open(path);
    EXPECT_EQ(set.name(), path.string());
    expect_same_directory(set, whole);
    ASSERT_EQ(set.shards().size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(set.shards()[i].path, paths[i]);
    EXPECT_EQ(set.shards()[0].tensors, 0U);
    EXPECT_EQ(set.shards()[1].tensors, 2U);
    EXPECT_EQ(set.tensors()[0].shard, 1);
    EXPECT_EQ(set.tensors()[2].shard, 2);
    EXPECT_EQ(set.tensors()[2].offset, set.shards()[2].data_offset);
  }
}

TEST(GgufSplit, ManyShards) {
  const TempDir dir;
  GgufBuilder builder = small_file();
  for (int i = 0; i < 30; ++i) builder.tensor("more." + std::to_string(i), std::vector<float>{static_cast<float>(i)});
  const Gguf whole = Gguf::open(builder.write(dir / "whole.gguf"));
  const std::vector<fs::path> paths = builder.write_split(dir / "set", 28);
  expect_same_directory(Gguf::open(paths[27]), whole);
}

TEST(GgufSplit, SetInMemory) {
  const std::vector<GgufBuilder> shards = small_file().split(2);
  const std::vector<std::uint8_t> first = shards[0].build(), second = shards[1].build();
  const std::vector<std::uint8_t> whole = small_file().build();
  const GgufImage images[] = {{"m-00001-of-00002.gguf", first}, {"m-00002-of-00002.gguf", second}};
  expect_same_directory(Gguf::parse_set(images), Gguf::parse(whole));
}

// Each shard has an alignment of its own.
TEST(GgufSplit, ShardsOfDifferentAlignment) {
  const TempDir dir;
  std::vector<GgufBuilder> shards = small_file().split({1, 2});
  shards[1].alignment(128);
  const Gguf whole = Gguf::open(small_file().write(dir / "whole.gguf"));
  expect_same_directory(Gguf::open(testing::write_shards(shards, dir / "set")[0]), whole);
}

// Downloaders keep shards in a store of blobs and link to them.
TEST(GgufSplit, SymbolicLinksAreFollowedByTheirOwnName) {
  const TempDir dir;
  const std::vector<GgufBuilder> shards = small_file().split(2);
  fs::create_directory(dir / "blobs");
  fs::create_directory(dir / "snapshot");
  for (std::size_t i = 0; i < 2; ++i) {
    const fs::path blob = shards[i].write(dir / "blobs" / ("blob" + std::to_string(i)));
    fs::create_symlink(blob, dir / "snapshot" / shard_file_name("m", static_cast<int>(i), 2));
  }
  EXPECT_EQ(Gguf::open(dir / "snapshot" / "m-00002-of-00002.gguf").tensors().size(), 3U);
}

TEST(GgufSplit, RelativePathInTheWorkingDirectory) {
  const TempDir dir;
  small_file().write_split(dir / "m", 2);
  const fs::path before = fs::current_path();
  fs::current_path(dir.path());
  EXPECT_EQ(Gguf::open("m-00002-of-00002.gguf").tensors().size(), 3U);
  fs::current_path(before);
}

// What merging tools leave behind: split.count 0, or 1, under any name.
TEST(GgufSplit, SetOfOne) {
  for (const std::uint16_t count : {std::uint16_t{0}, std::uint16_t{1}}) {
    const TempDir dir;
    GgufBuilder builder = small_file();
    builder.add("split.no", std::uint16_t{0}).add("split.count", count);
    EXPECT_EQ(Gguf::open(builder.write(dir / "merged.gguf")).tensors().size(), 3U);
    EXPECT_EQ(Gguf::open(builder.write(dir / "merged-00001-of-00001.gguf")).tensors().size(), 3U);
  }
}

class GgufSplitRefusal : public ::testing::Test {
 protected:
  // Writes the set after `change`, opens shard `opened` and judges the message.
  void refused(const std::function<void(std::vector<GgufBuilder>&)>& change, std::size_t opened,
               const std::string& file, const std::vector<std::string>& words) {
    std::vector<GgufBuilder> shards = small_file().split({1, 1, 1});
    change(shards);
    const std::vector<fs::path> paths = testing::write_shards(shards, dir_ / "m");
    expect_refusal(message_of([&] { (void)Gguf::open(paths[opened]); }), (dir_ / file).string() + ": ", words);
  }
  TempDir dir_;
};

TEST_F(GgufSplitRefusal, FirstFilesNumberIsNotZero) {
  refused([](auto& shards) { shards[0].add("split.no", std::uint16_t{1}); }, 0, "m-00001-of-00003.gguf",
          {"key 'split.no'", "expected 0 ", "shard 1 of 3", "found 1"});
}
TEST_F(GgufSplitRefusal, OtherFilesNumberIsWrong) {
  refused([](auto& shards) { shards[2].add("split.no", std::uint16_t{1}); }, 0, "m-00003-of-00003.gguf",
          {"key 'split.no'", "expected 2 ", "shard 3 of 3", "found 1"});
}
TEST_F(GgufSplitRefusal, NumberMissing) {
  refused([](auto& shards) { shards[1].remove("split.no"); }, 0, "m-00002-of-00003.gguf",
          {"key 'split.no'", "no such key"});
}
TEST_F(GgufSplitRefusal, NumberOfAWrongType) {
  refused([](auto& shards) { shards[1].add("split.no", "one"); }, 0, "m-00002-of-00003.gguf",
          {"key 'split.no'", "an integer", "found string 'one'"});
}
TEST_F(GgufSplitRefusal, CountMissing) {
  refused([](auto& shards) { shards[1].remove("split.count"); }, 1, "m-00002-of-00003.gguf",
          {"key 'split.count'", "expected 3 by the file name", "no such key"});
}
TEST_F(GgufSplitRefusal, CountMissingInAnotherShard) {
  refused([](auto& shards) { shards[1].remove("split.count"); }, 0, "m-00002-of-00003.gguf",
          {"key 'split.count'", "expected 3 ", "found 1"});
}
TEST_F(GgufSplitRefusal, CountDiffersFromTheFileName) {
  refused([](auto& shards) { shards[0].add("split.count", std::uint16_t{4}); }, 0, "m-00001-of-00003.gguf",
          {"key 'split.count'", "expected 3 ", "found 4"});
}
TEST_F(GgufSplitRefusal, CountDiffersBetweenShards) {
  refused([](auto& shards) { shards[2].add("split.count", std::uint16_t{2}); }, 0, "m-00003-of-00003.gguf",
          {"key 'split.count'", "expected 3 ", "found 2"});
}
TEST_F(GgufSplitRefusal, CountOutOfRange) {
  refused([](auto& shards) { shards[0].add("split.count", std::int32_t{-1}); }, 0, "m-00001-of-00003.gguf",
          {"key 'split.count'", "0 to 99999", "found -1"});
  refused([](auto& shards) { shards[0].add("split.count", std::uint64_t{1} << 40); }, 0, "m-00001-of-00003.gguf",
          {"key 'split.count'", "0 to 99999", "found 1099511627776"});
}
TEST_F(GgufSplitRefusal, TensorInTwoShards) {
  refused([](auto& shards) { shards[2].find("third.weight").name = "first.weight"; }, 1, "m-00003-of-00003.gguf",
          {"tensor 'first.weight'", "once in the set", "m-00001-of-00003.gguf"});
}
TEST_F(GgufSplitRefusal, TensorCountIsWrong) {
  refused([](auto& shards) { shards[0].add("split.tensors.count", std::int32_t{4}); }, 0, "m-00001-of-00003.gguf",
          {"key 'split.tensors.count'", "expected 3, ", "found 4"});
}
TEST_F(GgufSplitRefusal, TensorCountOfALaterShardIsWrong) {
  refused([](auto& shards) { shards[2].add("split.tensors.count", std::int32_t{2}); }, 0, "m-00003-of-00003.gguf",
          {"key 'split.tensors.count'", "expected 3, ", "found 2"});
}
TEST_F(GgufSplitRefusal, TensorCountMissing) {
  refused([](auto& shards) { shards[0].remove("split.tensors.count"); }, 0, "m-00001-of-00003.gguf",
          {"key 'split.tensors.count'", "no such key"});
}
TEST_F(GgufSplitRefusal, TensorMissingFromAShard) {
  refused([](auto& shards) { shards[1].remove_tensor("second.weight"); }, 0, "m-00001-of-00003.gguf",
          {"key 'split.tensors.count'", "expected 2, ", "found 3"});
}
TEST_F(GgufSplitRefusal, DamagedShardIsNamed) {
  refused([](auto& shards) { shards[1].magic = "GGUX"; }, 0, "m-00002-of-00003.gguf", {"magic", "'GGUX'"});
}

TEST_F(GgufSplitRefusal, ShardMissingOnDisk) {
  const std::vector<fs::path> paths = small_file().write_split(dir_ / "m", 3);
  fs::remove(paths[1]);
  expect_refusal(message_of([&] { (void)Gguf::open(paths[2]); }), paths[2].string() + ": ",
                 {"shards", "all 3", "1 missing", paths[1].string()});
  fs::remove(paths[0]);
  expect_refusal(message_of([&] { (void)Gguf::open(paths[2]); }), paths[2].string() + ": ",
                 {"2 missing", "first " + paths[0].string()});
}

TEST_F(GgufSplitRefusal, ShardCutShort) {
  const std::vector<fs::path> paths = small_file().write_split(dir_ / "m", 3);
  fs::resize_file(paths[2], fs::file_size(paths[2]) - 16);
  expect_refusal(message_of([&] { (void)Gguf::open(paths[0]); }), paths[2].string() + ": ",
                 {"tensor 'third.weight'", "expected 24 bytes", "found a file of"});
}

TEST_F(GgufSplitRefusal, RenamedAwayFromThePattern) {
  const std::vector<fs::path> paths = small_file().write_split(dir_ / "m", 3);
  fs::rename(paths[1], dir_ / "renamed.gguf");
  expect_refusal(message_of([&] { (void)Gguf::open(dir_ / "renamed.gguf"); }), (dir_ / "renamed.gguf").string() + ": ",
                 {"file name", "PREFIX-00002-of-00003.gguf", "one shard of 3", "'renamed.gguf'"});
}

TEST_F(GgufSplitRefusal, RenamedToAnotherNumber) {
  const std::vector<fs::path> paths = small_file().write_split(dir_ / "m", 3);
  fs::rename(paths[1], paths[2]);
  expect_refusal(message_of([&] { (void)Gguf::open(paths[2]); }), paths[2].string() + ": ",
                 {"key 'split.no'", "expected 2 ", "found 1"});
}

TEST_F(GgufSplitRefusal, OneShardOfASetInMemory) {
  const std::vector<std::uint8_t> image = small_file().split(3)[0].build();
  expect_refusal(message_of([&] { (void)Gguf::parse(image, "one.gguf"); }),
                 "one.gguf: ", {"key 'split.count'", "expected 1 ", "found 3"});
}

TEST(ShardName, FormatsAndParses) {
  EXPECT_EQ(shard_file_name("dir/Model-Q4", 0, 4), "dir/Model-Q4-00001-of-00004.gguf");
  EXPECT_EQ(shard_file_name("m", 32, 33), "m-00033-of-00033.gguf");
  const std::optional<ShardName> name = parse_shard_name("a-00001-of-00002-00003-of-00010.gguf");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->prefix, "a-00001-of-00002");
  EXPECT_EQ(name->index, 2);
  EXPECT_EQ(name->count, 10);
  EXPECT_EQ(parse_shard_name("m-99999-of-99999.gguf")->index, 99998);
  for (const char* bad :
       {"", ".gguf", "m.gguf", "m-00001-of-00002", "m-00001-of-00002.bin", "m-0001-of-00002.gguf",
        "m-00001-of-0002.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-00001-of-00000.gguf",
        "m-0000a-of-00002.gguf", "m-00001-of-0000b.gguf", "m_00001-of-00002.gguf", "m-00001_of-00002.gguf",
        "m-00001-of_00002.gguf", "00001-of-00002.gguf", "m--0001-of-00002.gguf", "m-00001-of-00002.gguf.part",
        "m-00001-of-+0002.gguf"}) {
    EXPECT_EQ(parse_shard_name(bad).has_value(), false) << bad;
  }
}

}  // namespace
}  // namespace tandem
