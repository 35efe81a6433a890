#include "doubles/memory_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace zero::io::memory {

MemoryFile::MemoryFile(std::shared_ptr<Tree> tree, Node& node, std::string path, Mode mode)
    : tree_(std::move(tree)), node_(node), path_(std::move(path)), mode_(mode) {
  ++node_.handles;
}

MemoryFile::~MemoryFile() { release(); }

void MemoryFile::release() {
  if (!std::exchange(open_, false)) return;
  const std::lock_guard lock(tree_->mutex);
  --node_.handles;
  tree_->release_if_unused(node_);
}

void MemoryFile::check_open() const { ZERO_CHECK(open_, "'{}' is closed", path_); }

File::Request MemoryFile::write(std::uint64_t offset, std::span<const std::byte> data) {
  if (mode_ == Mode::kReadOnly) throw_io_error("write", path_, EBADF);
  check_open();
  const std::lock_guard lock(tree_->mutex);
  const std::uint64_t before = node_.content_now.size();
  const std::uint64_t room = before + tree_->free_nbytes;
  if (offset + data.size() > room) {
    failure_.set(io_error_text("write", path_, ENOSPC));
    data = data.first(room - std::min(room, offset));
  }
  if (!data.empty()) {
    put(node_.content_now, offset, data);
    node_.unsynced_writes.push_back({offset, {data.begin(), data.end()}});
    tree_->free_nbytes -= node_.content_now.size() - before;
  }
  return next_request_++;
}

File::Request MemoryFile::read(std::uint64_t offset, std::span<std::byte> data) {
  check_open();
  const std::lock_guard lock(tree_->mutex);
  const std::uint64_t nbytes = node_.content_now.size();
  if (data.size() > nbytes || offset > nbytes - data.size()) {
    try {
      throw_file_ends(path_, offset, data.size(), nbytes);
    } catch (const IoError& error) {
      failure_.set(error.what());
    }
  } else if (!data.empty()) {
    std::memcpy(data.data(), node_.content_now.data() + offset, data.size());
  }
  return next_request_++;
}

void MemoryFile::wait(Request request) {
  ZERO_CHECK(request < next_request_, "'{}' has no request {}", path_, request);
  failure_.check();
}

void MemoryFile::drain() { failure_.check(); }

void MemoryFile::reserve(std::uint64_t nbytes) {
  check_open();
  const std::lock_guard lock(tree_->mutex);
  const std::uint64_t before = node_.content_now.size();
  if (nbytes <= before) return;
  if (nbytes - before > tree_->free_nbytes) throw_io_error("reserve room for", path_, ENOSPC);
  node_.content_now.resize(nbytes);
  tree_->free_nbytes -= nbytes - before;
}

void MemoryFile::sync() {
  check_open();
  failure_.check();
  const std::lock_guard lock(tree_->mutex);
  commit_content(node_);
}

void MemoryFile::close() {
  if (!open_) return;
  release();
  failure_.check();
}

std::uint64_t MemoryFile::size() {
  check_open();
  failure_.check();
  const std::lock_guard lock(tree_->mutex);
  return node_.content_now.size();
}

}  // namespace zero::io::memory
