// SequenceState::save and restore. Layout: docs/formats.md, "State file".
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "placement/files.h"
#include "runtime/sequence_state.h"

namespace tandem {

namespace {

constexpr char kMagic[8] = {'T', 'A', 'N', 'D', 'E', 'M', 'S', 'T'};
constexpr std::uint32_t kVersion = 1;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t kv_type;
  std::uint64_t fingerprint;
  std::uint64_t position;
  std::uint64_t mtp_rows;
  std::uint64_t file_bytes;
};
static_assert(sizeof(Header) == 48);

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

// One number for each layer, as version 1 of the file has it; 0 for attention layers.
std::vector<std::uint64_t> replay_list(const SequenceState& state) {
  std::vector<std::uint64_t> list;
  for (const GdnLayerState& layer : state.gdn) list.push_back(layer.s.empty() ? 0 : state.replay);
  return list;
}

// Visits every array of a state in file order. `Visit` is called with (pointer into the machine's memory, bytes).
template <typename Visit>
void visit_attention(const AttentionLayerState& layer, std::size_t rows, std::size_t value_bytes, std::size_t ratio,
                     Visit&& visit) {
  visit(layer.k.data(), rows * value_bytes);
  visit(layer.v.data(), rows * value_bytes);
  visit(layer.pooled.data(), rows / ratio * layer.raw_keys.width() * sizeof(float));
  visit(layer.raw_keys.view().rows, layer.raw_keys.committed_bytes());
}

template <typename Visit>
void visit_arrays(const SequenceState& state, std::size_t position, std::size_t mtp_rows, Visit&& visit) {
  const ModelShape& shape = state.shape();
  const auto ratio = static_cast<std::size_t>(shape.indexer_ratio);
  const std::size_t value_bytes = static_cast<std::size_t>(shape.kv_heads * shape.head_dim) *
                                  (state.options().kv == KvType::kF32 ? sizeof(float) : sizeof(std::uint16_t));
  for (const GdnLayerState& layer : state.gdn) {
    if (layer.s.empty()) continue;
    visit(layer.s.data(), layer.s.bytes());
    visit(layer.conv.view().rows, layer.conv.committed_bytes());
    visit(layer.log_k.data(), layer.log_k.bytes());
    visit(layer.log_u.data(), layer.log_u.bytes());
    visit(layer.log_decay.data(), layer.log_decay.bytes());
  }
  for (const AttentionLayerState& layer : state.attention)
    if (!layer.k.empty()) visit_attention(layer, position, value_bytes, ratio, visit);
  visit(state.ple_conv.view().rows, state.ple_conv.committed_bytes());
  if (shape.mtp_layers > 0) visit_attention(state.mtp.attention, mtp_rows, value_bytes, ratio, visit);
}

std::uint64_t expected_bytes(const SequenceState& state, std::size_t position, std::size_t mtp_rows) {
  std::uint64_t bytes = sizeof(Header) + position * sizeof(TokenId) + (state.gdn.size() + 1) * sizeof(std::uint64_t);
  visit_arrays(state, position, mtp_rows, [&](const void*, std::size_t n) { bytes += n; });
  return bytes;
}

// Arrays go to and from the file in pieces of this size where the machine's memory is not the host's.
constexpr std::size_t kPiece = 1 << 20;

// Checks everything that can be wrong with a state file, its checksum included, without touching the state.
Header verify(std::FILE* file, const std::filesystem::path& path, const SequenceState& state,
              std::uint64_t fingerprint) {
  const std::string name = path.string();
  const std::uint64_t size = std::filesystem::file_size(path);
  Header header{};
  if (size < sizeof header || std::fread(&header, sizeof header, 1, file) != 1 ||
      std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    fail_input("{}: expected a Tandem state file, found something else ({} bytes)", name, size);
  if (header.version != kVersion)
    fail_input("{}: expected state version {}, found {}. Fix: it was written by another version of tandem; start anew",
               name, kVersion, header.version);
  if (header.fingerprint != fingerprint)
    fail_input(
        "{}: expected the state of the loaded model ({:016x}), found one of another model ({:016x}). Fix: load "
        "the model that it was saved with",
        name, fingerprint, header.fingerprint);
  if (header.kv_type != static_cast<std::uint32_t>(state.options().kv))
    fail_input("{}: expected KV type {}, found {}. Fix: pass the --kv that it was saved with", name,
               state.options().kv == KvType::kF32 ? "f32" : "f16", header.kv_type == 0 ? "f32" : "f16");
  if (header.position > state.context() || header.mtp_rows > state.context())
    fail_input("{}: expected at most {} tokens, found {}. Fix: pass --context {} or more", name, state.context(),
               header.position, header.position);
  const std::uint64_t expected = expected_bytes(state, header.position, header.mtp_rows);
  if (header.file_bytes != expected || size != expected)
    fail_input("{}: expected {} bytes, found {}: the file is damaged or incomplete", name, expected, size);
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(hash.get());
  XXH3_64bits_update(hash.get(), &header, sizeof header);
  std::vector<char> buffer(1 << 20);
  std::uint64_t left = size - sizeof header - sizeof(std::uint64_t), stored = 0;
  while (left > 0) {
    const std::size_t want = std::min<std::uint64_t>(left, buffer.size());
    if (std::fread(buffer.data(), 1, want, file) != want) fail_input("{}: cannot be read to its end", name);
    XXH3_64bits_update(hash.get(), buffer.data(), want);
    left -= want;
  }
  if (std::fread(&stored, sizeof stored, 1, file) != 1 || stored != XXH3_64bits_digest(hash.get()))
    fail_input("{}: the checksum does not match: the file is damaged", name);
  return header;
}

}  // namespace

void SequenceState::save(const std::filesystem::path& path, std::uint64_t model_fingerprint) const {
  CHECK(pending_.empty() && mtp.pending == 0, "a window is open");
  Header header{{},         kVersion, static_cast<std::uint32_t>(options_.kv),    model_fingerprint,
                position(), mtp.rows, expected_bytes(*this, position(), mtp.rows)};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  AtomicFile file(path);
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(hash.get());
  const auto write = [&](const void* data, std::size_t n) {
    if (n == 0) return;
    XXH3_64bits_update(hash.get(), data, n);
    file.write({static_cast<const char*>(data), n});
  };
  write(&header, sizeof header);
  write(tokens_.data(), tokens_.size() * sizeof(TokenId));
  const std::vector<std::uint64_t> replays = replay_list(*this);
  write(replays.data(), replays.size() * sizeof(std::uint64_t));
  std::vector<std::uint8_t> buffer;
  visit_arrays(*this, position(), mtp.rows, [&](const void* data, std::size_t n) {
    if (memory_->is_host()) return write(data, n);
    buffer.resize(kPiece);
    for (std::size_t done = 0; done < n; done += kPiece) {
      const std::size_t count = std::min(kPiece, n - done);
      memory_->read(buffer.data(), static_cast<const std::uint8_t*>(data) + done, count);
      write(buffer.data(), count);
    }
  });
  const std::uint64_t checksum = XXH3_64bits_digest(hash.get());
  file.write({reinterpret_cast<const char*>(&checksum), sizeof checksum});
  file.finish();
}

void SequenceState::restore(const std::filesystem::path& path, std::uint64_t model_fingerprint) {
  CHECK(pending_.empty() && mtp.pending == 0, "a window is open");
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) fail_input("{}: cannot open the state file: {}", path.string(), std::strerror(errno));
  if (!std::filesystem::is_regular_file(path))
    fail_input("{}: expected a state file, found no regular file", path.string());
  const Header header = verify(file.get(), path, *this, model_fingerprint);

  // From here on nothing can be wrong with the file; a disk that fails now leaves an empty sequence and an error.
  reset();
  need_rows(static_cast<std::int64_t>(std::max(header.position, header.mtp_rows)));
  const auto read = [&](void* data, std::size_t n) {
    if (n > 0 && std::fread(data, 1, n, file.get()) != n) {
      reset();
      fail_input("{}: could not be read a second time; the sequence is now empty", path.string());
    }
  };
  std::fseek(file.get(), sizeof(Header), SEEK_SET);
  std::vector<TokenId> tokens(header.position);
  read(tokens.data(), tokens.size() * sizeof(TokenId));
  std::vector<std::uint64_t> replays(gdn.size());
  read(replays.data(), replays.size() * sizeof(std::uint64_t));
  std::vector<std::uint8_t> buffer(kPiece);
  visit_arrays(*this, header.position, header.mtp_rows, [&](void* data, std::size_t n) {
    for (std::size_t done = 0; done < n; done += kPiece) {
      const std::size_t count = std::min(kPiece, n - done);
      read(buffer.data(), count);
      memory_->write(static_cast<std::uint8_t*>(data) + done, buffer.data(), count);
    }
  });
  replay = std::min<std::uint64_t>(replays.empty() ? 0 : *std::max_element(replays.begin(), replays.end()), kMaxWindow);
  tokens_ = std::move(tokens);
  mtp.rows = header.mtp_rows;
}

}  // namespace tandem
