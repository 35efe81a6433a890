#include "io/uring_files.h"

#include <fmt/format.h>
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/system_file.h"

namespace zero::io {
namespace {

/// The kernel takes no larger piece of memory.
constexpr std::size_t kMostKnownNbytes = std::size_t{1} << 30;

/// One per file: making one takes some 10 microseconds, needs no lock, and nothing is shared with a forked
/// child's files.
class Ring {
 public:
  explicit Ring(unsigned depth) : error_(::io_uring_queue_init(depth, &ring_, 0)) {}
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (is_open()) ::io_uring_queue_exit(&ring_);
  }

  bool is_open() const { return error_ == 0; }

  /// Says once whether the kernel has what we use.
  bool works() {
    if (!is_open()) return false;
    io_uring_probe* probe = ::io_uring_get_probe_ring(&ring_);
    if (probe == nullptr) return false;
    const bool known = ::io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                       ::io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
    ::io_uring_free_probe(probe);
    // A sandbox may allow rings and then forbid their use.
    return known && submit([](io_uring_sqe* entry) { ::io_uring_prep_nop(entry); }, 0) == 0 && next().second == 0;
  }

  /// Whether the kernel knows this memory from here on, for prep_*_fixed() with index 0.
  bool knows(std::span<std::byte> memory) {
    const iovec whole = {memory.data(), memory.size()};
    return memory.size() <= kMostKnownNbytes && ::io_uring_register_buffers(&ring_, &whole, 1) == 0;
  }

  /// 0 or an errno. There are never more entries under way than the ring is deep.
  template <class Prepare>
  int submit(Prepare prepare, std::uint64_t tag) {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    ZERO_CHECK(entry != nullptr, "the ring is full");
    prepare(entry);
    ::io_uring_sqe_set_data64(entry, tag);
    for (;;) {
      const int submitted = ::io_uring_submit(&ring_);
      if (submitted >= 1) return 0;
      if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY) {
        return -submitted;
      }
    }
  }

  /// Whether next() would return at once.
  bool has_next() { return ::io_uring_cq_ready(&ring_) > 0; }

  /// Waits for the next completion: its tag and result.
  std::pair<std::uint64_t, int> next() {
    io_uring_cqe* entry = nullptr;
    int error = 0;
    do {
      error = ::io_uring_wait_cqe(&ring_, &entry);
    } while (error == -EINTR || error == -EAGAIN);
    ZERO_CHECK(error == 0, "io_uring does not say what became of a request: errno {}", -error);
    const std::pair<std::uint64_t, int> result = {::io_uring_cqe_get_data64(entry), entry->res};
    ::io_uring_cqe_seen(&ring_, entry);
    return result;
  }

 private:
  io_uring ring_{};
  int error_;
};

class UringFile : public SystemFile {
 public:
  UringFile(std::unique_ptr<Descriptors> descriptors, std::unique_ptr<Ring> ring, const ScratchOptions& options)
      : SystemFile(std::move(descriptors), options), ring_(std::move(ring)), slots_(options.queue_depth) {}
  ~UringFile() override { finish_all(); }

  std::string description() const override {
    return fmt::format("io_uring{}, {} the page cache", known_.empty() ? "" : " with registered buffers",
                       descriptors().has_direct() ? "past" : "through");
  }
  void use_memory(std::span<std::byte> memory) override {
    if (ring_->knows(memory)) known_ = memory;
  }

 private:
  struct Slot {
    bool used = false;
    Request request = 0;
    Transfer transfer;  ///< what is left, the piece under way included
    Piece piece;
  };
  struct Waiting {
    Request request = 0;
    Transfer transfer;
  };

  void start(Request request, const Transfer& transfer) override {
    waiting_.push_back({request, transfer});
    move_on();
  }

  bool is_done(Request request) override {
    while (ring_->has_next()) complete_one();
    return !is_under_way(request);
  }

  void finish(Request request) override {
    while (is_under_way(request)) complete_one();
  }

  void finish_all() override {
    while (slots_used_ > 0) complete_one();
  }

  bool is_under_way(Request request) const {
    const auto is_its = [&](const auto& item) { return item.request == request; };
    return std::ranges::any_of(slots_, [&](const Slot& slot) { return slot.used && is_its(slot); }) ||
           std::ranges::any_of(waiting_, is_its);
  }

  /// Gives the ring what it has room for. Afterwards nothing waits unless something is under way.
  void move_on() {
    while (!waiting_.empty() && slots_used_ < slots_.size()) {
      const auto slot = std::ranges::find(slots_, false, &Slot::used);
      *slot = {true, waiting_.front().request, waiting_.front().transfer, {}};
      waiting_.pop_front();
      ++slots_used_;
      submit_piece(*slot);
    }
  }

  void submit_piece(Slot& slot) {
    slot.piece = next_piece(slot.transfer, descriptors().has_direct());
    const auto nbytes = static_cast<unsigned>(slot.piece.nbytes);
    const int fd = descriptors().get(slot.piece.direct);
    const Transfer& left = slot.transfer;
    const bool writes = left.direction == Direction::kWrite;
    const auto prepare = [&](io_uring_sqe* entry) {
      if (is_known(left.data, nbytes)) {
        (writes ? ::io_uring_prep_write_fixed(entry, fd, left.data, nbytes, left.offset, 0)
                : ::io_uring_prep_read_fixed(entry, fd, left.data, nbytes, left.offset, 0));
      } else {
        (writes ? ::io_uring_prep_write(entry, fd, left.data, nbytes, left.offset)
                : ::io_uring_prep_read(entry, fd, left.data, nbytes, left.offset));
      }
    };
    // The kernel never sees an entry after a failed submit: the failure ends all further submitting.
    const int error = ring_error_ != 0 ? ring_error_ : ring_->submit(prepare, index_of(slot));
    if (error == 0) return;
    ring_error_ = error;
    failure().set(io_error_text("queue a request for", descriptors().path(), error));
    release(slot);
  }

  bool is_known(const std::byte* data, std::size_t nbytes) const {
    return data >= known_.data() && data + nbytes <= known_.data() + known_.size() && !known_.empty();
  }

  /// Waits for a piece, and gets the rest of its request and others under way.
  void complete_one() {
    const auto [tag, result] = ring_->next();
    Slot& slot = slots_[tag];
    bool more = false;
    try {
      more = take_result(descriptors(), slot.transfer, slot.piece, descriptors().syscalls().completion(result));
    } catch (const std::exception& error) {
      failure().set(error.what());
    }
    if (more) {
      submit_piece(slot);
    } else {
      release(slot);
    }
    move_on();
  }

  void release(Slot& slot) {
    slot.used = false;
    --slots_used_;
  }

  std::uint64_t index_of(const Slot& slot) const { return static_cast<std::uint64_t>(&slot - slots_.data()); }

  const std::unique_ptr<Ring> ring_;
  std::vector<Slot> slots_;
  std::size_t slots_used_ = 0;
  std::deque<Waiting> waiting_;  ///< for room in the ring
  std::span<std::byte> known_;   ///< by the kernel
  int ring_error_ = 0;
};

class UringFileSystem : public PosixFileSystem {
 public:
  using PosixFileSystem::PosixFileSystem;

 protected:
  std::unique_ptr<File> make_file(std::unique_ptr<Descriptors> descriptors, const ScratchOptions& options) override {
    auto ring = std::make_unique<Ring>(options.queue_depth);
    if (!ring->is_open()) return PosixFileSystem::make_file(std::move(descriptors), options);
    return std::make_unique<UringFile>(std::move(descriptors), std::move(ring), options);
  }
};

}  // namespace

std::unique_ptr<FileSystem> make_uring_files(const PosixOptions& options) {
  if (!Ring(1).works()) return nullptr;
  return std::make_unique<UringFileSystem>(options);
}

}  // namespace zero::io
