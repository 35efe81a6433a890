#pragma once
// An open file of the system: one descriptor that goes through the page cache and, where the file system has
// it, one with O_DIRECT that does not.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "io/syscalls.h"

namespace zero::io {

/// Multiples of this are fit for O_DIRECT on every disk with blocks of up to a page. A page, so that the two
/// descriptors never have to do with the same page in one request.
inline constexpr std::size_t kAlignment = 4096;

/// Any thread may use the descriptors; open, sync and close are for one at a time.
class Descriptors {
 public:
  enum class Mode { kCreate, kOpen, kScratch };

  /// kCreate: a new file, to write and read; kOpen: an existing one, to read; kScratch: a new file without a name in
  /// the folder `path`, to write and read. Without `direct`, or where it cannot be had, there is the one descriptor.
  /// Throws IoError.
  Descriptors(Syscalls& syscalls, const std::string& path, Mode mode, bool direct);
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  /// Closes without a word.
  ~Descriptors();

  Syscalls& syscalls() const { return syscalls_; }
  /// Of a scratch file, a name that it might have.
  const std::string& path() const { return path_; }
  bool writable() const { return mode_ != Mode::kOpen; }
  bool is_open() const { return cached_ >= 0; }

  bool has_direct() const { return direct_usable_.load(std::memory_order_relaxed); }
  /// The disk wants more alignment than we give: the rest goes through the page cache.
  void give_up_direct() { direct_usable_.store(false, std::memory_order_relaxed); }
  int get(bool direct) const { return direct ? direct_ : cached_; }

  /// Takes room for [0, nbytes) from the disk, where its file system can. Throws IoError.
  void reserve(std::uint64_t nbytes);
  /// Throws IoError.
  void sync();
  /// Throws IoError; the file is closed all the same. Idempotent.
  void close();
  /// Throws IoError.
  std::uint64_t size() const;

 private:
  int open_scratch(const std::string& folder);
  void open_direct();
  /// The errno of whichever close failed, or 0.
  int close_all() noexcept;

  Syscalls& syscalls_;
  const std::string path_;
  const Mode mode_;
  int cached_ = -1;
  int direct_ = -1;
  std::atomic<bool> direct_usable_ = false;
};

}  // namespace zero::io
