#include "cpu/played_card.h"

#include <algorithm>
#include <cstring>

namespace tandem {
namespace {
// A worker is busy with one piece for about 20 us; an expert that is published meanwhile waits no longer than that.
constexpr std::size_t kPiece = std::size_t{128} << 10;
}  // namespace

std::shared_ptr<std::uint8_t> PlayedCard::allocate(std::size_t bytes) {
  const auto arena = std::make_shared<Arena>(bytes);
  return {arena, arena->data()};
}

void PlayedCard::start(std::span<const Copy> copies) {
  pieces_.clear();
  for (const Copy& copy : copies)
    for (std::size_t done = 0; done < copy.bytes; done += kPiece)
      pieces_.push_back({copy.to + done, copy.from + done, std::min(kPiece, copy.bytes - done)});
  crew_.start_copies(pieces_.size(), body_);
}

void PlayedCard::run(std::size_t piece) {
  const Copy& copy = pieces_[piece];
  std::memcpy(copy.to, copy.from, copy.bytes);
}

void PlayedCard::exchange(std::uint8_t* card, std::uint8_t* ram, std::size_t bytes) {
  crew_.loop((bytes + kPiece - 1) / kPiece, [&](std::size_t i) {
    const std::size_t begin = i * kPiece, end = std::min(bytes, begin + kPiece);
    std::swap_ranges(card + begin, card + end, ram + begin);
  });
}

}  // namespace tandem
