// One hash over the logits rows of a run: XXH3-128 of their raw float32 bytes, rows in position order. Two runs that
// agree in it agree in every bit of every logit.
#pragma once

#include <memory>
#include <span>
#include <string>

namespace tandem {

class LogitsHash {
 public:
  LogitsHash();
  ~LogitsHash();
  void add(std::span<const float> row);
  std::size_t rows() const { return rows_; }
  std::string hex() const;  // 32 digits, most significant first

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::size_t rows_ = 0;
};

}  // namespace tandem
