#include "io/aligned_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "zero/errors.h"

namespace zero::io {

AlignedBuffer::AlignedBuffer(std::size_t nbytes, Pages pages) : nbytes_(nbytes) {
  if (nbytes == 0) return;
  void* address = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    throw IoError(fmt::format("cannot map {} bytes of memory for files: {}. Use smaller buffers or more memory.",
                              nbytes, std::generic_category().message(errno)));
  }
  data_ = static_cast<std::byte*>(address);
  if (pages == Pages::kHuge) ::madvise(address, nbytes, MADV_HUGEPAGE);
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), nbytes_(std::exchange(other.nbytes_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(nbytes_, other.nbytes_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) ::munmap(data_, nbytes_);
}

}  // namespace zero::io
