// The card that the CPU machine plays: a second arena of host memory, with copies done by the crew in its spare time.
#pragma once

#include <vector>

#include "cpu/crew.h"
#include "runtime/expert_store.h"

namespace tandem {

class PlayedCard : public CardMemory {
 public:
  explicit PlayedCard(Crew& crew) : crew_(crew), copy_([this](std::size_t i) { run(i); }), body_(copy_) {}
  std::shared_ptr<std::uint8_t> allocate(std::size_t bytes) override;
  void start(std::span<const Copy> copies) override;
  void wait() override { crew_.wait_copies(); }
  bool host_readable() const override { return true; }
  void exchange(std::uint8_t* card, std::uint8_t* ram, std::size_t bytes) override;

 private:
  void run(std::size_t piece);
  Crew& crew_;
  std::function<void(std::size_t)> copy_;
  Crew::Body body_;
  std::vector<Copy> pieces_;
};

}  // namespace tandem
