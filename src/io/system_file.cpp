#include "io/system_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"

namespace zero::io {

SystemFile::SystemFile(std::unique_ptr<Descriptors> descriptors, const ScratchOptions& options)
    : descriptors_(std::move(descriptors)), options_(options) {}

std::string SystemFile::path_for_others() const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), descriptors_->get(/*direct=*/false));
}

File::Request SystemFile::queue(const Transfer& transfer) {
  ZERO_CHECK(descriptors_->is_open(), "'{}' is closed", descriptors_->path());
  const Request request = next_request_++;
  Transfer left = transfer;
  while (left.nbytes > 0) {
    Transfer block = left;
    block.nbytes = std::min<std::uint64_t>(left.nbytes, options_.block_nbytes);
    left.offset += block.nbytes;
    left.data += block.nbytes;
    left.nbytes -= block.nbytes;
    start(request, block);
  }
  return request;
}

File::Request SystemFile::write(std::uint64_t offset, std::span<const std::byte> data) {
  if (!descriptors_->writable()) throw_io_error("write", descriptors_->path(), EBADF);
  return queue({Direction::kWrite, offset, const_cast<std::byte*>(data.data()), data.size()});
}

File::Request SystemFile::read(std::uint64_t offset, std::span<std::byte> data) {
  return queue({Direction::kRead, offset, data.data(), data.size()});
}

void SystemFile::wait(Request request) {
  ZERO_CHECK(request < next_request_, "'{}' has no request {}", descriptors_->path(), request);
  finish(request);
  failure_.check();
}

bool SystemFile::done(Request request) {
  ZERO_CHECK(request < next_request_, "'{}' has no request {}", descriptors_->path(), request);
  return is_done(request);
}

void SystemFile::reserve(std::uint64_t nbytes) {
  ZERO_CHECK(descriptors_->is_open(), "'{}' is closed", descriptors_->path());
  descriptors_->reserve(nbytes);
}

void SystemFile::drain() {
  finish_all();
  failure_.check();
}

void SystemFile::sync() {
  ZERO_CHECK(descriptors_->is_open(), "'{}' is closed", descriptors_->path());
  drain();
  try {
    descriptors_->sync();
  } catch (const IoError& error) {
    failure_.set(error.what());
    throw;
  }
}

void SystemFile::close() {
  if (!descriptors_->is_open()) return;
  finish_all();
  try {
    descriptors_->close();
  } catch (const IoError& error) {
    failure_.set(error.what());
  }
  failure_.check();
}

std::uint64_t SystemFile::size() {
  ZERO_CHECK(descriptors_->is_open(), "'{}' is closed", descriptors_->path());
  drain();
  return descriptors_->size();
}

}  // namespace zero::io
