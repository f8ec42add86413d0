// The n-gram table asks for the pages of its rows before it reads them.
#include "runtime/ngram.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

namespace tandem {
namespace {

struct Asked {
  std::uintptr_t begin, end;
  int advice;
};
std::vector<Asked>& asked() {
  static std::vector<Asked> all;
  return all;
}
int note(void* begin, std::size_t bytes, int advice) {
  const auto at = reinterpret_cast<std::uintptr_t>(begin);
  asked().push_back({at, at + bytes, advice});
  return 0;
}

// 3,000 rows of 100 floats, from an odd place in a page on: many rows begin in one page and end in the next.
class Ngram : public ::testing::Test {
 protected:
  static constexpr std::size_t kRows = 3000, kCols = 100;
  Ngram() : values_(kRows * kCols + 7) {
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(i);
    shape_.ngram_size = 3;
    shape_.heads_per_ngram = 4;
    shape_.ple_row_width = kCols;
    shape_.ple_rows = kRows;
    shape_.ple_eos = 1;
    shape_.ple_multipliers = {1000003, 998244353, 1234567891};
    shape_.ple_vocab_sizes.assign(8, kRows / 8);
    for (std::size_t h = 0; h < 8; ++h) shape_.ple_offsets.push_back(h * (kRows / 8));
    view_ = {reinterpret_cast<const std::uint8_t*>(values_.data() + 7), DType::F32, kRows, kCols, 1.0F, "table"};
    asked().clear();
  }
  // The rows of these tokens, computed here once more.
  std::vector<std::uint64_t> rows_of(const std::vector<TokenId>& tokens) {
    std::vector<std::uint64_t> all;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      std::vector<std::uint64_t> rows(8);
      const std::size_t first = t + 1 - std::min<std::size_t>(t + 1, 3);
      ngram_rows(shape_, std::span(tokens).subspan(first, t + 1 - first), rows);
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
  }
  std::vector<float> values_;
  ModelShape shape_;
  WeightView view_;
  std::uintptr_t page_ = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
};

TEST_F(Ngram, PagesOfRowsOnDiskAreAskedFor) {
  const NgramTable table(shape_, view_, false, note);
  ASSERT_EQ(asked().size(), 1U);
  EXPECT_EQ(asked()[0].advice, MADV_RANDOM);
  EXPECT_EQ(asked()[0].begin % page_, 0U);
  EXPECT_GE(asked()[0].begin, reinterpret_cast<std::uintptr_t>(view_.data));
  EXPECT_LE(asked()[0].end, reinterpret_cast<std::uintptr_t>(view_.data) + view_.bytes());
  asked().clear();
  const std::vector<TokenId> tokens{5, 9, 200, 3, 77, 1, 8};
  std::vector<float> out(tokens.size() * 8 * kCols);
  table.gather({}, tokens, Rows(out.data(), tokens.size(), 8 * kCols));
  const std::vector<std::uint64_t> rows = rows_of(tokens);
  // One request a row, of whole pages from the one that it begins in, and no more than it needs.
  ASSERT_EQ(asked().size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto begin = reinterpret_cast<std::uintptr_t>(view_.row(rows[i])), end = begin + view_.row_size();
    EXPECT_EQ(asked()[i].advice, MADV_WILLNEED);
    EXPECT_EQ(asked()[i].begin, begin - begin % page_) << i;
    EXPECT_GE(asked()[i].end, end) << i;
    EXPECT_LT(asked()[i].end, end + page_) << i;
    EXPECT_EQ(std::memcmp(out.data() + i * kCols, view_.row(rows[i]), view_.row_size()), 0) << i;
  }
}

TEST_F(Ngram, ATableInRamIsAskedForOnce) {
  const NgramTable table(shape_, view_, true, note);
  ASSERT_EQ(asked().size(), 1U);
  EXPECT_EQ(asked()[0].advice, MADV_WILLNEED);
  EXPECT_GT(asked()[0].end - asked()[0].begin, view_.bytes() - 2 * page_);
  asked().clear();
  const std::vector<TokenId> tokens{5, 9};
  std::vector<float> out(2 * 8 * kCols);
  table.gather({}, tokens, Rows(out.data(), 2, 8 * kCols));
  EXPECT_TRUE(asked().empty());
}

// Without a function of a test the kernel is asked: pages of a file that the page cache has dropped come back.
TEST_F(Ngram, TheKernelIsAskedInEarnest) {
  char name[] = "/var/tmp/tandem-ngram-XXXXXX";
  const int file = mkstemp(name);
  ASSERT_GE(file, 0);
  unlink(name);
  const std::size_t bytes = (view_.bytes() + page_ - 1) / page_ * page_;
  ASSERT_EQ(ftruncate(file, static_cast<off_t>(bytes)), 0);
  ASSERT_EQ(pwrite(file, view_.data, view_.bytes(), 0), static_cast<ssize_t>(view_.bytes()));
  ASSERT_EQ(fsync(file), 0);
  void* map = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  ASSERT_NE(map, MAP_FAILED);
  view_.data = static_cast<const std::uint8_t*>(map);
  const auto resident = [&] {
    std::vector<unsigned char> pages(bytes / page_);
    EXPECT_EQ(mincore(map, bytes, pages.data()), 0);
    std::size_t count = 0;
    for (const unsigned char page : pages) count += page & 1U;
    return count;
  };
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  if (resident() == 0) {
    const NgramTable table(shape_, view_);
    const std::vector<TokenId> tokens{5, 9};
    std::vector<float> out(2 * 8 * kCols);
    table.gather({}, tokens, Rows(out.data(), 2, 8 * kCols));
    const std::size_t count = resident();  // of 16 rows, each in one page or two; no window around them
    EXPECT_GE(count, 8U);
    EXPECT_LE(count, 32U);
  }
  const bool kept = resident() > 32;
  munmap(map, bytes);
  close(file);
  if (kept) GTEST_SKIP() << "the page cache of /var/tmp keeps its pages";
}

}  // namespace
}  // namespace tandem
