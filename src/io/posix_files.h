#pragma once
// The machine's file system by plain system calls.
#include <sys/types.h>

#include <memory>
#include <mutex>

#include "io/descriptors.h"
#include "io/file_system.h"
#include "io/syscalls.h"
#include "io/worker_pool.h"

namespace zero::io {

struct PosixOptions {
  /// Outlives the file system.
  Syscalls* syscalls = &real_syscalls();
  /// Threads that read and write, shared by all files and started with the first request. 0: requests are
  /// done in the thread that queues them. One makes requests asynchronous. More pay where a disk wants
  /// several requests at a time: reading 128 KiB at a time on a cloud disk rose from 0.9 to 1.4 GB/s with 4,
  /// and 1 MiB at a time by a tenth with 2 to 4, with nothing to be had from more; large writes were as fast
  /// with one.
  int threads = 4;
  /// Past the page cache where possible.
  bool direct = true;
};

/// Any thread. A forked child may go on using it, but for files that were open.
class PosixFileSystem : public FileSystem {
 public:
  explicit PosixFileSystem(const PosixOptions& options = {});
  ~PosixFileSystem() override;

  std::unique_ptr<File> create(const std::string& path) override;
  std::unique_ptr<File> create_scratch(const std::string& folder, const ScratchOptions& options) override;
  std::unique_ptr<File> open(const std::string& path) override;
  void make_folders(const std::string& path) override;
  std::vector<std::string> list(const std::string& path) override;
  FileKind kind(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void exchange(const std::string& a, const std::string& b) override;
  void remove(const std::string& path) override;
  void sync_folder(const std::string& path) override;
  std::uint64_t free_nbytes(const std::string& path) override;
  std::unique_ptr<Lock> try_lock(const std::string& path) override;

 protected:
  virtual std::unique_ptr<File> make_file(std::unique_ptr<Descriptors> descriptors, const ScratchOptions& options);

 private:
  void make_folder(const std::string& path, bool is_parent);
  /// Null when there are to be no threads.
  WorkerPool* pool();

  const PosixOptions options_;
  Syscalls& syscalls_;
  std::mutex mutex_;
  std::unique_ptr<WorkerPool> pool_;
  pid_t pool_process_ = -1;
};

}  // namespace zero::io
