// Every route of a run, round by round, in a compact file that can be replayed without the model (docs/formats.md,
// "Trace"). An id takes as many bits as the number of experts needs: 10 routes of 512 experts are 12 bytes, and with
// everything around them at most 20.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "placement/census.h"
#include "placement/files.h"

namespace tandem {

struct TraceHeader {
  std::string model;
  std::uint64_t fingerprint = 0;
  int banks = 0, experts = 0, used = 0;
  bool operator==(const TraceHeader&) const = default;
};

// The routes of one bank in one pass. A round has one for each trunk layer, and one for each pass of the draft block.
struct TraceBlock {
  int bank = 0;
  std::uint32_t rows = 0;
  std::vector<std::int32_t> ids;  // [rows * used], by rank
  bool operator==(const TraceBlock&) const = default;
};
struct TraceRound {
  Phase phase = Phase::kPrefill;
  std::string domain;
  std::vector<TraceBlock> blocks;
  std::uint64_t position = 0;  // of the first row of its trunk pass in the sequence
  bool operator==(const TraceRound&) const = default;
};

class TraceWriter {
 public:
  // The file appears under its name with finish() (placement/files.h). REQUIRES a shape within the limits of census.h.
  TraceWriter(const std::filesystem::path& path, const TraceHeader& header);
  void add(const TraceRound& round);  // REQUIRES banks, ids and rows * used within the header's
  void finish();
  std::uint64_t rounds() const { return rounds_; }

 private:
  void write_chunk();
  TraceHeader header_;
  AtomicFile file_;
  std::string chunk_, domain_;
  std::uint64_t rounds_ = 0;
};

// Throws InputError for a file that is no trace, is of another version, damaged or cut off.
class TraceReader {
 public:
  explicit TraceReader(const std::filesystem::path& path);
  const TraceHeader& header() const { return header_; }
  // The next round into `round`, whose memory is used again; false at the end.
  bool next(TraceRound& round);

 private:
  void read(char* to, std::size_t bytes);
  bool read_chunk();
  [[noreturn]] void damaged(const std::string& what) const;
  std::uint64_t take(int bytes);
  std::uint64_t take_varint();
  void take_ids(TraceBlock& block);

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  TraceHeader header_;
  std::string chunk_, domain_;
  std::size_t at_ = 0;
  std::uint64_t rounds_ = 0, offset_ = 0;
  bool ended_ = false;
};

}  // namespace tandem
