// A model ready to run: file, tokenizer, template, machine and pipeline, opened in this order and kept together.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "placement/cost_model.h"
#include "runtime/chat_template.h"
#include "runtime/draft.h"
#include "runtime/draft_vocabulary.h"
#include "runtime/model.h"
#include "runtime/ops.h"
#include "runtime/pipeline.h"
#include "runtime/plan_report.h"
#include "runtime/sequence_state.h"
#include "runtime/tail_skip.h"
#include "runtime/tokenizer.h"

namespace tandem {

// What the command line says about drafting; what is empty comes from the policy.
struct DraftChoices {
  bool automatic = false;    // the depth is chosen every round
  std::optional<int> depth;  // of the draft head
  std::optional<bool> lookup;
  MtpNorm norm = MtpNorm::kFull;
  MtpAttention attention = MtpAttention::kSparse;
};

// What the command line says about the switches that change the text; what is empty comes from the policy.
struct LossyChoices {
  std::optional<bool> biased_acceptance;
  std::optional<double> tail_route_skip;
};

struct EngineOptions {
  std::filesystem::path model;
  std::filesystem::path mtp;  // a separate draft head; empty: the one in the model file, if any
  bool use_mtp = true;
  std::string device = "auto";    // auto, cpu, cuda:N
  int workers = 0;                // CPU threads, 0 = by the policy, or one per core
  bool graphs = true;             // the card runs recorded passes
  bool verify_experts = false;    // the CPU computes one expert a layer again
  std::string isa = "auto";       // CPU kernels: auto, scalar, avx2, avxvnni, avx512
  std::size_t context = 0;        // positions, 0 = by the policy, or kDefaultContext or the model's own if smaller
  std::size_t prefill_chunk = 0;  // rows of one pass while a prompt is read; 0: default_prefill_rows of the card
  std::optional<KvType> kv;       // empty: by the policy
  PlacementChoices placement;     // of which context, kv and use_mtp are taken from above
  DraftChoices drafting;
  LossyChoices lossy;
  ReadSavedChats saved_chats;        // for a draft vocabulary by history; empty: there are none
  std::filesystem::path slots_file;  // experts on the card: read at the start if it is there, written at the end
  bool remember_slots = false;       // where that is empty and the policy asks for it, in a file of the model's own
  std::filesystem::path timeline;    // a trace of all threads, written at the end
  bool plan = true;                  // false: for a machine that reads all weights from the file; nothing is planned

  // Of the policy, for whoever makes the machine.
  CrewCores cores = CrewCores::kPerformance;
  bool pin = false;
  int suggested_workers = 0;  // where `workers` is 0: as many as the measured bandwidth is worth; 0: not known
};

inline constexpr std::size_t kDefaultContext = 32768;
inline constexpr std::size_t kMaxPrefillChunk = static_cast<std::size_t>(kMostPrefillRows);

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
  const PlanReport& plan() const { return plan_; }
  // Null on a machine that reads experts from the file.
  ExpertStore* experts() const { return pipeline_->experts(); }
  // Of the tail-route skip so far; nothing where it is off.
  TailSkip::Counts skipped() const;
  // Writes the slots file and the timeline, if asked for. Throws InputError.
  void close();
  std::size_t context() const { return context_; }
  std::size_t prefill_chunk() const { return chunk_; }
  KvType kv() const { return kv_; }
  DraftSettings drafting() const;  // by flags and policy
  const DraftVocabulary& draft_vocabulary() const { return draft_vocabulary_; }
  // Bytes of the card in use beside those planned, as a line for a report; empty without a card. To be asked when the
  // sequences have been made.
  std::string card_memory_note(std::int64_t sequences = 1) const;
  const Policy::Lossy& lossy() const { return policy_.lossy; }  // by flags and policy; says so in warnings()
  // The first one, while it lives, has its keys and values in the memory that is lent to experts as long as it is free.
  SequenceState new_state() const;
  const std::vector<std::string>& warnings() const { return warnings_; }  // to be shown once

 private:
  // Where the policy's slots of the last time are (adapt.save_slots); empty: not asked for.
  std::filesystem::path remembered_slots() const;

  EngineOptions options_;
  Policy policy_;
  Model model_;
  Tokenizer tokenizer_;
  ChatTemplate template_;
  DraftVocabulary draft_vocabulary_;
  std::unique_ptr<Ops> ops_;
  std::size_t context_, chunk_;
  KvType kv_;
  PlanReport plan_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<std::string> warnings_;
};

}  // namespace tandem
