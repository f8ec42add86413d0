// Memory of the card and page-locked memory of the host, owned. Plain C++: callers need no device compiler.
#pragma once

#include <cstddef>
#include <utility>

namespace tandem {

namespace detail {
void* device_allocate(std::size_t bytes);  // abort when the memory is not to be had: sizes are planned beforehand
void* pinned_allocate(std::size_t bytes);
void device_release(void* memory);
void pinned_release(void* memory);
void copy_to_device(void* device, const void* host, std::size_t bytes);
void copy_to_host(void* host, const void* device, std::size_t bytes);
}  // namespace detail

// `size` elements that are not initialised. Movable. T is any trivially copyable type.
template <typename T, void* (*kAllocate)(std::size_t), void (*kRelease)(void*)>
class CudaBuffer {
 public:
  CudaBuffer() = default;
  explicit CudaBuffer(std::size_t size) : size_(size) {
    if (size > 0) data_ = static_cast<T*>(kAllocate(size * sizeof(T)));
  }
  CudaBuffer(CudaBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  CudaBuffer& operator=(CudaBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~CudaBuffer() {
    if (data_ != nullptr) kRelease(data_);
  }

  T* get() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// On the card, aligned to 256 bytes.
template <typename T>
class DeviceBuffer : public CudaBuffer<T, detail::device_allocate, detail::device_release> {
 public:
  using CudaBuffer<T, detail::device_allocate, detail::device_release>::CudaBuffer;
  // Whole-buffer copies that have ended when the call returns; for loading and tests, never within a pass.
  void upload(const T* host) { detail::copy_to_device(this->get(), host, this->bytes()); }
  void download(T* host) const { detail::copy_to_host(host, this->get(), this->bytes()); }
};

// On the host, page-locked and mapped: the card reads and writes it at the same address.
template <typename T>
class PinnedBuffer : public CudaBuffer<T, detail::pinned_allocate, detail::pinned_release> {
 public:
  using CudaBuffer<T, detail::pinned_allocate, detail::pinned_release>::CudaBuffer;
};

}  // namespace tandem
