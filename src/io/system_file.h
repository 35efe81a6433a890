#pragma once
// SystemFile: what the files of posix and of io_uring have in common.
#include <memory>

#include "io/descriptors.h"
#include "io/file_system.h"
#include "io/io_error.h"
#include "io/transfer.h"

namespace zero::io {

/// Requests that may be under way in one file.
inline constexpr unsigned kQueueDepth = 32;

/// Numbers the requests, keeps the first error, syncs and closes. How requests get done is for the heirs,
/// whose destructors call finish_all().
class SystemFile : public File {
 public:
  explicit SystemFile(std::unique_ptr<Descriptors> descriptors);

  std::size_t alignment() const override { return kAlignment; }
  Request write(std::uint64_t offset, std::span<const std::byte> data) override;
  Request read(std::uint64_t offset, std::span<std::byte> data) override;
  void wait(Request request) override;
  void drain() override;
  void sync() override;
  void close() override;
  std::uint64_t size() override;

 protected:
  /// Gets it under way, or done; blocks while the queue is full. What fails is told to failure().
  virtual void start(Request request, const Transfer& transfer) = 0;
  /// Returns when the request is done, well or not.
  virtual void finish(Request request) = 0;
  virtual void finish_all() = 0;

  Descriptors& descriptors() { return *descriptors_; }
  Failure& failure() { return failure_; }

 private:
  Request queue(const Transfer& transfer);

  const std::unique_ptr<Descriptors> descriptors_;
  Failure failure_;
  Request next_request_ = 0;
};

}  // namespace zero::io
