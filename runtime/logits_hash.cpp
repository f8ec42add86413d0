#include "runtime/logits_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "placement/check.h"

namespace tandem {

struct LogitsHash::Impl {
  XXH3_state_t* state = XXH3_createState();
  Impl() {
    CHECK(state != nullptr);
    CHECK(XXH3_128bits_reset(state) == XXH_OK);
  }
  ~Impl() { XXH3_freeState(state); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
};

LogitsHash::LogitsHash() : impl_(std::make_unique<Impl>()) {}
LogitsHash::~LogitsHash() = default;

void LogitsHash::add(std::span<const float> row) {
  CHECK(XXH3_128bits_update(impl_->state, row.data(), row.size_bytes()) == XXH_OK);
  ++rows_;
}

std::string LogitsHash::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(impl_->state);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace tandem
