// A model ready to run: file, tokenizer, template, machine and pipeline, opened in this order and kept together.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/chat_template.h"
#include "runtime/model.h"
#include "runtime/ops.h"
#include "runtime/pipeline.h"
#include "runtime/sequence_state.h"
#include "runtime/tokenizer.h"

namespace tandem {

struct EngineOptions {
  std::filesystem::path model;
  std::filesystem::path mtp;  // a separate draft head; empty: the one in the model file, if any
  bool use_mtp = true;
  std::string device = "auto";      // auto, cpu, cuda:N
  int workers = 0;                  // CPU threads, 0 = one per core
  std::string isa = "auto";         // CPU kernels: auto, scalar, avx2, avxvnni, avx512
  std::size_t context = 0;          // positions, 0 = kDefaultContext or the model's own, whichever is smaller
  std::size_t prefill_chunk = 512;  // rows of one pass while a prompt is read
  KvType kv = KvType::kF16;
};

inline constexpr std::size_t kDefaultContext = 32768;
inline constexpr std::size_t kMaxPrefillChunk = 8192;

// Makes the machine that the options ask for. Throws InputError when it is not there.
using OpsFactory = std::function<std::unique_ptr<Ops>(const EngineOptions& options)>;

class Engine {
 public:
  // Throws InputError for everything that is wrong with the files or the options.
  Engine(const EngineOptions& options, const OpsFactory& make_ops);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Model& model() const { return model_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const ChatTemplate& chat_template() const { return template_; }
  Pipeline& pipeline() { return *pipeline_; }
  const Ops& ops() const { return *ops_; }
  std::size_t context() const { return context_; }
  std::size_t prefill_chunk() const { return chunk_; }
  KvType kv() const { return kv_; }
  SequenceState new_state() const { return SequenceState(model_.shape, StateOptions{context_, kv_}); }
  const std::vector<std::string>& warnings() const { return warnings_; }  // to be shown once

 private:
  Model model_;
  Tokenizer tokenizer_;
  ChatTemplate template_;
  std::unique_ptr<Ops> ops_;
  std::size_t context_, chunk_;
  KvType kv_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<std::string> warnings_;
};

}  // namespace tandem
