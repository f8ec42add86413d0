#include "runtime/bpe.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "placement/check.h"

namespace tandem {
namespace {

constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();

// Up to this many bytes the quadratic loop over a small array beats the heap. Words are nearly always shorter.
constexpr std::size_t kShortPiece = 48;

}  // namespace

Bpe::Bpe(const std::array<std::int32_t, 256>& byte_tokens, const std::vector<Merge>& merges) : ranks_(merges.size()) {
  for (std::size_t b = 0; b < 256; ++b) byte_tokens_[b] = static_cast<std::uint32_t>(byte_tokens[b]);
  merged_.reserve(merges.size());
  for (const Merge& merge : merges) {
    const auto rank = static_cast<std::uint32_t>(merged_.size());
    merged_.push_back(static_cast<std::uint32_t>(merge.merged));
    ranks_.insert(static_cast<std::uint32_t>(merge.left), static_cast<std::uint32_t>(merge.right),
                  {rank, merged_.back()});
  }
}

std::uint32_t Bpe::rank_of(std::uint32_t left, std::uint32_t right) const {
  const PairTable::Value* found = ranks_.find(left, right);
  return found == nullptr ? kNoRank : found->first;
}

void Bpe::encode(std::string_view piece, std::vector<std::int32_t>& out) const {
  if (piece.size() <= kShortPiece) {
    encode_short(piece, out);
  } else {
    encode_long(piece, out);
  }
}

void Bpe::encode_short(std::string_view piece, std::vector<std::int32_t>& out) const {
  std::array<std::uint32_t, kShortPiece> ids;
  std::array<std::uint32_t, kShortPiece> ranks;  // ranks[i]: of the pair (i, i + 1); kNoRank for the last
  std::size_t count = piece.size();
  for (std::size_t i = 0; i < count; ++i) ids[i] = byte_tokens_[static_cast<std::uint8_t>(piece[i])];
  for (std::size_t i = 0; i < count; ++i) ranks[i] = i + 1 < count ? rank_of(ids[i], ids[i + 1]) : kNoRank;
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < count; ++i) best = ranks[i] < ranks[best] ? i : best;
    if (ranks[best] == kNoRank) break;
    ids[best] = merged_[ranks[best]];
    for (std::size_t i = best + 1; i + 1 < count; ++i) {
      ids[i] = ids[i + 1];
      ranks[i] = ranks[i + 1];
    }
    --count;
    ranks[best] = best + 1 < count ? rank_of(ids[best], ids[best + 1]) : kNoRank;
    if (best > 0) ranks[best - 1] = rank_of(ids[best - 1], ids[best]);
  }
  for (std::size_t i = 0; i < count; ++i) out.push_back(static_cast<std::int32_t>(ids[i]));
}

// A linked list of tokens over the positions of their first bytes, and a heap of (rank, position) whose stale entries
// are recognised when they come up: the pair at that position has another rank by then, or none.
void Bpe::encode_long(std::string_view piece, std::vector<std::int32_t>& out) const {
  const std::size_t size = piece.size();
  CHECK(size < kNoRank, "a piece of {} bytes", size);
  struct Node {
    std::uint32_t id, rank, previous, next;  // rank: of the pair with the next node
  };
  constexpr std::uint32_t kNone = kNoRank;
  std::vector<Node> nodes(size);
  for (std::uint32_t i = 0; i < size; ++i) {
    nodes[i] = {byte_tokens_[static_cast<std::uint8_t>(piece[i])], kNoRank, i == 0 ? kNone : i - 1,
                i + 1 < size ? i + 1 : kNone};
  }
  std::vector<std::uint64_t> heap;
  const auto rank_pair = [&](std::uint32_t at) {
    Node& node = nodes[at];
    node.rank = node.next == kNone ? kNoRank : rank_of(node.id, nodes[node.next].id);
    return node.rank != kNoRank;
  };
  for (std::uint32_t i = 0; i < size; ++i) {
    if (rank_pair(i)) heap.push_back(std::uint64_t{nodes[i].rank} << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>{});
  const auto push = [&](std::uint32_t at) {
    if (!rank_pair(at)) return;
    heap.push_back(std::uint64_t{nodes[at].rank} << 32 | at);
    std::push_heap(heap.begin(), heap.end(), std::greater<>{});
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>{});
    const auto rank = static_cast<std::uint32_t>(heap.back() >> 32);
    const auto at = static_cast<std::uint32_t>(heap.back());
    heap.pop_back();
    Node& node = nodes[at];
    if (node.rank != rank) continue;
    Node& gone = nodes[node.next];
    node.id = merged_[rank];
    node.next = gone.next;
    gone.rank = kNoRank;
    if (node.next != kNone) nodes[node.next].previous = at;
    push(at);
    if (node.previous != kNone) push(node.previous);
  }
  for (std::uint32_t at = 0; at != kNone; at = nodes[at].next) out.push_back(static_cast<std::int32_t>(nodes[at].id));
}

}  // namespace tandem
