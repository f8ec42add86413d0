#include "placement/slots.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "placement/check.h"
#include "placement/files.h"

namespace tandem {
namespace {

constexpr std::uint64_t kModel = 0x1234abcd5678ef90;

class Slots : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  std::filesystem::path path_ = std::filesystem::temp_directory_path() / fmt::format("tandem-slots-{}", getpid());
  std::vector<std::int64_t> bytes_{100, 200, 100};
  std::vector<bool> movable_ = std::vector<bool>(3 * 8, true);

  ExpertPlacement placement(std::vector<std::vector<int>> on_card) {
    ExpertPlacement p = all_in_ram(3, 8);
    for (int b = 0; b < 3; ++b)
      for (const int e : on_card[static_cast<std::size_t>(b)]) p.at(b, e) = Place::kCard;
    return p;
  }
  ExpertPlacement restore(const ExpertPlacement& planned) {
    return restore_slots(path_, planned, bytes_, movable_, kModel);
  }
  std::string message(const std::string& text) {
    write_file(path_, text);
    try {
      restore(placement({{0}, {0}, {0}}));
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(Slots, RoundTrip) {
  const ExpertPlacement saved = placement({{1, 3}, {}, {7}});
  save_slots(saved, kModel, path_);
  EXPECT_EQ(read_file(path_, "slots"), "tandem slots 1\nmodel 1234abcd5678ef90\nbanks 3 experts 8\n0: 1 3\n1:\n2: 7\n");
  // The same number of slots, elsewhere: banks 0 and 2 have one size, so they share theirs.
  EXPECT_EQ(restore(placement({{0}, {}, {0, 1}})).place, saved.place);
}

TEST_F(Slots, MoreInTheFileThanThePlanHas) {
  save_slots(placement({{1, 3}, {4}, {5, 6}}), kModel, path_);
  EXPECT_EQ(restore(placement({{0}, {}, {0}})).place, placement({{1, 3}, {}, {}}).place);
}

TEST_F(Slots, FewerAreFilledUpFromThePlan) {
  save_slots(placement({{1}, {}, {}}), kModel, path_);
  EXPECT_EQ(restore(placement({{2}, {5}, {3, 4}})).place, placement({{1, 2}, {5}, {3}}).place);
}

TEST_F(Slots, PinnedAndBannedStayAndDiskStays) {
  movable_[2] = false;  // bank 0, expert 2: pinned
  movable_[7] = false;  // bank 0, expert 7: banned
  ExpertPlacement planned = placement({{2, 3}, {}, {}});
  planned.at(0, 4) = Place::kDisk;
  save_slots(placement({{4, 6, 7}, {}, {}}), kModel, path_);
  ExpertPlacement expected = placement({{2, 6}, {}, {}});
  expected.at(0, 4) = Place::kDisk;
  EXPECT_EQ(restore(planned).place, expected.place);
}

TEST_F(Slots, RandomOnesKeepTheCounts) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    ExpertPlacement saved = all_in_ram(3, 8), planned = all_in_ram(3, 8);
    for (Place& place : saved.place) place = random() % 3 == 0 ? Place::kCard : Place::kRam;
    for (Place& place : planned.place) place = static_cast<Place>(random() % 3);
    save_slots(saved, kModel, path_);
    const ExpertPlacement result = restore(planned);
    for (const Place where : {Place::kCard, Place::kRam, Place::kDisk})
      EXPECT_EQ(result.count(where), planned.count(where));
    int wanted = 0, got = 0;
    for (std::size_t i = 8; i < 16; ++i) {  // bank 1 has a size of its own
      wanted += saved.place[i] == Place::kCard && planned.place[i] != Place::kDisk;
      got += saved.place[i] == Place::kCard && result.place[i] == Place::kCard;
    }
    const auto slots = std::count(planned.place.begin() + 8, planned.place.begin() + 16, Place::kCard);
    EXPECT_EQ(got, std::min<std::int64_t>(wanted, slots));
  }
}

TEST_F(Slots, DamageIsRefused) {
  const std::string name = path_.string(), fix = ". Fix: delete the file; the next run writes a new one";
  EXPECT_EQ(message(""), name + ":1: expected a line that ends, found the end of the file" + fix);
  EXPECT_EQ(message("other\n"), name + ":1: expected \"tandem slots 1\", found \"other\"" + fix);
  EXPECT_EQ(message("tandem slots 1\nmodel 0000000000000001\n"),
            name +
                ":2: expected \"model 1234abcd5678ef90\", the model that is loaded, found \"model 0000000000000001\"" +
                fix);
  const std::string head = "tandem slots 1\nmodel 1234abcd5678ef90\n";
  EXPECT_EQ(message(head + "banks 3 experts 9\n"),
            name + ":3: expected \"banks 3 experts 8\", found \"banks 3 experts 9\"" + fix);
  const std::string top = head + "banks 3 experts 8\n";
  EXPECT_EQ(message(top + "1:\n"), name + ":4: expected \"0: ...\", found another line" + fix);
  for (const std::string bad : {"0: 8\n", "0: 3 3\n", "0: 3 1\n", "0: x\n", "0: -1\n"})
    EXPECT_EQ(message(top + bad), name + ":4: expected ascending experts below 8, found another value" + fix) << bad;
  EXPECT_EQ(message(top + "0:\n1:\n2:"), name + ":6: expected a line that ends, found the end of the file" + fix);
  EXPECT_EQ(message(top + "0:\n1:\n2:\n3:\n"), name + ":6: expected the end of the file, found more lines" + fix);
}

}  // namespace
}  // namespace tandem
