// The directory of correct files, checked against what the builder was asked to write; the lenient readers; files that
// cannot be opened; the model in models/.
#include "runtime/gguf.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "tests/runtime/gguf_cases.h"

namespace tandem {
namespace {

using testing::append;
using testing::expect_refusal;
using testing::GgufBuilder;
using testing::message_of;
using testing::small_file;
using testing::TempDir;

using Image = std::vector<std::uint8_t>;

TEST(Gguf, TensorsOfTheSmallFile) {
  const Image image = small_file().build();
  const Gguf gguf = Gguf::parse(image, "small.gguf");
  EXPECT_EQ(gguf.name(), "small.gguf");
  EXPECT_EQ(gguf.version(), 3U);
  ASSERT_EQ(gguf.shards().size(), 1U);
  const GgufShard& shard = gguf.shards()[0];
  EXPECT_EQ(shard.path, "small.gguf");
  EXPECT_EQ(shard.file_bytes, image.size());
  EXPECT_EQ(shard.data_offset, small_file().data_offset());
  EXPECT_EQ(shard.tensors, 3U);
  ASSERT_EQ(gguf.tensors().size(), 3U);
  const GgufTensor& first = gguf.tensors()[0];
  EXPECT_EQ(first.name, "first.weight");
  EXPECT_EQ(first.type, DType::F32);
  EXPECT_EQ(first.n_dims, 2);
  EXPECT_EQ(first.ne, (std::array<std::int64_t, 4>{8, 3, 1, 1}));
  EXPECT_EQ(first.bytes, 96U);
  EXPECT_EQ(first.offset, shard.data_offset);
  const GgufTensor& third = gguf.tensors()[2];
  EXPECT_EQ(third.offset, shard.data_offset + 160);
  EXPECT_EQ(third.data, image.data() + third.offset);
  const float expected[] = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(std::memcmp(third.data, expected, sizeof expected), 0);
  EXPECT_EQ(gguf.find_tensor("second.weight"), &gguf.tensors()[1]);
  EXPECT_EQ(gguf.find_tensor("second.weigh"), nullptr);
  EXPECT_EQ(gguf.find_tensor(""), nullptr);
}

TEST(Gguf, HeaderOnlyFileLoads) {
  const Image image = GgufBuilder().build();
  for (const std::size_t size : {std::size_t{24}, image.size()}) {
    const Gguf gguf = Gguf::parse({image.data(), size});
    EXPECT_TRUE(gguf.tensors().empty());
    EXPECT_TRUE(gguf.metadata().empty());
    EXPECT_LE(gguf.shards()[0].data_offset, size);
  }
}

TEST(Gguf, Version2Loads) {
  GgufBuilder builder = small_file();
  builder.version = 2;
  const Image image = builder.build();
  EXPECT_EQ(Gguf::parse(image).version(), 2U);
}

TEST(Gguf, ZeroDimensionsAreAScalarAndZeroSizesAreEmpty) {
  GgufBuilder builder;
  builder.tensor("scalar", DType::F32, {});
  builder.tensor("empty", DType::Q8_0, {0, 5});
  builder.tensor("after", std::vector<float>{7});
  builder.tensor("empty_at_the_end", DType::F32, {4, 0});
  const Image image = builder.build();
  const Gguf gguf = Gguf::parse(image);
  EXPECT_EQ(gguf.tensors()[0].n_dims, 0);
  EXPECT_EQ(gguf.tensors()[0].bytes, 4U);
  EXPECT_EQ(gguf.tensors()[1].bytes, 0U);
  EXPECT_EQ(gguf.tensors()[2].offset, gguf.tensors()[0].offset + 32);
  EXPECT_EQ(*reinterpret_cast<const float*>(gguf.tensors()[2].data), 7.0F);
  EXPECT_LE(gguf.tensors()[3].data, image.data() + image.size());
}

TEST(Gguf, EveryTensorTypeHasItsSize) {
  GgufBuilder builder;
  std::vector<std::uint64_t> sizes;
  for (std::uint32_t id = 0; id < 43; ++id) {
    const DTypeInfo* info = find_dtype(id);
    if (info == nullptr) continue;
    builder.tensor(std::string(info->name), info->type, {512, 3, 2});
    sizes.push_back(512 * 6 / info->block_elems * info->block_bytes);
  }
  const Image image = builder.build();
  const Gguf gguf = Gguf::parse(image);
  ASSERT_EQ(gguf.tensors().size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(gguf.tensors()[i].bytes, sizes[i]);
}

TEST(Gguf, AlignmentOfTheFile) {
  for (const std::uint32_t alignment : {1U, 8U, 64U, 4096U}) {
    GgufBuilder builder = small_file();
    builder.alignment(alignment);
    const Image image = builder.build();
    const Gguf gguf = Gguf::parse(image);
    for (const GgufTensor& tensor : gguf.tensors()) EXPECT_EQ(tensor.offset % alignment, 0U);
    EXPECT_EQ(gguf.tensors()[2].data[3], 0x3F);  // the top byte of 1.0F
  }
}

template <typename T>
void expect_value(const Gguf& gguf, std::string_view key, std::uint32_t type, T expected) {
  const GgufValue* value = gguf.find(key);
  ASSERT_NE(value, nullptr) << key;
  ASSERT_TRUE(std::holds_alternative<T>(*value)) << key;
  EXPECT_EQ(std::get<T>(*value), expected) << key;
  for (const GgufKeyValue& pair : gguf.metadata()) {
    EXPECT_TRUE(pair.key != key || pair.type == type) << key;
  }
}

TEST(Gguf, ScalarsOfEveryType) {
  GgufBuilder builder;
  builder.add("u8", std::uint8_t{200}).add("i8", std::int8_t{-100}).add("u16", std::uint16_t{60000});
  builder.add("i16", std::int16_t{-30000}).add("u32", std::uint32_t{4000000000U}).add("i32", std::int32_t{-2000000000});
  builder.add("f32", 0.1F).add("true", true).add("false", false).add("text", "a\xff\0b");
  builder.add("u64", ~std::uint64_t{0}).add("i64", std::numeric_limits<std::int64_t>::min()).add("f64", 0.1);
  builder.add("empty", "");
  const Image image = builder.build();
  const Gguf gguf = Gguf::parse(image);
  EXPECT_EQ(gguf.metadata().size(), 14U);
  EXPECT_EQ(gguf.metadata()[2].key, "u16");
  expect_value<std::uint64_t>(gguf, "u8", 0, 200);
  expect_value<std::int64_t>(gguf, "i8", 1, -100);
  expect_value<std::uint64_t>(gguf, "u16", 2, 60000);
  expect_value<std::int64_t>(gguf, "i16", 3, -30000);
  expect_value<std::uint64_t>(gguf, "u32", 4, 4000000000U);
  expect_value<std::int64_t>(gguf, "i32", 5, -2000000000);
  expect_value<double>(gguf, "f32", 6, double{0.1F});
  expect_value<bool>(gguf, "true", 7, true);
  expect_value<bool>(gguf, "false", 7, false);
  expect_value<std::string_view>(gguf, "text", 8, "a\xff");
  expect_value<std::string_view>(gguf, "empty", 8, "");
  expect_value<std::uint64_t>(gguf, "u64", 10, ~std::uint64_t{0});
  expect_value<std::int64_t>(gguf, "i64", 11, std::numeric_limits<std::int64_t>::min());
  expect_value<double>(gguf, "f64", 12, 0.1);
  EXPECT_EQ(gguf.find("absent"), nullptr);
}

TEST(Gguf, ArraysOfEveryType) {
  GgufBuilder builder;
  builder.add("u8", std::vector<std::uint8_t>{1, 255}).add("i8", std::vector<std::int8_t>{-1, 127});
  builder.add("u16", std::vector<std::uint16_t>{65535}).add("i16", std::vector<std::int16_t>{-32768});
  builder.add("u32", std::vector<std::uint32_t>{4294967295U}).add("i32", std::vector<std::int32_t>{-5, 6, 7});
  builder.add("u64", std::vector<std::uint64_t>{~std::uint64_t{0}}).add("i64", std::vector<std::int64_t>{-1});
  builder.add("f32", std::vector<float>{0.5F, -2.0F}).add("f64", std::vector<double>{0.1});
  builder.add("text", std::vector<std::string>{"", "b", std::string("c\0d", 3)});
  builder.add("none", std::vector<std::int32_t>{}).add("no_text", std::vector<std::string>{});
  Image flags;
  append(flags, std::uint32_t{7});
  append(flags, std::uint64_t{3});
  flags.insert(flags.end(), {0, 1, 2});  // any non-zero byte is true
  builder.add_raw("bool", 9, flags);
  const Image image = builder.build();
  const Gguf gguf = Gguf::parse(image);
  EXPECT_EQ(gguf.integers("u8"), (std::vector<std::int64_t>{1, 255}));
  EXPECT_EQ(gguf.integers("i8"), (std::vector<std::int64_t>{-1, 127}));
  EXPECT_EQ(gguf.integers("u16"), (std::vector<std::int64_t>{65535}));
  EXPECT_EQ(gguf.integers("i16"), (std::vector<std::int64_t>{-32768}));
  EXPECT_EQ(gguf.integers("u32"), (std::vector<std::int64_t>{4294967295}));
  EXPECT_EQ(gguf.integers("i32"), (std::vector<std::int64_t>{-5, 6, 7}));
  EXPECT_EQ(gguf.integers("i64"), (std::vector<std::int64_t>{-1}));
  EXPECT_EQ(gguf.integers("bool"), (std::vector<std::int64_t>{0, 1, 1}));
  EXPECT_EQ(gguf.unsigned_integers("u64"), (std::vector<std::uint64_t>{~std::uint64_t{0}}));
  EXPECT_EQ(gguf.numbers("f32"), (std::vector<double>{0.5, -2}));
  EXPECT_EQ(gguf.numbers("f64"), (std::vector<double>{0.1}));
  EXPECT_EQ(gguf.numbers("i32"), (std::vector<double>{-5, 6, 7}));
  EXPECT_EQ(gguf.numbers("u8"), (std::vector<double>{1, 255}));
  EXPECT_EQ(gguf.strings("text"), (std::vector<std::string_view>{"", "b", std::string_view("c\0d", 3)}));
  EXPECT_EQ(gguf.integers("none"), (std::vector<std::int64_t>{}));
  EXPECT_EQ(gguf.strings("no_text"), (std::vector<std::string_view>{}));
  const auto& array = std::get<GgufArray>(*gguf.find("i32"));
  EXPECT_EQ(array.element_type, 5U);
  EXPECT_EQ(array.size(), 3U);
  EXPECT_EQ(std::get<GgufArray>(*gguf.find("text")).size(), 3U);
}

Image metadata_image() {
  GgufBuilder builder;
  builder.add("zero", std::uint8_t{0}).add("one", std::int64_t{1}).add("two", std::uint16_t{2});
  builder.add("minus", std::int8_t{-3}).add("most", ~std::uint64_t{0}).add("real", 2.5F).add("yes", true);
  builder.add("text", "hello")
      .add("list", std::vector<std::int32_t>{1, -2})
      .add("names", std::vector<std::string>{"x"});
  builder.add("large", std::vector<std::uint64_t>{5, ~std::uint64_t{0}}).add("reals", std::vector<float>{1});
  return builder.build();
}

TEST(GgufReaders, AcceptEveryTypeThatHoldsTheValue) {
  const Image image = metadata_image();
  const Gguf gguf = Gguf::parse(image);
  EXPECT_EQ(gguf.integer("zero"), 0);
  EXPECT_EQ(gguf.integer("one"), 1);
  EXPECT_EQ(gguf.integer("two"), 2);
  EXPECT_EQ(gguf.integer("minus"), -3);
  EXPECT_EQ(gguf.number("real"), 2.5);
  EXPECT_EQ(gguf.number("minus"), -3);
  EXPECT_EQ(gguf.number("most"), 18446744073709551615.0);
  EXPECT_EQ(gguf.boolean("yes"), true);
  EXPECT_EQ(gguf.boolean("zero"), false);
  EXPECT_EQ(gguf.boolean("one"), true);
  EXPECT_EQ(gguf.string("text"), "hello");
  EXPECT_EQ(gguf.require_integer("two"), 2);
  EXPECT_EQ(gguf.require_number("real"), 2.5);
  EXPECT_EQ(gguf.require_string("text"), "hello");
}

TEST(GgufReaders, AbsentIsNotAnError) {
  const Image image = metadata_image();
  const Gguf gguf = Gguf::parse(image);
  EXPECT_EQ(gguf.integer("absent"), std::nullopt);
  EXPECT_EQ(gguf.number("absent"), std::nullopt);
  EXPECT_EQ(gguf.boolean("absent"), std::nullopt);
  EXPECT_EQ(gguf.string("absent"), std::nullopt);
  EXPECT_EQ(gguf.integers("absent"), std::nullopt);
  EXPECT_EQ(gguf.unsigned_integers("absent"), std::nullopt);
  EXPECT_EQ(gguf.numbers("absent"), std::nullopt);
  EXPECT_EQ(gguf.strings("absent"), std::nullopt);
}

TEST(GgufReaders, RefusalsNameFileAndKey) {
  const Image image = metadata_image();
  const Gguf gguf = Gguf::parse(image, "meta.gguf");
  const auto refused = [&gguf](auto reader, std::string_view key, std::vector<std::string> words) {
    words.push_back("key '" + std::string(key) + "'");
    expect_refusal(message_of([&] { (void)(gguf.*reader)(key); }), "meta.gguf: ", words);
  };
  refused(&Gguf::integer, "text", {"an integer", "found string 'hello'"});
  refused(&Gguf::integer, "real", {"an integer", "found f32 2.5"});
  refused(&Gguf::integer, "yes", {"an integer", "found bool true"});
  refused(&Gguf::integer, "list", {"an integer", "found an array of 2 x i32"});
  refused(&Gguf::integer, "most", {"up to 9223372036854775807", "found u64 18446744073709551615"});
  refused(&Gguf::number, "text", {"a number", "found string"});
  refused(&Gguf::number, "yes", {"a number", "found bool"});
  refused(&Gguf::boolean, "two", {"a bool", "found u16 2"});
  refused(&Gguf::boolean, "minus", {"a bool", "found i8 -3"});
  refused(&Gguf::boolean, "text", {"a bool", "found string"});
  refused(&Gguf::string, "two", {"a string", "found u16 2"});
  refused(&Gguf::string, "names", {"a string", "found an array of 1 x string"});
  refused(&Gguf::integers, "two", {"an array of integers", "found u16 2"});
  refused(&Gguf::integers, "names", {"an array of integers", "1 x string"});
  refused(&Gguf::integers, "reals", {"an array of integers", "1 x f32"});
  refused(&Gguf::integers, "large", {"up to 9223372036854775807", "element 1 is 18446744073709551615"});
  refused(&Gguf::unsigned_integers, "list", {"integers from 0 up", "element 1 is -2"});
  refused(&Gguf::unsigned_integers, "reals", {"an array of integers", "1 x f32"});
  refused(&Gguf::numbers, "names", {"an array of numbers", "1 x string"});
  refused(&Gguf::numbers, "real", {"an array of numbers", "found f32 2.5"});
  refused(&Gguf::strings, "text", {"an array of strings", "found string 'hello'"});
  refused(&Gguf::strings, "list", {"an array of strings", "2 x i32"});
  refused(&Gguf::require_integer, "absent", {"an integer", "no such key"});
  refused(&Gguf::require_number, "absent", {"a number", "no such key"});
  refused(&Gguf::require_string, "absent", {"a string", "no such key"});
}

TEST(Gguf, LongTextInMessagesIsCutAndEscaped) {
  GgufBuilder builder;
  builder.add("template", std::string(500, 'x')).add("odd", "a\nb");
  const Image image = builder.build();
  const Gguf gguf = Gguf::parse(image, "t.gguf");
  const std::string message = message_of([&] { (void)gguf.integer("template"); });
  EXPECT_LT(message.size(), 250U) << message;
  expect_refusal(message_of([&] { (void)gguf.integer("odd"); }), "t.gguf: ", {"found string 'a\\x0ab'"});
}

TEST(Gguf, MovedDirectoriesKeepWorking) {
  const TempDir dir;
  Gguf first = Gguf::open(small_file().write(dir / "a.gguf"));
  const std::uint8_t* data = first.find_tensor("third.weight")->data;
  Gguf second = std::move(first);
  EXPECT_EQ(second.find_tensor("third.weight")->data, data);
  EXPECT_EQ(second.string("general.architecture"), "qwen4exp");
  Gguf third = Gguf::open(small_file().write(dir / "b.gguf"));
  third = std::move(second);
  EXPECT_EQ(third.find_tensor("third.weight")->data, data);
  EXPECT_EQ(data[3], 0x3F);
}

// The sizes of the real tokenizer and a directory of many tensors: linear work, no copy of the strings.
TEST(Gguf, LargeDirectoriesAreFast) {
  GgufBuilder builder;
  std::vector<std::string> tokens;
  for (int i = 0; i < 248320; ++i) tokens.push_back("token" + std::to_string(i));
  builder.add("tokenizer.ggml.tokens", tokens);
  for (int i = 0; i < 20000; ++i) builder.tensor("tensor." + std::to_string(i), DType::F32, {1});
  const Image image = builder.build();
  const auto start = std::chrono::steady_clock::now();
  const Gguf gguf = Gguf::parse(image);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), 2.0);  // measured 0.03 s; quadratic work takes minutes
  const auto& views =
      std::get<std::vector<std::string_view>>(std::get<GgufArray>(*gguf.find("tokenizer.ggml.tokens")).values);
  ASSERT_EQ(views.size(), 248320U);
  EXPECT_EQ(views.back(), "token248319");
  const auto* text = reinterpret_cast<const std::uint8_t*>(views.back().data());
  EXPECT_TRUE(text > image.data() && text < image.data() + image.size());
  EXPECT_EQ(gguf.find_tensor("tensor.19999"), &gguf.tensors()[19999]);
}

// Offsets beyond 32 bits, of a tensor and inside a tensor, with the n-gram table's row width.
TEST(Gguf, SparseFileBeyondFourGiB) {
  constexpr std::int64_t kRows = 60000000;  // x 90 bytes = 5.4e9
  const TempDir dir;
  GgufBuilder builder;
  builder.tensor("table", DType::IQ4_NL, {160, kRows});
  builder.tensor("after", std::vector<float>{4, 5});
  const std::filesystem::path path = builder.write(dir / "large.gguf");
  const Gguf gguf = Gguf::open(path);
  const GgufTensor& table = *gguf.find_tensor("table");
  EXPECT_EQ(table.bytes, 5400000000U);
  const GgufTensor& after = *gguf.find_tensor("after");
  EXPECT_GT(after.offset, std::uint64_t{1} << 32);
  EXPECT_EQ(after.offset, table.offset + table.bytes);
  EXPECT_EQ(reinterpret_cast<const float*>(after.data)[1], 5.0F);
  EXPECT_EQ(table.data[table.bytes - 1], 0);
  std::vector<float> row(160, 1.0F);
  dequantize_row(DType::IQ4_NL, table.data + (kRows - 1) * 90, 160, row.data());
  EXPECT_EQ(row[159], 0.0F);
  std::filesystem::resize_file(path, after.offset);
  expect_refusal(message_of([&] { (void)Gguf::open(path); }), path.string() + ": ",
                 {"tensor 'after'", "8 bytes at byte " + std::to_string(after.offset)});
}

TEST(Gguf, ModelInTheRepository) {
  const Gguf gguf = Gguf::open(TANDEM_SOURCE_DIR "/models/flash-next-nano-q4.gguf");
  EXPECT_EQ(gguf.require_string("general.architecture"), "qwen4exp");
  ASSERT_NE(gguf.find_tensor("token_embd.weight"), nullptr);
  EXPECT_EQ(static_cast<std::size_t>(gguf.find_tensor("token_embd.weight")->ne[1]),
            gguf.strings("tokenizer.ggml.tokens")->size());
  std::uint64_t end = 0;
  for (const GgufTensor& tensor : gguf.tensors()) {
    EXPECT_EQ(find_bad_values(tensor), std::nullopt);
    end = std::max(end, tensor.offset + tensor.bytes);
  }
  EXPECT_LE(end, gguf.shards()[0].file_bytes);
  EXPECT_GT(end + 32, gguf.shards()[0].file_bytes);
}

TEST(GgufOpen, FilesThatCannotBeOpened) {
  const TempDir dir;
  const auto refused = [&dir](std::string_view name, std::vector<std::string> words) {
    expect_refusal(message_of([&] { (void)Gguf::open(dir / name); }), (dir / name).string(), words);
  };
  refused("absent.gguf", {"expected a file", "found none"});
  small_file().write(dir / "file.gguf");
  refused("file.gguf/inside", {"expected a file", "found none"});
  std::filesystem::create_directory(dir / "folder");
  refused("folder", {"found a directory"});
  testing::write_file(dir / "empty.gguf", {});
  refused("empty.gguf", {"found an empty file"});
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  refused("pipe", {"regular file", "pipe"});
}

// In a child process that gives up the superuser's rights first, should it have them.
TEST(GgufOpenDeathTest, FileWithoutPermission) {
  constexpr uid_t kNobody = 65534;
  const TempDir dir;
  const std::filesystem::path path = small_file().write(dir / "secret.gguf");
  ASSERT_EQ(::chmod(dir.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const auto open_as_a_user = [&path] {
    if (::geteuid() == 0 && ::setuid(kNobody) != 0) std::_Exit(3);
    std::fputs(message_of([&] { (void)Gguf::open(path); }).c_str(), stderr);
    std::_Exit(0);
  };
  EXPECT_EXIT(open_as_a_user(), ::testing::ExitedWithCode(0), "secret.gguf: expected a readable file, found .*Fix: ");
}

}  // namespace
}  // namespace tandem
