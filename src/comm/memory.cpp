#include "comm/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "base/log.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

constexpr std::size_t kCheckedNbytes = 64u << 20;  ///< requests below this are not worth reading /proc for
constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

double gib(std::uint64_t nbytes) { return static_cast<double>(nbytes) / (1u << 30); }

/// First number in a file, kUnlimited when there is none ("max", no file).
std::uint64_t read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : kUnlimited;
}

std::uint64_t read_key(const std::string& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string key;
  std::uint64_t value = 0;
  while (file >> key >> value) {
    if (key == wanted) return value;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kUnlimited;
}

/// What one memory cgroup folder leaves, page cache that can be dropped counted as free.
std::uint64_t cgroup_room(const std::string& folder, const char* limit_file, const char* usage_file,
                          const char* cache_key) {
  const std::uint64_t limit = read_number(folder + limit_file);
  const std::uint64_t usage = read_number(folder + usage_file);
  if (limit == kUnlimited || usage == kUnlimited) return kUnlimited;
  std::uint64_t cache = read_key(folder + "/memory.stat", cache_key);
  if (cache == kUnlimited) cache = 0;
  const std::uint64_t held = usage > cache ? usage - cache : 0;
  return limit > held ? limit - held : 0;
}

std::uint64_t cgroup_available_nbytes() {
  std::uint64_t room = kUnlimited;
  std::ifstream memberships("/proc/self/cgroup");
  for (std::string line; std::getline(memberships, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      room = std::min(room, cgroup_room("/sys/fs/cgroup" + path, "/memory.max", "/memory.current", "inactive_file"));
    } else if (controllers.find("memory") != std::string::npos) {
      room = std::min(room, cgroup_room("/sys/fs/cgroup/memory" + path, "/memory.limit_in_bytes",
                                        "/memory.usage_in_bytes", "total_inactive_file"));
    }
  }
  return room;
}

}  // namespace

std::uint64_t available_memory_nbytes() {
  const std::uint64_t available_kib = [] {
    std::ifstream file("/proc/meminfo");
    std::string key, unit;
    std::uint64_t value = 0;
    while (file >> key >> value) {
      if (key == "MemAvailable:") return value;
      std::getline(file, unit);
    }
    return kUnlimited / 1024;
  }();
  return std::min(available_kib * 1024, cgroup_available_nbytes());
}

void check_memory_available(std::size_t nbytes, const std::string& what) {
  if (nbytes < kCheckedNbytes) return;
  const std::uint64_t available = available_memory_nbytes();
  if (nbytes <= available) return;
  throw IoError(
      fmt::format("{}: wanted {:.2f} GiB ({} bytes) of memory, but only {:.2f} GiB are available to this "
                  "process (MemAvailable "
                  "and memory cgroup). Use more ranks or hosts, a higher ZeRO stage or offload, or a smaller "
                  "model or bucket.",
                  what, gib(nbytes), nbytes, gib(available)));
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Mapping::Mapping(int fd, std::size_t nbytes) : nbytes_(nbytes) {
  if (nbytes == 0) return;
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* address = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (address == MAP_FAILED) {
    throw IoError(fmt::format("mapping {} bytes of memory failed: {}. Look at `ulimit -v` and vm.max_map_count.",
                              nbytes, std::strerror(errno)));
  }
  data_ = static_cast<std::byte*>(address);
  (void)::madvise(address, nbytes, MADV_HUGEPAGE);  // best effort: without it only the page size differs
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), nbytes_(std::exchange(other.nbytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(nbytes_, other.nbytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_) ::munmap(data_, nbytes_);
}

FileDescriptor create_memfd(std::size_t nbytes, const std::string& what, std::size_t expected_nbytes) {
  check_memory_available(std::min(nbytes, expected_nbytes), what);
  FileDescriptor fd(::memfd_create("zerotorch", MFD_CLOEXEC));
  if (!fd) {
    throw IoError(
        fmt::format("{}: memfd_create failed: {}. Look at `ulimit -n`: one descriptor per shared buffer is used.", what,
                    std::strerror(errno)));
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(nbytes)) != 0) {
    throw IoError(
        fmt::format("{}: growing a shared buffer to {} bytes failed: {}.", what, nbytes, std::strerror(errno)));
  }
  return fd;
}

FileDescriptor open_descriptor_of(pid_t pid, int fd) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  FileDescriptor opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!opened) {
    throw IoError(
        fmt::format("opening shared memory of process {} ({}) failed: {}. The ranks of a host must run as "
                    "the same user in the same "
                    "pid namespace (container) and be allowed to read each other's /proc; else use "
                    "ZERO_BACKEND=mpi. See also "
                    "`ulimit -n`.",
                    pid, path, std::strerror(errno)));
  }
  return opened;
}

RegionRegistry::RegionRegistry(int rank, std::function<void(std::uint32_t)> on_free)
    : rank_(rank), on_free_(std::move(on_free)) {}

std::shared_ptr<Region> RegionRegistry::find(const void* address, std::size_t nbytes) const {
  const std::lock_guard lock(mutex_);
  const auto* begin = static_cast<const std::byte*>(address);
  auto after = by_address_.upper_bound(begin);
  if (after == by_address_.begin()) return nullptr;
  Region* region = std::prev(after)->second;
  if (begin + nbytes > region->data() + region->nbytes()) return nullptr;
  return region->weak_from_this().lock();
}

std::shared_ptr<Region> RegionRegistry::find(RegionId id) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [address, region] : by_address_) {
    if (region->id().key() == id.key()) return region->weak_from_this().lock();
  }
  return nullptr;
}

RegionId RegionRegistry::next_id() {
  const std::lock_guard lock(mutex_);
  return {rank_, next_number_++};
}

void RegionRegistry::add(Region* region) {
  const std::lock_guard lock(mutex_);
  by_address_.emplace(region->data(), region);
}

void RegionRegistry::remove(Region* region) noexcept {
  const std::lock_guard lock(mutex_);
  by_address_.erase(region->data());
  if (region->id().owner == rank_ && region->shared() && region->created_here() && on_free_) {
    on_free_(region->id().number);
  }
}

Region::Region(std::shared_ptr<RegionRegistry> registry, RegionId id, FileDescriptor fd, std::size_t nbytes,
               Sharing sharing)
    : registry_(std::move(registry)),
      id_(id),
      fd_(std::move(fd)),
      nbytes_(nbytes),
      sharing_(sharing),
      creator_pid_(::getpid()),
      mapping_(fd_.get(), round_up(std::max<std::size_t>(nbytes, 1), kPageBytes)) {
  registry_->add(this);
}

Region::~Region() {
  registry_->remove(this);
  // Other ranks unmap lazily; their mappings must not keep the pages of a buffer nobody uses.
  if (sharing_ == Sharing::kReadable && created_here()) {
    (void)::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(mapping_.nbytes()));
  }
}

void Region::unshare() {
  if (sharing_ != Sharing::kNodeShared || !fd_) return;
  // Over the mapping that is there: whoever has its address keeps it, and the system copies a page when it is written.
  void* const there =
      ::mmap(mapping_.data(), mapping_.nbytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd_.get(), 0);
  if (there == MAP_FAILED) base::log_warning("memory of a host's ranks stays shared: {}", std::strerror(errno));
}

bool Region::created_here() const { return creator_pid_ == ::getpid(); }

std::shared_ptr<Region> Region::create(std::shared_ptr<RegionRegistry> registry, std::size_t nbytes, Sharing sharing,
                                       const std::string& what, std::size_t expected_nbytes) {
  const std::size_t mapped_nbytes = round_up(std::max<std::size_t>(nbytes, 1), kPageBytes);
  FileDescriptor fd;
  if (sharing == Sharing::kPrivate) {
    check_memory_available(nbytes, what);
  } else {
    fd = create_memfd(mapped_nbytes, what, expected_nbytes);
  }
  const RegionId id = registry->next_id();
  return std::shared_ptr<Region>(new Region(std::move(registry), id, std::move(fd), nbytes, sharing));
}

std::shared_ptr<Region> Region::open(std::shared_ptr<RegionRegistry> registry, RegionId id, pid_t pid, int fd,
                                     std::size_t nbytes) {
  FileDescriptor opened = open_descriptor_of(pid, fd);
  return std::shared_ptr<Region>(new Region(std::move(registry), id, std::move(opened), nbytes, Sharing::kNodeShared));
}

}  // namespace zero::comm
