#pragma once
// A file whose requests are done by system calls of the thread that queues them or of a pool.
#include <condition_variable>
#include <mutex>
#include <set>

#include "io/system_file.h"
#include "io/worker_pool.h"

namespace zero::io {

class PosixFile : public SystemFile {
 public:
  /// Without a pool, requests are done when they are queued. The pool outlives the file.
  PosixFile(std::unique_ptr<Descriptors> descriptors, WorkerPool* pool, const ScratchOptions& options);
  ~PosixFile() override;

  std::string description() const override;

 private:
  void start(Request request, const Transfer& transfer) override;
  bool is_done(Request request) override;
  void finish(Request request) override;
  void finish_all() override;
  void run(const Transfer& transfer) noexcept;

  WorkerPool* const pool_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::multiset<Request> under_way_;  ///< by transfer
};

}  // namespace zero::io
