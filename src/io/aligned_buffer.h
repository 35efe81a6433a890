#pragma once
// AlignedBuffer: memory that File's fast way can use without a copy.
#include <cstddef>
#include <span>

namespace zero::io {

/// Page-aligned, zero-filled memory straight from the system, given back with its owner. Any thread, one at a
/// time.
class AlignedBuffer {
 public:
  enum class Pages { kOrdinary, kHuge };

  AlignedBuffer() = default;
  /// `nbytes` need not be a multiple of anything; 0 maps nothing. kHuge advises the kernel to use huge pages,
  /// which it may ignore; good for buffers of many MiB that are filled again and again. Throws IoError.
  explicit AlignedBuffer(std::size_t nbytes, Pages pages = Pages::kOrdinary);
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  std::byte* data() const { return data_; }
  std::size_t nbytes() const { return nbytes_; }
  std::span<std::byte> span() const { return {data_, nbytes_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t nbytes_ = 0;
};

}  // namespace zero::io
