#pragma once
// Memory that ranks of one host share: memfd mappings, which have no name and so cannot be left behind.
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace zero::comm {

inline constexpr std::size_t kPageBytes = 4096;

constexpr std::size_t round_up(std::size_t nbytes, std::size_t multiple) {
  return (nbytes + multiple - 1) / multiple * multiple;
}

/// Bytes that can still be had without swapping or being killed: MemAvailable, or what the memory
/// cgroup (v1 or v2) leaves, whichever is less. Local.
std::uint64_t available_memory_nbytes();

/// Throws IoError saying wanted, free and the remedy when a large allocation does not fit. `what`
/// names the purpose. Small requests are not checked. Local.
void check_memory_available(std::size_t nbytes, const std::string& what);

/// An open file descriptor, closed with its owner.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// A mapping, unmapped with its owner.
class Mapping {
 public:
  Mapping() = default;
  /// Maps `nbytes` of `fd` shared (fd < 0: private anonymous memory). Throws IoError.
  Mapping(int fd, std::size_t nbytes);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  std::byte* data() const { return data_; }
  std::size_t nbytes() const { return nbytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t nbytes_ = 0;
};

/// A zero-filled memfd of `nbytes`; there must be memory for `expected_nbytes` of them. `what` names it in errors.
/// Throws IoError. Local.
FileDescriptor create_memfd(std::size_t nbytes, const std::string& what, std::size_t expected_nbytes = SIZE_MAX);

/// Opens descriptor `fd` of process `pid` on this host. Throws IoError. Local.
FileDescriptor open_descriptor_of(pid_t pid, int fd);

/// Names a region in the whole group: the rank that created it and that rank's running number.
struct RegionId {
  std::int32_t owner = -1;
  std::uint32_t number = 0;
  std::uint64_t key() const { return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(owner)) << 32) | number; }
};

class Region;

/// The regions one rank has mapped, found by address when they are the input of a collective.
/// Thread-safe: a region may be dropped by another thread than the one that uses the group.
class RegionRegistry {
 public:
  /// `on_free` is told of each region of `rank` that goes, so that other ranks unmap it too.
  RegionRegistry(int rank, std::function<void(std::uint32_t number)> on_free);

  /// The region that holds all of [address, address + nbytes), or null. Local.
  std::shared_ptr<Region> find(const void* address, std::size_t nbytes) const;
  /// The region with that name, or null. Local.
  std::shared_ptr<Region> find(RegionId id) const;
  RegionId next_id();

 private:
  friend class Region;
  void add(Region* region);
  void remove(Region* region) noexcept;

  const int rank_;
  const std::function<void(std::uint32_t)> on_free_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, Region*> by_address_;
  std::uint32_t next_number_ = 1;
};

/// Memory behind a SharedMemory. Unmapped, and its pages returned, with the last reference.
class Region : public std::enable_shared_from_this<Region> {
 public:
  enum class Sharing : std::uint8_t { kPrivate, kReadable, kNodeShared };

  /// Creates zero-filled memory; kReadable and kNodeShared are memfds, for which there must be memory for
  /// `expected_nbytes`. Throws IoError. Local.
  static std::shared_ptr<Region> create(std::shared_ptr<RegionRegistry> registry, std::size_t nbytes, Sharing sharing,
                                        const std::string& what, std::size_t expected_nbytes = SIZE_MAX);
  /// Maps a node-shared region that another rank created. Throws IoError. Local.
  static std::shared_ptr<Region> open(std::shared_ptr<RegionRegistry> registry, RegionId id, pid_t pid, int fd,
                                      std::size_t nbytes);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::byte* data() const { return mapping_.data(); }
  std::size_t nbytes() const { return nbytes_; }
  const FileDescriptor& descriptor() const { return fd_; }
  int fd() const { return fd_.get(); }
  RegionId id() const { return id_; }
  /// True when other ranks can map it.
  bool shared() const { return static_cast<bool>(fd_); }
  /// Of a region that all ranks of the host have mapped: from here on this process's writes are its own, and what it
  /// has not written it still shares. Best effort. Local.
  void unshare();
  /// False in a forked child, whose copies of the owner's objects must not touch the owner's pages.
  bool created_here() const;

 private:
  Region(std::shared_ptr<RegionRegistry> registry, RegionId id, FileDescriptor fd, std::size_t nbytes, Sharing sharing);

  std::shared_ptr<RegionRegistry> registry_;
  RegionId id_;
  FileDescriptor fd_;
  std::size_t nbytes_;
  Sharing sharing_;
  pid_t creator_pid_;
  Mapping mapping_;
};

}  // namespace zero::comm
