#pragma once
// A file system in memory that can lose power.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/file_system.h"

namespace zero::io {

namespace memory {
struct Tree;
}

/// What a power cut leaves of all that was not synced.
struct CrashPolicy {
  enum class Unsynced { kNothing, kEverything, kRandom };
  /// kInOrder: of each folder a prefix of its changes, and renames across folders on both sides or none, as
  /// with a journal of metadata. kAny: any subset, each folder for itself: all that POSIX promises.
  enum class Names { kInOrder, kAny };

  Unsynced unsynced = Unsynced::kNothing;
  std::uint64_t seed = 0;
  Names names = Names::kInOrder;

  static CrashPolicy nothing_unsynced() { return {}; }
  static CrashPolicy everything() { return {Unsynced::kEverything}; }
  /// Of each file any subset of its unsynced writes, each whole, cut off or with holes at multiples of 512
  /// bytes, the size grown or not; of names as `names` says. The same seed gives the same state.
  static CrashPolicy random(std::uint64_t seed, Names names = Names::kInOrder) {
    return {Unsynced::kRandom, seed, names};
  }
};

/// Starts as an empty root folder "/"; relative paths begin there too. Any thread. Requests are done when
/// they are queued; a file may outlive its file system.
class MemoryFileSystem : public FileSystem {
 public:
  MemoryFileSystem();
  ~MemoryFileSystem() override;

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

  /// A file system with what may be found after the power goes now: all of it durable, nothing locked, as
  /// much space free. This one goes on as it was.
  std::unique_ptr<MemoryFileSystem> after_crash(const CrashPolicy& policy) const;

  /// Room for so many more bytes; writing more fails with ENOSPC, having written what fits. Overwriting takes
  /// no room. At first 1 TiB.
  void set_free_nbytes(std::uint64_t nbytes);

  /// The content of a file. Throws IoError when there is none.
  std::vector<std::byte> bytes(const std::string& path) const;
  /// Gives an existing file this content, durably, as a bad disk or a careless hand would.
  void set_bytes(const std::string& path, std::vector<std::byte> bytes);
  /// All files and folders but the root, as "/a/b", parents first.
  std::vector<std::string> paths() const;

 private:
  explicit MemoryFileSystem(std::shared_ptr<memory::Tree> tree);

  const std::shared_ptr<memory::Tree> tree_;
};

}  // namespace zero::io
