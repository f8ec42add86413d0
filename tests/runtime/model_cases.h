// Shared by the model tests: bind a builder, or get the message of the refusal.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "placement/check.h"
#include "runtime/model.h"
#include "tests/synthetic_model.h"

namespace tandem::testing {

// A copy of the default synthetic model, made once.
inline GgufBuilder base_model() {
  static const GgufBuilder model = synthetic_model();
  return model;
}

// A bound model and the file images that it points into.
struct BoundModel {
  std::vector<std::uint8_t> image, mtp_image;
  std::optional<Model> model;
  const Model* operator->() const { return &*model; }
};

inline BoundModel bind(const GgufBuilder& builder, MtpPolicy policy = MtpPolicy::kAuto) {
  BoundModel bound{builder.build(), {}, std::nullopt};
  bound.model = Model::bind(Gguf::parse(bound.image, "model.gguf"), std::nullopt, policy);
  return bound;
}

inline BoundModel bind(const GgufBuilder& builder, const GgufBuilder& mtp, MtpPolicy policy = MtpPolicy::kAuto) {
  BoundModel bound{builder.build(), mtp.build(), std::nullopt};
  bound.model = Model::bind(Gguf::parse(bound.image, "model.gguf"), Gguf::parse(bound.mtp_image, "mtp.gguf"), policy);
  return bound;
}

// The message of the InputError, or "bound" when there was none.
template <typename... Args>
std::string refusal(const Args&... args) {
  try {
    bind(args...);
  } catch (const InputError& error) {
    return error.what();
  }
  return "bound";
}

inline void expect_parts(const std::string& message, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
}

inline std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace tandem::testing
