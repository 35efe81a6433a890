#include "io/posix_file.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

namespace zero::io {

PosixFile::PosixFile(std::unique_ptr<Descriptors> descriptors, WorkerPool* pool, const ScratchOptions& options)
    : SystemFile(std::move(descriptors), options), pool_(pool) {}

PosixFile::~PosixFile() { finish_all(); }

std::string PosixFile::description() const {
  return fmt::format("system calls of {} threads, {} the page cache", pool_ ? pool_->threads() : 0,
                     descriptors().has_direct() ? "past" : "through");
}

void PosixFile::run(const Transfer& transfer) noexcept {
  try {
    run_transfer(descriptors(), transfer);
  } catch (const std::exception& error) {
    failure().set(error.what());
  }
}

void PosixFile::start(Request request, const Transfer& transfer) {
  if (pool_ == nullptr) {
    run(transfer);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    under_way_.insert(request);
  }
  pool_->submit([this, request, transfer] {
    run(transfer);
    // Told under the lock: once it is free the file may be gone.
    const std::lock_guard lock(mutex_);
    under_way_.erase(under_way_.find(request));
    done_.notify_all();
  });
}

bool PosixFile::is_done(Request request) {
  const std::lock_guard lock(mutex_);
  return !under_way_.contains(request);
}

void PosixFile::finish(Request request) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return !under_way_.contains(request); });
}

void PosixFile::finish_all() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return under_way_.empty(); });
}

}  // namespace zero::io
