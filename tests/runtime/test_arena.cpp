// The arena: what the kernel says of its mapping, and what it says itself when it may not lock.
#include "runtime/arena.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>

namespace tandem {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// The sanitizers' mlock does nothing and says that it went well.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kLocks = false;
#else
constexpr bool kLocks = true;
#endif

// The line `key` of the mapping that holds `address`, from /proc/self/smaps; empty when it is not mapped.
std::string mapping(const void* address, const std::string& key) {
  std::ifstream file("/proc/self/smaps");
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) inside = at >= begin && at < end;
    if (inside && line.starts_with(key + ":")) return line;
  }
  return {};
}
bool asks_for_huge_pages(const Arena& arena) {
  const std::string flags = mapping(arena.data(), "VmFlags") + " ";
  return flags.find(" hg ") != std::string::npos;
}

// What `body` returns in a child process that may lock `bytes` and not override that.
std::string with_lock_limit(std::size_t bytes, const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const rlimit limit{bytes, bytes};
    std::string text = "cannot set the limit";
    if (setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && (geteuid() != 0 || setresuid(65534, 65534, 65534) == 0)) {
      prctl(PR_SET_DUMPABLE, 1);  // /proc/self stays readable
      text = body();
    }
    const bool sent = write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(sent ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : "the child failed";
}
TEST(Arena, HugePagesAreAskedFor) {
  std::ifstream known("/sys/kernel/mm/transparent_hugepage/enabled");
  if (!known) GTEST_SKIP() << "a kernel without transparent huge pages";
  const Arena large(5 * kMiB);
  EXPECT_TRUE(large.huge_pages());
  EXPECT_EQ(large.bytes(), 6 * kMiB);  // whole huge pages
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.data()) % (2 * kMiB), 0U);
  EXPECT_TRUE(asks_for_huge_pages(large));
  const Arena plain(5 * kMiB, {.huge_pages = false});
  EXPECT_FALSE(plain.huge_pages());
  EXPECT_EQ(plain.bytes(), 5 * kMiB);
  EXPECT_FALSE(asks_for_huge_pages(plain));
  const Arena small(kMiB + 1);  // less than two huge pages
  EXPECT_FALSE(small.huge_pages());
  EXPECT_EQ(small.bytes(), kMiB + 4096);
  EXPECT_FALSE(asks_for_huge_pages(small));
  EXPECT_TRUE(Arena(4 * kMiB).huge_pages());
  EXPECT_FALSE(Arena(4 * kMiB - 1).huge_pages());
}

TEST(Arena, EveryByteCanBeWritten) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, 3 * kMiB, 4 * kMiB, 9 * kMiB + 5}) {
    const Arena arena(bytes);
    EXPECT_GE(arena.bytes(), bytes);
    EXPECT_LT(arena.bytes(), bytes + 2 * kMiB);
    EXPECT_TRUE(std::all_of(arena.data(), arena.data() + arena.bytes(), [](std::uint8_t b) { return b == 0; }));
    std::fill_n(arena.data(), arena.bytes(), std::uint8_t{0x5a});
    EXPECT_EQ(arena.data()[arena.bytes() - 1], 0x5a);
  }
}

TEST(Arena, NothingAtAll) {
  Arena none(0, {.lock = true});
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(none.bytes(), 0U);
  EXPECT_EQ(none.lock(), 0U);
  EXPECT_EQ(none.warning(), "");
  EXPECT_EQ(Arena().data(), nullptr);
}

TEST(Arena, GivesItsMemoryBack) {
  const std::uint8_t* data = nullptr;
  {
    const Arena arena(64 * kMiB);
    data = arena.data();
    EXPECT_NE(mapping(data, "Size"), "");
  }
  EXPECT_EQ(mapping(data, "Size"), "");
  EXPECT_EQ(mapping(data + 62 * kMiB, "Size"), "");
}

TEST(Arena, Moves) {
  Arena first(3 * kMiB);
  first.data()[17] = 42;
  const std::uint8_t* data = first.data();
  Arena second(std::move(first));
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(first.bytes(), 0U);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.data()[17], 42);
  const std::uint8_t* replaced = nullptr;
  {
    Arena third(64 * kMiB);
    replaced = third.data();
    third = std::move(second);
    EXPECT_EQ(third.data(), data);
    EXPECT_EQ(third.bytes(), 3 * kMiB);
    second = Arena();  // whatever the assignment left there is gone now
    EXPECT_EQ(mapping(replaced, "Size"), "");
    EXPECT_EQ(third.data()[17], 42);
  }
  EXPECT_EQ(mapping(data, "Size"), "");
}

TEST(Arena, LocksOnlyWhenAsked) {
  const std::string text = with_lock_limit(0, [] {
    Arena arena(2 * kMiB);
    return std::to_string(arena.lock()) + arena.warning();
  });
  EXPECT_EQ(text, "0");
}

TEST(Arena, LocksAll) {
  if (!kLocks) GTEST_SKIP() << "a sanitizer keeps mlock from locking";
  const std::string text = with_lock_limit(7 * kMiB, [] {
    Arena arena(6 * kMiB, {.lock = true});
    const std::size_t locked = arena.lock();
    std::istringstream line(mapping(arena.data(), "Locked"));
    std::string label;
    std::size_t kib = 0;
    line >> label >> kib;
    Arena moved(std::move(arena));
    return std::to_string(locked / kMiB) + " " + std::to_string(kib / 1024) + " " +
           std::to_string(moved.lock() / kMiB) + " " + std::to_string(arena.locked()) + moved.warning();
  });
  if (text == "cannot set the limit") GTEST_SKIP() << "the hard limit is lower and this user may not raise it";
  EXPECT_EQ(text, "6 6 6 0");
}

TEST(Arena, SaysHowMuchCouldNotBeLocked) {
  if (!kLocks) GTEST_SKIP() << "a sanitizer keeps mlock from locking";
  const std::string text = with_lock_limit(7 * kMiB, [] {
    Arena arena(130 * kMiB, {.lock = true});
    const std::size_t locked = arena.lock();
    return std::to_string(locked / kMiB) + " " + std::to_string(arena.locked() / kMiB) + " " + arena.warning();
  });
  EXPECT_EQ(
      text,
      "6 6 6.00 MiB of 130 MiB of the experts in RAM are locked (Cannot allocate memory; limit 7.00 MiB), so "
      "under memory pressure the system may move them out and a token may wait for the disk. Fix: raise the limit "
      "(ulimit -l unlimited, or memlock in /etc/security/limits.conf), or crew: lock_memory: false to leave it at "
      "that");
  const std::string none = with_lock_limit(0, [] {
    Arena arena(kMiB, {.lock = true});
    arena.lock();
    return arena.warning().substr(0, 86);
  });
  EXPECT_EQ(none, "0 B of 1.00 MiB of the experts in RAM are locked (Operation not permitted; limit 0 B),");
}

}  // namespace
}  // namespace tandem
