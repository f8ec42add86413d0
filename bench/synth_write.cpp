// write_synth: lays the file out with holes for the data, then fills the holes piece by piece from all threads.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "bench/block_pool.h"
#include "bench/noise.h"
#include "bench/synth.h"
#include "placement/check.h"
#include "runtime/gguf.h"
#include "tests/synthetic_model.h"

namespace tandem::bench {
namespace {

// Part of a tensor, written at once.
struct Piece {
  int file;
  std::uint64_t offset, bytes, seed;
  const BlockPool* pool;             // or
  std::vector<std::uint8_t> values;  // small tensors whole
  // Of a router whose rows have lengths of their own: by row, the bytes of a row, and where in the tensor this begins.
  std::shared_ptr<const std::vector<float>> lengths = nullptr;
  std::uint64_t row_bytes = 0, at = 0;
};

// Sane values of what is no matrix, as the small test models have them.
std::vector<std::uint8_t> small_values(const TensorSpec& spec, DType type, std::uint64_t seed) {
  Draws draws(seed);
  std::vector<float> values(static_cast<std::size_t>(spec.elements()));
  for (float& v : values) {
    double value = draws.normal();
    if (spec.form == TensorForm::kNorm) value = 1 + 0.1 * value;
    if (spec.form == TensorForm::kConv) value *= 0.5;
    if (spec.name.ends_with("ssm_a")) value = -std::exp(2 * draws.uniform() - 2);
    v = static_cast<float>(value);
  }
  return testing::quantise(type, values);
}

class Filler {
 public:
  Filler(const SynthOptions& options, const ModelShape& shape, const Gguf& gguf)
      : options_(options), used_(shape.experts_used) {
    for (const SortedTensor& tensor : sort_tensors(gguf, shape)) {
      CHECK(tensor.spec, "{}", tensor.tensor->name);
      add(*tensor.tensor, *tensor.spec);
      total_ += tensor.tensor->bytes;
    }
    for (const GgufShard& shard : gguf.shards()) {
      files_.push_back(::open(shard.path.c_str(), O_WRONLY | O_CLOEXEC));
      names_.push_back(shard.path.string());
      if (files_.back() < 0) fail_input("{}: cannot write the file: {}", names_.back(), std::strerror(errno));
    }
  }
  ~Filler() {
    for (const int file : files_)
      if (file >= 0) ::close(file);
  }
  Filler(const Filler&) = delete;
  Filler& operator=(const Filler&) = delete;

  void run(std::size_t threads, const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < threads; ++i) others.emplace_back([this] { work({}); });
    work([&](std::uint64_t done) { progress(done, total_); });
    for (std::thread& thread : others) thread.join();
    if (error_) std::rethrow_exception(error_);
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (::close(std::exchange(files_[i], -1)) != 0) fail(i);
    }
  }

 private:
  void add(const GgufTensor& tensor, const TensorSpec& spec);
  const BlockPool& pool(DType type, double rms);
  void work(const std::function<void(std::uint64_t done)>& progress);
  void write(const Piece& piece, std::vector<std::uint8_t>& buffer) const;
  [[noreturn]] void fail(std::size_t file) const {
    fail_input("{}: cannot write the file: {}. Fix: free some space or choose another place", names_[file],
               std::strerror(errno));
  }

  const SynthOptions& options_;
  int used_;
  std::map<std::pair<DType, double>, BlockPool> pools_;
  std::vector<Piece> pieces_;
  std::vector<int> files_;
  std::vector<std::string> names_;
  std::uint64_t total_ = 0;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::uint64_t> done_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
};

const BlockPool& Filler::pool(DType type, double rms) {
  const std::uint64_t seed = mix_bits(options_.seed) + static_cast<std::uint64_t>(type);
  return pools_.try_emplace({type, rms}, type, rms, seed).first->second;
}

void Filler::add(const GgufTensor& tensor, const TensorSpec& spec) {
  constexpr std::uint64_t kPiece = 4U << 20;
  const std::uint64_t seed = name_bits(options_.seed, tensor.name);
  if (spec.form != TensorForm::kMatrix && spec.form != TensorForm::kBank) {
    pieces_.push_back(
        {tensor.shard, tensor.offset, tensor.bytes, seed, nullptr, small_values(spec, tensor.type, seed)});
    return;
  }
  // Inputs of order one give outputs of order one; looked-up rows are inputs themselves.
  const bool lookup = spec.role == TensorRole::kEmbedding || spec.role == TensorRole::kNgramTable;
  const BlockPool& blocks = pool(tensor.type, lookup ? 1.0 : 1 / std::sqrt(static_cast<double>(tensor.ne[0])));
  const std::uint64_t step = kPiece / blocks.bytes() * blocks.bytes();
  std::shared_ptr<const std::vector<float>> lengths;
  if (options_.hot_experts > 0 && spec.name.ends_with("ffn_gate_inp.weight")) {
    CHECK(tensor.type == DType::F32, "a router of type {}", dtype_name(tensor.type));
    const auto cold = static_cast<float>(cold_router_scale(options_, used_));
    std::vector<float> list;
    for (int e = 0; e < options_.experts; ++e)
      list.push_back(is_hot_expert(options_, static_cast<int>(spec.block), e) ? 1.0F : cold);
    lengths = std::make_shared<const std::vector<float>>(std::move(list));
  }
  for (std::uint64_t at = 0; at < tensor.bytes; at += step)
    pieces_.push_back({tensor.shard,
                       tensor.offset + at,
                       std::min(step, tensor.bytes - at),
                       mix_bits(seed + at),
                       &blocks,
                       {},
                       lengths,
                       static_cast<std::uint64_t>(tensor.ne[0]) * sizeof(float),
                       at});
}

void Filler::write(const Piece& piece, std::vector<std::uint8_t>& buffer) const {
  const std::uint8_t* bytes = piece.values.data();
  if (piece.pool != nullptr) {
    buffer.resize(piece.bytes);
    piece.pool->fill(piece.seed, buffer.data(), piece.bytes);
    for (std::uint64_t i = 0; piece.lengths && i < piece.bytes; i += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, buffer.data() + i, sizeof value);
      value *= (*piece.lengths)[(piece.at + i) / piece.row_bytes];
      std::memcpy(buffer.data() + i, &value, sizeof value);
    }
    bytes = buffer.data();
  }
  const auto file = static_cast<std::size_t>(piece.file);
  for (std::uint64_t done = 0; done < piece.bytes;) {
    const ssize_t written =
        ::pwrite(files_[file], bytes + done, piece.bytes - done, static_cast<off_t>(piece.offset + done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(file);
    done += static_cast<std::uint64_t>(written);
  }
}

void Filler::work(const std::function<void(std::uint64_t)>& progress) {
  std::vector<std::uint8_t> buffer;
  try {
    for (std::size_t i = next_++; i < pieces_.size(); i = next_++) {
      write(pieces_[i], buffer);
      const std::uint64_t done = done_ += pieces_[i].bytes;
      if (progress) progress(done);
    }
  } catch (...) {
    next_ = pieces_.size();  // the others stop too
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
}

// Removes the files unless keep() was called.
class Cleanup {
 public:
  explicit Cleanup(std::vector<std::filesystem::path> paths) : paths_(std::move(paths)) {}
  ~Cleanup() {
    std::error_code ignored;
    for (const std::filesystem::path& path : paths_) std::filesystem::remove(path, ignored);
  }
  Cleanup(const Cleanup&) = delete;
  Cleanup& operator=(const Cleanup&) = delete;
  void keep() { paths_.clear(); }

 private:
  std::vector<std::filesystem::path> paths_;
};

std::vector<std::filesystem::path> file_paths(const std::filesystem::path& path, std::size_t shards) {
  if (shards == 1) return {path};
  std::vector<std::filesystem::path> paths;
  for (std::size_t i = 0; i < shards; ++i)
    paths.push_back(path.parent_path() /
                    shard_file_name(path.stem().string(), static_cast<int>(i), static_cast<int>(shards)));
  return paths;
}

void check_writable(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) fail_input("{}: cannot create the file: {}", path.string(), std::strerror(errno));
  ::close(file);
}

}  // namespace

SynthReport write_synth(const SynthOptions& options, const ModelShape& shape, const std::filesystem::path& path,
                        std::size_t shards, std::size_t threads, bool empty,
                        const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  CHECK(shards > 0 && threads > 0, "{} shards, {} threads", shards, threads);
  const auto start = std::chrono::steady_clock::now();
  testing::SyntheticOptions layout;
  layout.shape = shape;
  layout.type = [&](const TensorSpec& spec) { return synth_type(options, spec); };
  layout.zeros = true;
  const testing::GgufBuilder builder = testing::synthetic_model(layout);

  SynthReport report{file_paths(path, shards), 0, 0};
  for (const std::filesystem::path& file : report.files) check_writable(file);
  Cleanup cleanup(report.files);
  if (shards == 1)
    builder.write(path);
  else
    builder.write_split(path.parent_path() / path.stem(), shards);
  const Gguf gguf = Gguf::open(report.files.front());
  std::uint64_t total = 0;
  for (const GgufTensor& tensor : gguf.tensors()) total += tensor.bytes;
  const std::uint64_t space = std::filesystem::space(report.files.front().parent_path() / ".").available;
  if (!empty && space < total)
    fail_input("{}: expected room for {} bytes, found {}. Fix: fewer --layers or --experts, or another place",
               path.string(), total, space);
  if (!empty) Filler(options, shape, gguf).run(threads, progress);
  for (const GgufShard& shard : gguf.shards()) report.bytes += shard.file_bytes;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  cleanup.keep();
  return report;
}

}  // namespace tandem::bench
