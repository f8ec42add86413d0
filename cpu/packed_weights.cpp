#include "cpu/packed_weights.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "runtime/model_visit.h"

namespace tandem {

namespace {

// The packed copy is what is read from now on: under memory pressure the file's pages go first.
void release_pages(const std::uint8_t* data, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_COLD);
}

}  // namespace

PackedBank::PackedBank(const ExpertBank& bank, const ParallelFor& parallel)
    : layout_(ExpertBlobLayout::of(bank)), memory_(nullptr, &std::free) {
  const std::size_t bytes = layout_.bytes * static_cast<std::size_t>(bank.experts);
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const std::size_t alignment = bytes >= 2 * kHuge ? kHuge : 64;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  memory_.reset(static_cast<std::uint8_t*>(std::aligned_alloc(alignment, rounded)));
  if (memory_ == nullptr) throw std::bad_alloc();
  if (alignment == kHuge) madvise(memory_.get(), rounded, MADV_HUGEPAGE);
  parallel(static_cast<std::size_t>(bank.experts),
           [&](std::size_t e) { pack_expert(bank, static_cast<int>(e), layout_, memory_.get() + e * layout_.bytes); });
}

std::shared_ptr<void> PackedWeights::load(const Model& model, const ParallelFor& parallel,
                                          const LoadProgress& progress) {
  std::vector<const WeightView*> views;
  std::vector<const ExpertBank*> banks;
  std::size_t total = 0, done = 0;
  for_each_matrix(model, [&](const WeightView& view) {
    if (!has_tile_layout(view.type)) return;
    views.push_back(&view);
    total += view.bytes();
  });
  const auto bank_bytes = [](const ExpertBank& bank) {
    return static_cast<std::size_t>(bank.experts) * (bank.gate.bytes() + bank.up.bytes() + bank.down.bytes());
  };
  for_each_bank(model, [&](const ExpertBank& bank) {
    if (!ExpertBlobLayout::possible(bank)) return;
    banks.push_back(&bank);
    total += bank_bytes(bank);
  });
  const auto advance = [&](std::size_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
  };

  std::vector<const std::uint8_t*> matrix_keys, bank_keys;
  for (const WeightView* view : views) {
    auto found = matrices_.find(view->data);
    if (found == matrices_.end()) {
      found = matrices_.emplace(view->data, Entry<PackedMatrix>{pack_matrix(*view, parallel), 0}).first;
      release_pages(view->data, view->bytes());
    }
    ++found->second.uses;
    matrix_keys.push_back(view->data);
    advance(view->bytes());
  }
  for (const ExpertBank* bank : banks) {
    auto found = banks_.find(bank->gate.data);
    if (found == banks_.end()) {
      found = banks_.emplace(bank->gate.data, Entry<PackedBank>{PackedBank(*bank, parallel), 0}).first;
      const auto last = static_cast<std::size_t>(bank->experts - 1);
      release_pages(bank->gate.data, last * bank->gate_up_stride + bank->gate.bytes());
      release_pages(bank->up.data, last * bank->up_stride + bank->up.bytes());
      release_pages(bank->down.data, last * bank->down_stride + bank->down.bytes());
    }
    ++found->second.uses;
    bank_keys.push_back(bank->gate.data);
    advance(bank_bytes(*bank));
  }
  const auto release = [this, matrix_keys, bank_keys](void*) {
    const auto drop = [](auto& entries, const std::vector<const std::uint8_t*>& keys) {
      for (const std::uint8_t* key : keys)
        if (const auto found = entries.find(key); --found->second.uses == 0) entries.erase(found);
    };
    drop(matrices_, matrix_keys);
    drop(banks_, bank_keys);
  };
  return {static_cast<void*>(this), release};
}

const PackedMatrix* PackedWeights::matrix(const WeightView& view) const {
  const auto found = matrices_.find(view.data);
  if (found == matrices_.end()) return nullptr;
  const PackedMatrix& packed = found->second.packed;
  return packed.type == view.type && packed.rows == view.rows && packed.cols == view.cols ? &packed : nullptr;
}

const PackedBank* PackedWeights::bank(const ExpertBank& bank) const {
  const auto found = banks_.find(bank.gate.data);
  return found == banks_.end() ? nullptr : &found->second.packed;
}

}  // namespace tandem
