#pragma once
// FileSystem and File: everything the library does with files goes through these two, so that a crash, a
// full disk or a lying disk can be put in their place.
//
// Durability is what POSIX gives and no more: written data is durable after File::sync(), a created,
// renamed or removed name after sync_folder() of its folder.
//
// Errors are IoError with the verb, the path and the system's reason; what to do about it where it is known.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::io {

enum class FileKind : std::uint8_t { kNone, kFile, kFolder, kOther };

/// How a scratch file goes to the system.
struct ScratchOptions {
  std::uint64_t block_nbytes = 1 << 20;  ///< in blocks of so many bytes
  unsigned queue_depth = 32;             ///< so many under way at once
};

/// An open file. One thread at a time. Requests are queued and may complete in any order: requests under way
/// at the same time must not overlap, in the file or in memory, where one of them changes it. The memory they
/// name stays valid and untouched until done(), wait() or drain() says so. The destructor drains and closes, and
/// keeps errors to itself: call close() to hear of them.
///
/// A failed request is heard of at the next wait(), drain(), sync(), size() or close(), and at each one after
/// it: a file of which anything failed, a sync() included, stays failed. Whether they return or throw, the
/// requests they are to wait for are done with their memory.
class File {
 public:
  using Request = std::uint64_t;

  virtual ~File() = default;
  /// Offsets, sizes and addresses that are multiples of this take the fast way (no copy by the kernel);
  /// others are as right but slower.
  virtual std::size_t alignment() const = 0;
  /// How it is read and written, for people: "io_uring, past the page cache".
  virtual std::string description() const = 0;
  /// What other processes of this host and user may open() to read it as well, while it is open here; empty where
  /// there is nothing like that.
  virtual std::string path_for_others() const { return {}; }
  /// Queues writing of all of `data` at `offset`; the file grows as needed. May block while others are under way.
  /// Throws at once when the file was opened for reading.
  virtual Request write(std::uint64_t offset, std::span<const std::byte> data) = 0;
  /// Queues filling all of `data` from `offset`. A file that ends before is an error.
  virtual Request read(std::uint64_t offset, std::span<std::byte> data) = 0;
  /// Returns when that request is done. Throws the error of any request that failed so far.
  virtual void wait(Request request) = 0;
  /// Whether that request is done, well or not, without waiting for it. Gets what is queued on its way.
  virtual bool done(Request request) = 0;
  /// wait() for all.
  virtual void drain() = 0;
  /// Takes room for bytes [0, nbytes) from the disk now: writing there does not fail for want of it. What was never
  /// written is zeros. Throws IoError that says what is missing.
  virtual void reserve(std::uint64_t nbytes) = 0;
  /// Most requests will be of this memory, which outlives the file: the system may get to know it once and for all.
  /// For a file of create_scratch(), before its first request.
  virtual void use_memory(std::span<std::byte> memory) { (void)memory; }
  /// drain(), then makes the file's data and size durable.
  virtual void sync() = 0;
  /// drain(), then gives the file back to the system. Idempotent.
  virtual void close() = 0;
  /// drain(), then the file's size in bytes.
  virtual std::uint64_t size() = 0;
};

/// Held until destroyed; gone with the process.
class Lock {
 public:
  virtual ~Lock() = default;
};

/// Any thread may use it. Paths are the system's.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// A new file for writing, which may be read as well; one of that name is an error.
  virtual std::unique_ptr<File> create(const std::string& path) = 0;
  /// A new file in `folder` to write and read, for this process alone: it has no name, and whatever becomes of the
  /// process, its room is free again. Requests do not block.
  virtual std::unique_ptr<File> create_scratch(const std::string& folder, const ScratchOptions& options) = 0;
  /// An existing file for reading.
  virtual std::unique_ptr<File> open(const std::string& path) = 0;
  /// With its parents; one that exists is fine. Parents that were made are synced into theirs; the name of
  /// the folder itself is durable after sync_folder() of its parent.
  virtual void make_folders(const std::string& path) = 0;
  /// Names in a folder, sorted, without "." and "..".
  virtual std::vector<std::string> list(const std::string& path) = 0;
  /// What a path leads to, links followed. A link that leads nowhere is kOther.
  virtual FileKind kind(const std::string& path) = 0;
  /// Atomic. A file takes the place of a file; a folder needs a name that is free or an empty folder.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// Swaps two names, atomically.
  virtual void exchange(const std::string& a, const std::string& b) = 0;
  /// A file, a link or an empty folder; what is not there is an error.
  virtual void remove(const std::string& path) = 0;
  /// Makes the names in a folder durable.
  virtual void sync_folder(const std::string& path) = 0;
  /// Bytes that an ordinary user may still write to the file system `path` (an existing folder) is on.
  virtual std::uint64_t free_nbytes(const std::string& path) = 0;
  /// Takes the lock of that name (a file, made as needed, and left there); null when somebody else holds it,
  /// in this process or another.
  virtual std::unique_ptr<Lock> try_lock(const std::string& path) = 0;
};

/// The machine's own. Uses io_uring and O_DIRECT where the kernel and the file system have them.
FileSystem& system_files();

// ---- on top of the interface ------------------------------------------------------------------------

/// The whole of a small file. Throws IoError when it has more than `max_nbytes`.
std::string read_text(FileSystem& files, const std::string& path, std::uint64_t max_nbytes);
/// Writes and syncs a new file. The name is durable after sync_folder().
void write_text(FileSystem& files, const std::string& path, std::string_view text);
/// Writes `path` so that a crash leaves the old or the new text: temporary name beside it (`path`.tmp; what a
/// crash left there is replaced), sync, rename, sync of the folder. One writer of a path at a time.
void replace_text(FileSystem& files, const std::string& path, std::string_view text);
/// A folder with everything in it, or a file. What is not there is fine. Links go, what they lead to stays.
void remove_all(FileSystem& files, const std::string& path);
/// "a/b" from "a" and "b"; `folder` may end in '/'.
std::string join(std::string_view folder, std::string_view name);
/// The folder a path is in: "a" of "a/b" and "a/b/", "." of "a", "/" of "/a" and "/".
std::string parent_of(std::string_view path);

}  // namespace zero::io
