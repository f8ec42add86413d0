#include "placement/trace.h"

#include <xxhash.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "placement/check.h"

namespace tandem {
namespace {

constexpr std::string_view kMagic = "TANDEMTR";
constexpr std::uint32_t kVersion = 2;
constexpr std::size_t kChunk = 1 << 16;          // a chunk is written when it has grown this large
constexpr std::uint64_t kMaxChunk = 1ull << 30;  // and one round may not make it larger than this
constexpr std::uint64_t kMaxRows = 1 << 20;      // of one pass
constexpr std::uint64_t kMaxPosition = 1ull << 32;
constexpr std::size_t kMaxName = 4096;
enum Tag : char { kDomain = 1, kPrefillRound = 2, kDecodeRound = 3 };

void put(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

// Seven bits a byte, lowest first; the top bit says that more follow.
void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

int id_bits(int experts) {
  return std::max(1, static_cast<int>(std::bit_width(static_cast<unsigned>(experts - 1))));
}

std::uint64_t hash(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string header_bytes(const TraceHeader& header) {
  std::string out(kMagic);
  put(out, kVersion, 4);
  put(out, header.fingerprint, 8);
  put(out, static_cast<std::uint64_t>(header.banks), 4);
  put(out, static_cast<std::uint64_t>(header.experts), 4);
  put(out, static_cast<std::uint64_t>(header.used), 4);
  put(out, header.model.size(), 4);
  out += header.model;
  put(out, hash(out), 8);
  return out;
}

}  // namespace

TraceWriter::TraceWriter(const std::filesystem::path& path, const TraceHeader& header) : header_(header), file_(path) {
  CHECK(header.banks > 0 && header.banks <= kMaxBanks && header.experts > 0 && header.experts <= kMaxExperts);
  CHECK(header.used > 0 && header.used <= header.experts);
  header_.model.resize(std::min(header_.model.size(), kMaxName));
  file_.write(header_bytes(header_));
}

void TraceWriter::add(const TraceRound& round) {
  if (round.domain != domain_) {
    CHECK(is_domain_name(round.domain), "{}", round.domain);
    domain_ = round.domain;
    chunk_ += kDomain;
    put_varint(chunk_, domain_.size());
    chunk_ += domain_;
  }
  chunk_ += round.phase == Phase::kPrefill ? kPrefillRound : kDecodeRound;
  CHECK(round.position < kMaxPosition, "{}", round.position);
  put_varint(chunk_, round.position);
  put_varint(chunk_, round.blocks.size());
  const int bits = id_bits(header_.experts);
  for (const TraceBlock& block : round.blocks) {
    CHECK(block.bank >= 0 && block.bank < header_.banks && block.rows <= kMaxRows, "{} {}", block.bank, block.rows);
    CHECK(block.ids.size() == block.rows * static_cast<std::size_t>(header_.used), "{}", block.ids.size());
    put_varint(chunk_, static_cast<std::uint64_t>(block.bank));
    put_varint(chunk_, block.rows);
    std::uint32_t held = 0;
    int count = 0;
    for (const std::int32_t id : block.ids) {
      CHECK(id >= 0 && id < header_.experts, "{} of {}", id, header_.experts);
      held |= static_cast<std::uint32_t>(id) << count;
      for (count += bits; count >= 8; count -= 8, held >>= 8) chunk_ += static_cast<char>(held);
    }
    if (count > 0) chunk_ += static_cast<char>(held);
  }
  ++rounds_;
  if (chunk_.size() >= kChunk) write_chunk();
}

void TraceWriter::write_chunk() {
  if (chunk_.empty()) return;
  CHECK(chunk_.size() <= kMaxChunk, "{}", chunk_.size());
  std::string size;
  put(size, chunk_.size(), 4);
  std::string sum;
  put(sum, hash(chunk_), 8);
  file_.write(size);
  file_.write(chunk_);
  file_.write(sum);
  chunk_.clear();
}

void TraceWriter::finish() {
  write_chunk();
  std::string end;
  put(end, 0, 4);
  put(end, rounds_, 8);
  put(end, hash(end), 8);
  file_.write(end);
  file_.finish();
}

TraceReader::TraceReader(const std::filesystem::path& path)
    : path_(path.string()), file_(std::fopen(path.c_str(), "rb"), &std::fclose) {
  if (!file_ || std::filesystem::is_directory(path))
    fail_input("{}: expected a trace file, found {}", path_, file_ ? "a folder" : std::strerror(errno));
  char start[36];
  if (std::fread(start, 1, 8, file_.get()) != 8 || std::string_view(start, 8) != kMagic)
    fail_input(
        "{}: expected a trace (\"{}\"), found another kind of file. Fix: record one with `tandem profile --trace`",
        path_, kMagic);
  offset_ = 8;
  read(start + 8, sizeof start - 8);
  chunk_.assign(start, sizeof start);
  at_ = 8;
  if (const std::uint64_t version = take(4); version != kVersion)
    fail_input("{}: expected a trace of version {}, found version {}. Fix: record it again", path_, kVersion, version);
  header_.fingerprint = take(8);
  const std::uint64_t banks = take(4), experts = take(4), used = take(4), name = take(4);
  if (banks < 1 || banks > kMaxBanks || experts < 1 || experts > kMaxExperts || used < 1 || used > experts ||
      name > kMaxName)
    damaged("a shape that cannot be");
  header_.banks = static_cast<int>(banks);
  header_.experts = static_cast<int>(experts);
  header_.used = static_cast<int>(used);
  header_.model.resize(name);
  read(header_.model.data(), name);
  chunk_ += header_.model;
  const std::uint64_t expected = hash(chunk_);
  chunk_.resize(8);
  read(chunk_.data(), 8);
  at_ = 0;
  if (take(8) != expected) damaged("a wrong checksum");
  chunk_.clear();
  at_ = 0;
}

void TraceReader::damaged(const std::string& what) const {
  fail_input("{}: expected a whole trace, found {} near byte {} (round {}). Fix: record it again, or restore the file",
             path_, what, offset_, rounds_);
}

void TraceReader::read(char* to, std::size_t bytes) {
  if (std::fread(to, 1, bytes, file_.get()) != bytes) damaged("its end");
  offset_ += bytes;
}

bool TraceReader::read_chunk() {
  char word[12];
  read(word, 4);
  chunk_.assign(word, 4);
  at_ = 0;
  const std::uint64_t size = take(4);
  const bool end = size == 0;
  if (size > kMaxChunk) damaged("a chunk of a size that cannot be");
  std::string body;
  // Grows with what is there, so that a wrong size does not reserve memory for it.
  for (std::uint64_t left = end ? 8 : size; left > 0;) {
    const std::size_t part = static_cast<std::size_t>(std::min<std::uint64_t>(left, 1 << 20));
    body.resize(body.size() + part);
    read(body.data() + body.size() - part, part);
    left -= part;
  }
  const std::uint64_t expected = end ? hash(chunk_ + body) : hash(body);
  read(word, 8);
  chunk_.assign(word, 8);
  at_ = 0;
  if (take(8) != expected) damaged("a wrong checksum");
  chunk_ = std::move(body);
  at_ = 0;
  if (!end) return true;
  if (take(8) != rounds_) damaged("another number of rounds than its end says");
  if (std::fgetc(file_.get()) != EOF) damaged("more bytes after its end");
  ended_ = true;
  return false;
}

std::uint64_t TraceReader::take(int bytes) {
  if (chunk_.size() - at_ < static_cast<std::size_t>(bytes)) damaged("a record that is cut off");
  std::uint64_t value = 0;
  for (int i = 0; i < bytes; ++i)
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(chunk_[at_++])) << (8 * i);
  return value;
}

std::uint64_t TraceReader::take_varint() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 35; shift += 7) {
    const std::uint64_t byte = take(1);
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  damaged("a number that is too long");
}

void TraceReader::take_ids(TraceBlock& block) {
  const auto bank = take_varint(), rows = take_varint();
  if (bank >= static_cast<std::uint64_t>(header_.banks) || rows > kMaxRows) damaged("a bank or rows out of range");
  block.bank = static_cast<int>(bank);
  block.rows = static_cast<std::uint32_t>(rows);
  const std::uint64_t n = rows * static_cast<std::uint64_t>(header_.used);
  const int bits = id_bits(header_.experts);
  if ((n * static_cast<std::uint64_t>(bits) + 7) / 8 > chunk_.size() - at_) damaged("a record that is cut off");
  block.ids.resize(n);
  std::uint32_t held = 0;
  int count = 0;
  for (std::int32_t& id : block.ids) {
    for (; count < bits; count += 8)
      held |= static_cast<std::uint32_t>(static_cast<unsigned char>(chunk_[at_++])) << count;
    id = static_cast<std::int32_t>(held & ((1u << bits) - 1));
    held >>= bits;
    count -= bits;
    if (id >= header_.experts) damaged("an expert out of range");
  }
}

bool TraceReader::next(TraceRound& round) {
  for (;;) {
    if (ended_) return false;
    if (at_ == chunk_.size()) {
      if (!read_chunk()) return false;
      continue;
    }
    const std::uint64_t tag = take(1);
    if (tag == kDomain) {
      const std::uint64_t size = take_varint();
      if (size > chunk_.size() - at_) damaged("a record that is cut off");
      domain_ = chunk_.substr(at_, size);
      at_ += size;
      if (!is_domain_name(domain_)) damaged("a domain that is none");
      continue;
    }
    if (tag != kPrefillRound && tag != kDecodeRound) damaged("an unknown record");
    if (domain_.empty()) damaged("a round without a domain");
    round.phase = tag == kPrefillRound ? Phase::kPrefill : Phase::kDecode;
    round.domain = domain_;
    round.position = take_varint();
    if (round.position >= kMaxPosition) damaged("a position out of range");
    const std::uint64_t blocks = take_varint();
    if (blocks > chunk_.size() - at_) damaged("a record that is cut off");
    round.blocks.resize(blocks);
    for (TraceBlock& block : round.blocks) take_ids(block);
    ++rounds_;
    return true;
  }
}

}  // namespace tandem
