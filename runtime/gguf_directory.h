// The checked reading of one GGUF image (one shard). Internal to the GGUF reader.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "placement/check.h"
#include "runtime/gguf.h"
#include "runtime/gguf_metadata.h"

namespace tandem {

inline constexpr std::string_view kFixDamaged = "download the file again, it is damaged or incomplete";

struct GgufDirectory {
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  // data pointers lie inside the image
  std::uint32_t version = 0;
  std::uint64_t data_offset = 0;
};

// Reads and verifies everything but the tensor data. `file` names the image in messages. Throws InputError.
GgufDirectory parse_directory(std::span<const std::uint8_t> image, std::string file);

// A cursor that never leaves the image.
class ByteReader {
 public:
  ByteReader(std::span<const std::uint8_t> image, const std::string& file) : image_(image), file_(file) {}

  std::size_t position() const { return position_; }
  std::size_t left() const { return image_.size() - position_; }

  // The next sizeof(T) bytes; `what` names the field in the message when the file ends first.
  template <typename T>
  T read(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof value, what), sizeof value);
    return value;
  }
  std::string_view read_text(std::size_t length, std::string_view what) {
    return {reinterpret_cast<const char*>(take(length, what)), length};
  }
  const std::uint8_t* take(std::size_t length, std::string_view what) {
    if (length > left()) {
      fail_input("{}: {} at byte {}: expected {} bytes, found the end of the file after {}. Fix: {}", file_, what,
                 position_, length, left(), kFixDamaged);
    }
    const std::uint8_t* bytes = image_.data() + position_;
    position_ += length;
    return bytes;
  }

 private:
  std::span<const std::uint8_t> image_;
  const std::string& file_;
  std::size_t position_ = 0;
};

// The tensor-info section; offsets are still relative to the data section, data is not set. REQUIRES that `count` infos
// of minimal size fit the rest of the file.
std::vector<GgufTensor> read_tensor_infos(ByteReader& reader, std::size_t count, const std::string& file);

// Checks the order, sizes and end of the data section and turns the offsets into positions in the image.
// Returns the start of the data section.
std::uint64_t place_tensors(std::vector<GgufTensor>& tensors, std::span<const std::uint8_t> image,
                            std::uint64_t header_bytes, std::uint64_t alignment, const std::string& file);

}  // namespace tandem
