// Every refusal of the bad-input list of the GGUF notes (docs/formats.md) that concerns one file: the test builds the
// bad file and checks that the message names the file, the field or tensor, what was expected and what was found.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <ostream>

#include "tests/runtime/gguf_cases.h"

namespace tandem {
namespace {

using testing::append;
using testing::GgufBuilder;
using testing::poke;
using testing::position_after;
using testing::small_file;
using testing::TempDir;

using Image = std::vector<std::uint8_t>;

struct Refusal {
  std::string name;
  std::function<Image()> make;
  std::vector<std::string> words;
};
void PrintTo(const Refusal& refusal, std::ostream* out) {
  *out << refusal.name;
}

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

Image cut(Image image, std::size_t size) {
  image.resize(size);
  return image;
}

template <typename Change>
Image changed(Change change) {
  GgufBuilder builder = small_file();
  change(builder);
  return builder.build();
}

// Overwrites a field that lies `distance` bytes after the first occurrence of `text`.
template <typename T>
Image poked(std::string_view text, std::size_t distance, T value) {
  Image image = small_file().build();
  poke(image, position_after(image, text) + distance, value);
  return image;
}

std::vector<Refusal> header_refusals() {
  return {
      {"FileOfThreeBytes",
       [] {
         return Image{'G', 'G', 'U'};
       },
       {"header", "24 bytes", "found 3"}},
      {"NoBytesAtAll", [] { return Image{}; }, {"header", "24 bytes", "found 0"}},
      {"WrongMagic", [] { return changed([](GgufBuilder& b) { b.magic = "GGML"; }); }, {"magic", "'GGUF'", "'GGML'"}},
      {"BinaryMagic", [] { return Image{0x7F, 'E', 'L', 'F', 0, 0, 0, 0}; }, {"magic", "'GGUF'", "'\\x7fELF'"}},
      {"Version0", [] { return changed([](GgufBuilder& b) { b.version = 0; }); }, {"version", "2 or 3", "found 0 "}},
      {"Version1", [] { return changed([](GgufBuilder& b) { b.version = 1; }); }, {"version", "2 or 3", "found 1 "}},
      {"Version4", [] { return changed([](GgufBuilder& b) { b.version = 4; }); }, {"version", "found 4 ", "update"}},
      {"VersionByteSwapped",
       [] { return changed([](GgufBuilder& b) { b.version = 0x03000000; }); },
       {"version", "found 50331648", "big-endian", "swapped"}},
      {"TensorCountNegative",
       [] { return changed([](GgufBuilder& b) { b.tensor_count = -1; }); },
       {"tensor count", "expected 0 to ", "found -1"}},
      {"TensorCountOverflows",
       [] { return changed([](GgufBuilder& b) { b.tensor_count = kHuge; }); },
       {"tensor count", "found 4611686018427387904"}},
      {"TensorCountBeyondTheFile",
       [] { return changed([](GgufBuilder& b) { b.tensor_count = 1000; }); },
       {"tensor count", "found 1000"}},
      {"KeyCountNegative",
       [] { return changed([](GgufBuilder& b) { b.key_value_count = -7; }); },
       {"key count", "expected 0 to ", "found -7"}},
      {"KeyCountOverflows",
       [] { return changed([](GgufBuilder& b) { b.key_value_count = kHuge; }); },
       {"key count", "found 4611686018427387904"}},
      {"CutInTheTensorCount", [] { return cut(small_file().build(), 12); }, {"header", "24 bytes", "found 12"}},
      {"CutInTheKeyCount", [] { return cut(small_file().build(), 23); }, {"header", "24 bytes", "found 23"}},
  };
}

Image with_array(std::uint32_t type, std::uint64_t count, std::size_t payload) {
  return changed([&](GgufBuilder& builder) {
    Image bytes;
    append(bytes, type);
    append(bytes, count);
    bytes.resize(bytes.size() + payload);
    builder.add_raw("some.array", 9, bytes);
  });
}

Image one_long_key() {
  GgufBuilder builder;
  builder.add(std::string(40, 'k'), std::uint32_t{1});
  return builder.build();
}

std::vector<Refusal> key_refusals() {
  const auto key_length = [](std::uint64_t length) {
    return [length] {
      Image image = small_file().build();
      poke(image, 24, length);
      return image;
    };
  };
  return {
      {"KeyLengthAboveOneGiB", key_length((1ULL << 30) + 1), {"key 1 of 3", "length of 1 to ", "found 1073741825"}},
      {"KeyLengthMax", key_length(~0ULL), {"key 1 of 3", "found 18446744073709551615"}},
      {"KeyLengthBeyondTheFile", key_length(100000), {"key 1 of 3", "length of 1 to ", "found 100000"}},
      {"KeyEmpty", key_length(0), {"key 1 of 3", "length of 1 to ", "found 0"}},
      {"KeyCutOff",
       [] { return cut(one_long_key(), 24 + 8 + 20); },
       {"key 1 of 1", "length of 1 to 20 bytes", "found 40"}},
      {"KeyLengthCutOff", [] { return cut(one_long_key(), 30); }, {"key 1 of 1: length", "8 bytes", "after 6"}},
      {"ValueTypeCutOff",
       [] {
         GgufBuilder builder;
         builder.add("k", "vvvvvvvvvvvvvvvvvv");
         return cut(builder.build(), 24 + 8 + 1 + 2);
       },
       {"key 'k': value type", "4 bytes", "after 2"}},
      {"ValueCutOff",
       [] {
         Image image = small_file().build();
         return cut(image, position_after(image, "general.quantization_version") + 4 + 3);
       },
       {"key 'general.quantization_version'", "4 bytes", "after 3"}},
      {"KeyTwice",
       [] { return changed([](GgufBuilder& b) { b.add_duplicate("general.architecture", 1); }); },
       {"key 'general.architecture'", "once", "key 4 of 4"}},
      {"KeyWithOddBytesIsEscaped",
       [] { return changed([](GgufBuilder& b) { b.add_raw("od\x01\xff", 13, {0}); }); },
       {"key 'od\\x01\\xff'"}},
      {"ValueType13",
       [] { return changed([](GgufBuilder& b) { b.add_raw("some.key", 13, Image(8)); }); },
       {"key 'some.key'", "value type of 0 to 12", "found 13"}},
      {"ValueTypeNegative",
       [] { return changed([](GgufBuilder& b) { b.add_raw("some.key", 0xFFFFFFFFU, Image(8)); }); },
       {"key 'some.key'", "value type of 0 to 12", "found 4294967295"}},
      {"ArrayOfArrays", [] { return with_array(9, 1, 64); }, {"key 'some.array'", "element type", "found 9"}},
      {"ArrayElementType13", [] { return with_array(13, 1, 64); }, {"key 'some.array'", "element type", "found 13"}},
      {"ArrayBytesBeyondTheFile",
       [] { return with_array(10, 100000, 8); },
       {"key 'some.array'", "x u64", "found 100000"}},
      {"ArrayCountMax", [] { return with_array(0, ~0ULL, 8); }, {"key 'some.array'", "found 18446744073709551615"}},
      // 8 bytes per string at least: the count alone is beyond the file, though 1 byte each would fit.
      {"StringCountBeyondTheFile", [] { return with_array(8, 200, 0); }, {"key 'some.array'", "x string", "found 200"}},
      {"StringElementBeyondTheFile",
       [] { return poked("tokenizer.ggml.tokens", 4 + 4 + 8, std::uint64_t{100000}); },
       {"key 'tokenizer.ggml.tokens'", "element 0 of 3", "string of at most", "found 100000"}},
      {"StringElementLengthMax",
       [] { return poked("tokenizer.ggml.tokens", 4 + 4 + 8 + 9 + 8, ~std::uint64_t{0}); },
       {"key 'tokenizer.ggml.tokens'", "element 2 of 3", "found 18446744073709551615"}},
      {"StringBeyondTheFile",
       [] { return poked("general.architecture", 4, std::uint64_t{1} << 40); },
       {"key 'general.architecture'", "1099511627776 bytes", "end of the file"}},
      {"AlignmentNotU32",
       [] { return changed([](GgufBuilder& b) { b.add("general.alignment", std::int32_t{32}); }); },
       {"key 'general.alignment'", "u32", "found type i32"}},
      {"AlignmentZero",
       [] { return changed([](GgufBuilder& b) { b.add("general.alignment", std::uint32_t{0}); }); },
       {"key 'general.alignment'", "power of two", "found 0"}},
      {"AlignmentThree",
       [] { return changed([](GgufBuilder& b) { b.add("general.alignment", std::uint32_t{3}); }); },
       {"key 'general.alignment'", "power of two", "found 3"}},
  };
}

Refusal type_refusal(std::uint32_t id, std::vector<std::string> words) {
  words.insert(words.begin(), {"tensor 'second.weight'", "known tensor type"});
  return {"TensorType" + std::to_string(id),
          [id] {
            return changed([id](GgufBuilder& builder) {
              testing::TensorSpec& tensor = builder.find("second.weight");
              tensor.type_id = id;
              tensor.bytes = 36;
            });
          },
          words};
}

Image with_shape(std::vector<std::int64_t> ne, DType type = DType::F32) {
  return changed([&](GgufBuilder& builder) {
    testing::TensorSpec& tensor = builder.find("third.weight");
    tensor.ne = std::move(ne);
    tensor.type_id = static_cast<std::uint32_t>(type);
    tensor.bytes = 24;
  });
}

std::vector<Refusal> tensor_refusals() {
  std::vector<Refusal> list = {
      {"NameOf64Bytes",
       [] { return changed([](GgufBuilder& b) { b.find("third.weight").name = std::string(64, 'n'); }); },
       {"tensor 3 of 3", "at most 63 bytes", "found 64"}},
      {"NameLengthMax",
       [] {
         Image image = small_file().build();
         poke(image, position_after(image, "third.weight") - 12 - 8, ~std::uint64_t{0});
         return image;
       },
       {"tensor 3 of 3", "at most 63 bytes", "found 18446744073709551615"}},
      {"NameTwice",
       [] { return changed([](GgufBuilder& b) { b.find("third.weight").name = "first.weight"; }); },
       {"tensor 'first.weight'", "once", "tensor 3 of 3"}},
      {"NameCutOff",
       [] {
         Image image = small_file().build();
         return cut(image, position_after(image, "third.weight") - 5);
       },
       {"tensor 3 of 3: name", "12 bytes", "after 7"}},
      {"DimensionsCutOff",
       [] {
         Image image = small_file().build();
         return cut(image, position_after(image, "third.weight") + 4 + 7);
       },
       {"tensor 'third.weight': dimensions", "8 bytes", "after 7"}},
      {"TypeCutOff",
       [] {
         Image image = small_file().build();
         return cut(image, position_after(image, "third.weight") + 4 + 8 + 1);
       },
       {"tensor 'third.weight': type", "4 bytes", "after 1"}},
      {"OffsetCutOff",
       [] {
         Image image = small_file().build();
         return cut(image, position_after(image, "third.weight") + 4 + 8 + 4 + 5);
       },
       {"tensor 'third.weight': offset", "8 bytes", "after 5"}},
      {"FiveDimensions",
       [] {
         return with_shape({6, 1, 1, 1, 1});
       },
       {"tensor 'third.weight'", "at most 4 dimensions", "found 5"}},
      {"NegativeDimension",
       [] {
         return with_shape({6, -1});
       },
       {"tensor 'third.weight'", "dimension 1", "0 or more", "found -1"}},
      {"ElementCountOverflows",
       [] {
         return with_shape({kHuge, 2});
       },
       {"tensor 'third.weight'", "[4611686018427387904, 2]", "2^63"}},
      {"ElementCountOverflowsFar",
       [] {
         return with_shape({kHuge, kHuge, kHuge, kHuge});
       },
       {"tensor 'third.weight'", "2^63"}},
      {"RowLengthNotInBlocks",
       [] {
         return with_shape({160, 2}, DType::Q4_K);
       },
       {"tensor 'third.weight'", "multiple of 256", "Q4_K", "found 160"}},
      {"ByteSizeOverflows", [] { return with_shape({kHuge}, DType::F64); }, {"tensor 'third.weight'", "2^64 bytes"}},
      {"OffsetTooLarge",
       [] { return changed([](GgufBuilder& b) { b.find("second.weight").offset = 128; }); },
       {"tensor 'second.weight'", "offset", "expected 96 ", "right after 'first.weight'", "found 128"}},
      {"OffsetOverlaps",
       [] { return changed([](GgufBuilder& b) { b.find("third.weight").offset = 96; }); },
       {"tensor 'third.weight'", "offset", "expected 160 ", "found 96"}},
      {"FirstOffsetNotZero",
       [] { return changed([](GgufBuilder& b) { b.find("first.weight").offset = 32; }); },
       {"tensor 'first.weight'", "offset", "expected 0 ", "start of the data", "found 32"}},
      {"EndOfDataOverflows",
       [] {
         return changed([](GgufBuilder& b) {
           for (const char* name : {"first.weight", "second.weight"}) {
             testing::TensorSpec& tensor = b.find(name);
             tensor.type_id = static_cast<std::uint32_t>(DType::F64);
             tensor.ne = {std::int64_t{1} << 60};
             tensor.bytes = 0;
             tensor.data.clear();
           }
           b.find("second.weight").offset = 1ULL << 63;
         });
       },
       {"tensor 'second.weight'", "end of data", "2^64"}},
      {"EndOfDataOverflowsByPadding",
       [] {
         return changed([](GgufBuilder& b) {
           testing::TensorSpec& tensor = b.find("first.weight");
           tensor.type_id = static_cast<std::uint32_t>(DType::I16);  // 2^64 - 2 bytes fit, their padding does not
           tensor.ne = {std::numeric_limits<std::int64_t>::max()};
           tensor.bytes = 0;
           tensor.data.clear();
         });
       },
       {"tensor 'first.weight'", "end of data", "2^64"}},
      // The key says 64, the file is padded to 32.
      {"AlignmentInconsistent",
       [] { return changed([](GgufBuilder& b) { b.add("general.alignment", std::uint32_t{64}); }); },
       {"tensor 'second.weight'", "offset", "expected 128 ", "alignment 64", "found 96"}},
      {"FileEndsWithTheHeader",
       [] {
         Image image = small_file().build();
         return cut(image, position_after(image, "third.weight") + 4 + 8 + 4 + 8);
       },
       {"tensor 'first.weight'", "data", "expected 96 bytes"}},
      {"DataShorterByOneByte",
       [] {
         const GgufBuilder builder = small_file();
         return cut(builder.build(), builder.data_offset() + 160 + 23);
       },
       {"tensor 'third.weight'", "data", "expected 24 bytes", "found a file of "}},
      {"DataWithoutTheLastTensor",
       [] {
         const GgufBuilder builder = small_file();
         return cut(builder.build(), builder.data_offset() + 100);
       },
       {"tensor 'second.weight'", "data", "expected 36 bytes"}},
      type_refusal(0xFFFFFFFFU, {"unknown type id -1", "private type"}),
      type_refusal(43, {"unknown type id 43", "private type of another program?"}),
      type_refusal(45, {"unknown type id 45"}),
      type_refusal(143, {"unknown type id 143"}),
      type_refusal(9, {"type id 9", "Q8_1", "activations"}),
      type_refusal(15, {"type id 15", "Q8_K", "activations"}),
  };
  for (const std::uint32_t id : {4U, 5U, 31U, 32U, 33U, 36U, 37U, 38U}) {
    list.push_back(type_refusal(id, {"type id " + std::to_string(id) + " (", "removed from the format"}));
  }
  return list;
}

// Type 42 with PrismML's 34-byte blocks of 128: in the middle of a file the next offset gives it away, at the end the
// file's length.
Image with_prism(bool last) {
  return changed([last](GgufBuilder& builder) {
    if (last) builder.remove_tensor("third.weight");
    testing::TensorSpec& tensor = builder.find("second.weight");
    tensor.type_id = static_cast<std::uint32_t>(DType::Q2_0);
    tensor.ne = {256, 8};
    tensor.data.clear();
    tensor.bytes = 16 * 34;
  });
}

std::vector<Refusal> foreign_refusals() {
  return {
      {"PrismInTheMiddle",
       [] { return with_prism(false); },
       {"tensor 'second.weight'", "64 values in 18 bytes", "PrismML", "128 values in 34 bytes", "type id 42"}},
      {"PrismAtTheEnd",
       [] { return with_prism(true); },
       {"tensor 'second.weight'", "64 values in 18 bytes", "PrismML", "128 values in 34 bytes"}},
      {"PublicQ2CutOffIsNotPrism",
       [] {
         return cut(changed([](GgufBuilder& builder) {
                      builder.remove_tensor("third.weight");
                      testing::TensorSpec& tensor = builder.find("second.weight");
                      tensor = {"second.weight", 42, {256, 8}, {}, {}, {}, {}};
                    }),
                    small_file().build().size());
       },
       {"tensor 'second.weight'", "data", "expected 576 bytes"}},
  };
}

class GgufRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(GgufRefusal, NamesTheFault) {
  const Image image = GetParam().make();
  const std::string message = testing::message_of([&] { (void)Gguf::parse(image, "models/bad.gguf"); });
  testing::expect_refusal(message, "models/bad.gguf: ", GetParam().words);
}

std::string refusal_name(const ::testing::TestParamInfo<Refusal>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Header, GgufRefusal, ::testing::ValuesIn(header_refusals()), refusal_name);
INSTANTIATE_TEST_SUITE_P(Keys, GgufRefusal, ::testing::ValuesIn(key_refusals()), refusal_name);
INSTANTIATE_TEST_SUITE_P(Tensors, GgufRefusal, ::testing::ValuesIn(tensor_refusals()), refusal_name);
INSTANTIATE_TEST_SUITE_P(Foreign, GgufRefusal, ::testing::ValuesIn(foreign_refusals()), refusal_name);

// Without the change, the same file opens: each refusal above is due to its one fault.
TEST(GgufRefusals, TheUnchangedFileOpens) {
  const Image image = small_file().build();
  EXPECT_EQ(Gguf::parse(image).tensors().size(), 3U);
}

// A file cut anywhere is refused, until only the padding behind the last tensor is missing.
TEST(GgufRefusals, EveryPrefixIsRefused) {
  const GgufBuilder builder = small_file();
  const Image image = builder.build();
  const std::size_t needed = builder.data_offset() + 160 + 24;
  ASSERT_LT(needed, image.size());
  for (std::size_t size = 0; size < image.size(); ++size) {
    // A copy of exactly this size, so that a sanitizer sees any read past it.
    const Image prefix(image.begin(), image.begin() + static_cast<std::ptrdiff_t>(size));
    if (size >= needed) {
      EXPECT_NO_THROW((void)Gguf::parse(prefix)) << size;
    } else {
      EXPECT_THROW((void)Gguf::parse(prefix), InputError) << size;
    }
  }
}

// Arrays beyond 2^30 elements, in a (sparse) file that would hold them.
TEST(GgufRefusals, ArrayOfMoreThan2To30Elements) {
  const TempDir dir;
  GgufBuilder builder = small_file();
  Image bytes;
  append(bytes, std::uint32_t{0});
  append(bytes, (std::uint64_t{1} << 30) + 1);
  builder.add_raw("some.array", 9, bytes);
  builder.tensor("large.weight", DType::I8, {std::int64_t{3} << 30});
  const std::filesystem::path path = builder.write(dir / "large.gguf");
  const std::string message = testing::message_of([&] { (void)Gguf::open(path); });
  testing::expect_refusal(message, path.string() + ": ",
                          {"key 'some.array'", "at most 1073741824 x u8", "found 1073741825"});
}

// An array that the file holds but memory does not: a message, not a crash.
TEST(GgufRefusalsDeathTest, OutOfMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve address space and end the program themselves";
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  GTEST_SKIP() << "sanitizers reserve address space and end the program themselves";
#endif
#endif
  const TempDir dir;
  GgufBuilder builder = small_file();
  Image bytes;
  append(bytes, std::uint32_t{0});
  append(bytes, std::uint64_t{1} << 30);
  builder.add_raw("some.array", 9, bytes);
  builder.tensor("large.weight", DType::I8, {std::int64_t{1} << 30});
  const std::filesystem::path path = builder.write(dir / "large.gguf");
  const auto open_in_four_gib = [&path] {
    const rlimit limit{std::uint64_t{4} << 30, std::uint64_t{4} << 30};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(3);
    try {
      (void)Gguf::open(path);
    } catch (const InputError& error) {
      std::fputs(error.what(), stderr);
      std::_Exit(0);
    }
    std::_Exit(4);
  };
  EXPECT_EXIT(open_in_four_gib(), ::testing::ExitedWithCode(0), "large.gguf: .*memory.* Fix: ");
}

}  // namespace
}  // namespace tandem
