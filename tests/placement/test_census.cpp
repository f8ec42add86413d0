// The census file: exact text, round trip, refusals word by word; merging and mixing against sums done by hand.
#include "placement/census.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "placement/check.h"
#include "tests/placement/temporary_file.h"

namespace tandem {
namespace {

constexpr std::string_view kSmall =
    "tandem-census,1\n"
    "model,nano, q4\n"
    "fingerprint,00000000deadbeef\n"
    "banks,2\n"
    "experts,4\n"
    "used,2\n"
    "parts,3\n"
    "rows,code,prefill,3\n"
    "rows,code,decode,1\n"
    "rows,prose,prefill,2\n"
    "routes,code,prefill,0,3,3,2,1,0\n"
    "routes,code,prefill,1,0,0,0,0,0\n"
    "routes,code,decode,0,1,0,0,1,1\n"
    "routes,code,decode,1,1,1,1,0,0\n"
    "routes,prose,prefill,0,2,0,2,1,1\n"
    "routes,prose,prefill,1,2,1,1,1,1\n";

Census small() {
  return parse_census(kSmall, "a.csv");
}

// What parse_census says, or "".
std::string refusal(const std::string& text) {
  try {
    parse_census(text, "a.csv");
  } catch (const InputError& error) {
    return error.what();
  }
  return {};
}

std::string with(std::string_view from, std::string_view to) {
  std::string text(kSmall);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Census, CountsByDomainAndPhase) {
  Census census;
  census.model = "nano, q4";
  census.fingerprint = 0xdeadbeef;
  census.banks = 2;
  census.experts = 4;
  census.used = 2;
  for (const std::vector<std::int32_t>& row : {std::vector<std::int32_t>{1, 2}, {3, 1}})
    census.add("prose", Phase::kPrefill, 0, row);
  census.add("prose", Phase::kPrefill, 1, std::vector<std::int32_t>{0, 1, 2, 3});
  census.add("code", Phase::kPrefill, 0, std::vector<std::int32_t>{0, 1, 1, 0, 2, 0});
  census.add("code", Phase::kDecode, 1, std::vector<std::int32_t>{0, 1});
  census.add("code", Phase::kDecode, 0, std::vector<std::int32_t>{3, 2});
  EXPECT_EQ(format_census(census), kSmall);
  EXPECT_EQ(census.rows(), 6U);
}

TEST(Census, TextToCensusAndBack) {
  const Census census = small();
  EXPECT_EQ(census.model, "nano, q4");
  EXPECT_EQ(census.fingerprint, 0xdeadbeefU);
  EXPECT_EQ(census.domains.at("code").prefill.rows, 3U);
  EXPECT_EQ(census.domains.at("code").decode.routes, (std::vector<std::uint64_t>{0, 0, 1, 1, 1, 1, 0, 0}));
  EXPECT_TRUE(census.domains.at("prose").decode.routes.empty());
  EXPECT_EQ(format_census(census), kSmall);
  Census named = census;
  named.model = "two\nlines";
  EXPECT_EQ(parse_census(format_census(named), "a").model, "two lines");
}

TEST(Census, FilesKeepLargeCounts) {
  Census census{"m", ~std::uint64_t{0}, 1, 2, 1, {}};
  census.domains["x"].prefill = {std::uint64_t{1} << 40, {(std::uint64_t{1} << 40) - 7, 7}};
  const testing::TemporaryFolder folder;
  const std::string path = (folder.path() / "large.census.csv").string();
  save_census(census, path);
  EXPECT_EQ(format_census(load_census(path)), format_census(census));
  std::ofstream(path, std::ios::app) << "more\n";
  EXPECT_THROW(load_census(path), InputError);
}

TEST(Census, RefusesWithFileAndLine) {
  const std::string fix = ". Fix: take the census again with `tandem profile`, or restore the file";
  const auto is = [&](const std::string& text, const std::string& message) { EXPECT_EQ(refusal(text), message + fix); };
  is("", "a.csv:1: expected a line \"tandem-census,...\", found the end of the file");
  is("expert,count\n1,2\n", "a.csv:1: expected a line \"tandem-census,...\", found \"expert\"");
  is(with("census,1", "census,2"), "a.csv:1: expected a census of version 1, found version \"2\"");
  is(with("banks,2", "banks,0"), "a.csv:4: expected the number of banks (a number from 1 to 4096), found \"0\"");
  is(with("banks,2", "banks,2x"), "a.csv:4: expected the number of banks (a number from 1 to 4096), found \"2x\"");
  is(with("banks,2", "banks,2,2"), "a.csv:4: expected the end of the line, found \"2\"");
  is(with("used,2", "used,5"), "a.csv:6: expected the number of used (a number from 1 to 4), found \"5\"");
  is(with("parts,3", "parts,2"), "a.csv:10: expected a line \"routes,...\", found \"rows\"");
  is(with("parts,3", "parts,4"), "a.csv:11: expected a line \"rows,...\", found \"routes\"");
  is(with("beef", "beeg"),
     "a.csv:3: expected the model's fingerprint (a hexadecimal number), found \"00000000deadbeeg\"");
  is(with("rows,code,decode", "rows,code,prefill"),
     "a.csv:9: expected one rows line of code prefill, found a second one");
  is(with("rows,code,decode", "rows,c de,decode"),
     "a.csv:9: expected a domain of 1 to 64 letters, digits and . _ -, found \"c de\"");
  is(with("rows,code,decode", "rows,code,both"), "a.csv:9: expected prefill or decode, found \"both\"");
  is(with("routes,code,prefill,1", "routes,code,prefill,0"),
     "a.csv:12: expected the routes of code prefill bank 1, found those of code prefill bank 0");
  is(with("routes,code,decode,0", "routes,prose,decode,0"),
     "a.csv:13: expected the routes of code decode bank 0, found those of prose decode bank 0");
  is(with("0,3,3,2,1,0", "0,3,3,2,0,0"), "a.csv:11: expected 6 routes (3 rows, 2 each), found 5");
  is(with("0,3,3,2,1,0", "0,3,4,1,1,0"),
     "a.csv:11: expected the routes of expert 0 (a number from 0 to 3), found \"4\"");
  is(with("0,3,3,2,1,0", "0,2,2,1,1,0"), "a.csv:11: expected 3 rows in bank 0, as the rows line says, found 2");
  is(with("0,3,3,2,1,0", "0,3,3,2,1"), "a.csv:11: expected the routes of expert 3, found the end of the line");
  is(with("0,3,3,2,1,0", "0,3,3,2,1,0,0"), "a.csv:11: expected the end of the line, found \"0\"");
  is(with("0,3,3,2,1,0", "0,3,3,-2,1,0"),
     "a.csv:11: expected the routes of expert 1 (a number from 0 to 3), found \"-2\"");
  is(std::string(kSmall) + "rows,x,decode,1\n", "a.csv:17: expected a line \"(nothing more),...\", found \"rows\"");
}

TEST(Census, EveryCutIsNoticed) {
  for (std::size_t n = 0; n < kSmall.size(); ++n) EXPECT_NE(refusal(std::string(kSmall.substr(0, n))), "") << n;
}

TEST(Census, MergesWithWeights) {
  Census into = small();
  merge_census(into, small(), 3);
  EXPECT_EQ(into.domains["code"].prefill.rows, 12U);
  EXPECT_EQ(into.domains["prose"].prefill.routes, (std::vector<std::uint64_t>{0, 8, 4, 4, 4, 4, 4, 4}));
  EXPECT_EQ(into.fingerprint, 0xdeadbeefU);
  Census other{"m", 1, 2, 4, 2, {}};
  other.add("chat", Phase::kDecode, 0, std::vector<std::int32_t>{0, 3});
  merge_census(into, other);
  EXPECT_EQ(into.domains["chat"].decode.routes, (std::vector<std::uint64_t>{1, 0, 0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(into.fingerprint, 0U);
  EXPECT_EQ(parse_census(format_census(into), "a").rows(), into.rows());
  EXPECT_THROW(merge_census(into, small(), ~std::uint64_t{0}), InputError);
  Census fresh{"m", 1, 2, 4, 2, {}};
  EXPECT_THROW(merge_census(fresh, small(), std::uint64_t{1} << 63), InputError);  // 2 * 2^63 would be 0
}

TEST(Census, ShapesThatDiffer) {
  Census other = small();
  other.domains.clear();
  other.experts = 8;
  try {
    check_same_shape(small(), other, "b.csv");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "b.csv: expected a census of the same shape (2 banks of 4 experts, 2 used), found 2 banks of 8, 2 "
                 "used. Fix: take both on the same model");
  }
  check_same_shape(small(), small(), "b.csv");
}

TEST(Census, MixesSharesBankByBank) {
  const Census census = small();
  const auto close = [](const RouteShares& shares, std::vector<double> expected) {
    ASSERT_EQ(shares.share.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(shares.share[i], expected[i], 1e-15) << i;
  };
  const CensusPart all{&census, "", 1.0}, code{&census, "code", 3.0}, prose{&census, "prose", 1.0};
  close(mix_shares(std::vector{all}), {3 / 12., 4 / 12., 3 / 12., 2 / 12., 2 / 6., 2 / 6., 1 / 6., 1 / 6.});
  // code has 3 + 1 rows in bank 0 and 1 in bank 1; prose is a third as heavy, however long the texts are.
  close(mix_shares(std::vector{code, prose}),
        {.75 * 3 / 8, .75 * 2 / 8 + .25 * 2 / 4, .75 * 2 / 8 + .25 / 4, .75 / 8 + .25 / 4, .75 / 2 + .25 / 4,
         .75 / 2 + .25 / 4, .25 / 4, .25 / 4});
  const Phase decode[] = {Phase::kDecode}, prefill[] = {Phase::kPrefill};
  close(mix_shares(std::vector{code}, decode), {0, 0, .5, .5, .5, .5, 0, 0});
  close(mix_shares(std::vector{code}, prefill), {.5, 1 / 3., 1 / 6., 0, .25, .25, .25, .25});  // no counts: uniform
  close(mix_shares(std::vector{prose, CensusPart{&census, "code", 0}}, prefill), {0, .5, .25, .25, .25, .25, .25, .25});
  close(uniform_shares(2, 4, 2), std::vector<double>(8, .25));
}

}  // namespace
}  // namespace tandem
