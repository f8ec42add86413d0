// The worker crew: threads that take units of work off lock-free boards, spin while a round runs and sleep otherwise.
//
// Three boards, taken from in this order: experts (a layer's off-card experts, published by one thread and waited for
// later), loop (a parallel loop whose caller takes part and waits) and copies (experts that change places, done in what
// time is left). A board holds one job at a time; its ticket (epoch, next unit) is the only thing workers contend for.
//
// Memory order. A publisher closes the board (ticket = (epoch, closed)), writes the job's fields with release stores,
// and opens it with a release store of the ticket. A worker reads the ticket and then the fields with acquire, and
// claims units with a compare-exchange of the ticket. Whoever has read a field of the next job also sees the board
// closed, so the exchange fails; when it succeeds, the fields belong to the ticket. A claimed unit is finished with a
// release decrement of `left`, which the waiting side reads with acquire; the publisher never reopens a board before
// `left` is zero. Sleeping: a worker reads the wake counter, looks at the boards once more, and waits for the counter
// to change; publishers add to the counter after opening.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/function_ref.h"

namespace tandem {

struct CrewOptions {
  int workers = 1;              // threads that compute, the calling one included
  std::vector<int> processors;  // worker i > 0 is bound to processors[i % size]; empty: not bound
};

class Crew {
 public:
  // Starts the workers. REQUIRES workers >= 1.
  explicit Crew(const CrewOptions& options);
  ~Crew();  // REQUIRES that nothing is published
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  int workers() const { return workers_; }
  // Workers that run on the processor they were bound to, as the system says; and what went wrong, for a warning.
  int bound_workers() const;
  const std::string& warning() const { return warning_; }

  using Body = FunctionRef<void(std::size_t)>;

  // body(0) .. body(n - 1) on all workers; returns when all have ended. An exception of a body is rethrown. Called from
  // inside a body, or by a second thread at once, it runs the loop alone.
  void loop(std::size_t n, Body body);

  // Publishes body(0) .. body(n - 1) and returns. Units are taken in ascending order, so a unit may wait for an earlier
  // one. `body` must stay valid until wait_experts has returned. REQUIRES that no other job is on this board.
  void start_experts(std::size_t n, const Body& body);
  // Takes part in what is left and returns when all has ended. Rethrows.
  void wait_experts();

  // The same for copies, which never hold up the other boards.
  void start_copies(std::size_t n, const Body& body);
  void wait_copies();

 private:
  struct alignas(64) Board {
    static constexpr std::uint32_t kClosed = ~std::uint32_t{0};
    std::atomic<std::uint64_t> ticket{kClosed};
    std::atomic<std::uint32_t> count{0};
    std::atomic<std::uint32_t> share{1};  // a claim takes a share-th of what is left, at least one unit
    std::atomic<const Body*> body{nullptr};
    alignas(64) std::atomic<std::uint32_t> left{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;  // of the first body that threw; written by the one that set `failed`
    bool take();               // claims some units and runs them in order; false when none is left
    bool open() const;         // a unit is left to take
  };
  struct State;
  struct Start;

  void publish(Board& board, std::size_t n, const Body& body);
  void finish(Board& board);

  int workers_;
  std::string warning_;
  std::shared_ptr<State> state_;
};

}  // namespace tandem
