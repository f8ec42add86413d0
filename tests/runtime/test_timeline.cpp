// The timeline: one test, in this order, since a recording that has begun goes on for the life of the process.
#include "runtime/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "placement/check.h"
#include "placement/files.h"
#include "tests/gguf_builder.h"

namespace tandem {
namespace {

using nlohmann::json;

json written(const testing::TempDir& dir) {
  Timeline::write(dir / "t.json");
  return json::parse(read_file(dir / "t.json", "timeline"));
}

std::vector<json> spans(const json& trace, const std::string& name) {
  std::vector<json> found;
  for (const json& event : trace["traceEvents"])
    if (event["ph"] == "X" && event["name"] == name) found.push_back(event);
  return found;
}
double end_of(const json& span) {
  return span["ts"].get<double>() + span["dur"].get<double>();
}

TEST(Timeline, RecordsWhatEveryThreadDid) {
  const testing::TempDir dir;
  // Off: nothing is kept, and no thread gets a name.
  EXPECT_FALSE(Timeline::on());
  {
    const Span span("too early", 3);
    Timeline::name_thread("early", 1);
  }
  EXPECT_EQ(written(dir)["traceEvents"], json::array());

  {
    const Span span("begun before the start");
    Timeline::start();
  }
  EXPECT_TRUE(Timeline::on());
  {
    const Span outer("outer", 5);
    { const Span inner("inner"); }
    { const Span inner("inner", 0); }
  }
  std::thread worker([] {
    Timeline::name_thread("crew", 7);
    const Span span("work", 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  worker.join();
  std::thread unnamed([] { const Span span("nameless"); });
  unnamed.join();

  const json trace = written(dir);
  std::map<int, std::string> names;
  for (const json& event : trace["traceEvents"]) {
    EXPECT_EQ(event["pid"], 1);
    if (event["ph"] == "M") {
      EXPECT_EQ(event["name"], "thread_name");
      EXPECT_TRUE(names.emplace(event["tid"].get<int>(), event["args"]["name"].get<std::string>()).second);
    } else {
      EXPECT_EQ(event["ph"], "X");
      EXPECT_GE(event["ts"].get<double>(), 0.0);
      EXPECT_GE(event["dur"].get<double>(), 0.0);
    }
  }
  EXPECT_EQ(names, (std::map<int, std::string>{{0, "main"}, {1, "crew 7"}, {2, "thread 2"}}));
  EXPECT_TRUE(spans(trace, "too early").empty());
  EXPECT_TRUE(spans(trace, "begun before the start").empty());

  const std::vector<json> outer = spans(trace, "outer"), inner = spans(trace, "inner");
  ASSERT_EQ(outer.size(), 1U);
  ASSERT_EQ(inner.size(), 2U);
  EXPECT_EQ(outer[0]["args"]["layer"], 5);
  EXPECT_FALSE(inner[0].contains("args"));
  EXPECT_EQ(inner[1]["args"]["layer"], 0);
  constexpr double kRounding = 0.002;  // microseconds: three decimals of two numbers
  for (const json& span : inner) {
    EXPECT_EQ(span["tid"], outer[0]["tid"]);
    EXPECT_GE(span["ts"].get<double>(), outer[0]["ts"].get<double>() - kRounding);
    EXPECT_LE(end_of(span), end_of(outer[0]) + kRounding);
  }
  EXPECT_GE(inner[1]["ts"].get<double>(), end_of(inner[0]) - kRounding);
  const std::vector<json> work = spans(trace, "work");
  ASSERT_EQ(work.size(), 1U);
  EXPECT_EQ(names[work[0]["tid"].get<int>()], "crew 7");
  EXPECT_GE(work[0]["dur"].get<double>(), 2000.0);
  EXPECT_GE(work[0]["ts"].get<double>(), end_of(outer[0]) - kRounding);

  // Written again, it has everything again; a place that cannot be written is refused.
  EXPECT_EQ(written(dir), trace);
  EXPECT_THROW(Timeline::write(dir / "nowhere" / "t.json"), InputError);

  // A thread keeps no more than kMostSpans.
  const auto now = Timeline::Clock::now();
  std::thread busy([&] {
    for (std::size_t i = 0; i < Timeline::kMostSpans + 10; ++i) Timeline::add("many", -1, now, now);
  });
  busy.join();
  Timeline::write(dir / "t.json");
  const std::string text = read_file(dir / "t.json", "timeline");
  std::size_t count = 0;
  for (std::size_t at = text.find("\"many\""); at != std::string::npos; at = text.find("\"many\"", at + 1)) ++count;
  EXPECT_EQ(count, Timeline::kMostSpans);
}

}  // namespace
}  // namespace tandem
