#pragma once
// SystemFile: what the files of posix and of io_uring have in common.
#include <memory>

#include "io/descriptors.h"
#include "io/file_system.h"
#include "io/io_error.h"
#include "io/transfer.h"

namespace zero::io {

/// Of files that are not scratch: each request is one transfer.
inline constexpr ScratchOptions kWholeRequests = {.block_nbytes = UINT64_MAX};

/// Numbers the requests, keeps the first error, syncs and closes. How requests get done is for the heirs,
/// whose destructors call finish_all().
class SystemFile : public File {
 public:
  SystemFile(std::unique_ptr<Descriptors> descriptors, const ScratchOptions& options);

  std::size_t alignment() const override { return kAlignment; }
  std::string path_for_others() const override;
  Request write(std::uint64_t offset, std::span<const std::byte> data) override;
  Request read(std::uint64_t offset, std::span<std::byte> data) override;
  void wait(Request request) override;
  bool done(Request request) override;
  void drain() override;
  void reserve(std::uint64_t nbytes) override;
  void sync() override;
  void close() override;
  std::uint64_t size() override;

 protected:
  /// Gets it under way, or done. A request may be several transfers. What fails is told to failure().
  virtual void start(Request request, const Transfer& transfer) = 0;
  virtual bool is_done(Request request) = 0;
  /// Returns when the request is done, well or not.
  virtual void finish(Request request) = 0;
  virtual void finish_all() = 0;

  Descriptors& descriptors() { return *descriptors_; }
  const Descriptors& descriptors() const { return *descriptors_; }
  const ScratchOptions& options() const { return options_; }
  Failure& failure() { return failure_; }

 private:
  Request queue(const Transfer& transfer);

  const std::unique_ptr<Descriptors> descriptors_;
  const ScratchOptions options_;
  Failure failure_;
  Request next_request_ = 0;
};

}  // namespace zero::io
