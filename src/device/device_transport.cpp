#include "device/device_transport.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "comm/backend.h"
#include "device/device_sharing.h"
#include "device/device_stream.h"
#include "device/tensor_view.h"
#include "zero/errors.h"

namespace zero::device {
namespace {

/// Where something of a rank lies, for the other ranks.
struct Place {
  std::int64_t block = 0;   ///< running number of the rank
  std::int64_t nbytes = 0;  ///< of the block
  std::int64_t offset = 0;  ///< in it
  SharedHandle handle;      ///< of the block
};

void copy_bytes(void* to, const void* from, std::size_t nbytes, c10::Device device) {
  if (nbytes == 0) return;
  const at::NoGradGuard no_grad;
  const auto numel = static_cast<std::int64_t>(nbytes);
  view_of(to, DType::kByte, numel, device).copy_(view_of(from, DType::kByte, numel, device), /*non_blocking=*/true);
}

/// This rank's blocks. What is no longer used is kept for the next who wants as much: others have it mapped.
class Blocks : public std::enable_shared_from_this<Blocks> {
 public:
  Blocks(std::shared_ptr<DeviceSharing> sharing, c10::Device device) : sharing_(std::move(sharing)), device_(device) {}

  std::shared_ptr<void> take(std::size_t nbytes) {
    const std::lock_guard lock(mutex_);
    for (Block& block : blocks_) {
      if (block.is_used || block.place.nbytes != static_cast<std::int64_t>(nbytes)) continue;
      const at::NoGradGuard no_grad;
      view_of(block.memory.get(), DType::kByte, block.place.nbytes, device_).zero_();
      finish_current_stream(device_);
      return lend(block);
    }
    Block block;
    block.place.block = static_cast<std::int64_t>(blocks_.size());
    block.place.nbytes = static_cast<std::int64_t>(nbytes);
    block.memory = sharing_->allocate(device_, nbytes, block.place.handle);
    return lend(blocks_.emplace_back(std::move(block)));
  }

  Place place_of(const void* address) const {
    const std::lock_guard lock(mutex_);
    for (const Block& block : blocks_) {
      const auto offset = static_cast<const std::byte*>(address) - static_cast<const std::byte*>(block.memory.get());
      if (offset < 0 || offset >= block.place.nbytes) continue;
      Place place = block.place;
      place.offset = offset;
      return place;
    }
    ZERO_CHECK(false, "memory of {} that other ranks cannot read", device_.str());
  }

 private:
  struct Block {
    Place place;
    std::shared_ptr<void> memory;
    bool is_used = false;
  };

  std::shared_ptr<void> lend(Block& block) {
    block.is_used = true;
    return {block.memory.get(), [self = shared_from_this(), &block](void*) {
              const std::lock_guard lock(self->mutex_);
              block.is_used = false;
            }};
  }

  const std::shared_ptr<DeviceSharing> sharing_;
  const c10::Device device_;
  mutable std::mutex mutex_;
  std::list<Block> blocks_;
};

/// Blocks of the other ranks, mapped when they are first heard of.
class Peers {
 public:
  Peers(std::shared_ptr<DeviceSharing> sharing, c10::Device device) : sharing_(std::move(sharing)), device_(device) {}

  void* address_of(int rank, const Place& place) {
    const std::lock_guard lock(mutex_);
    auto& memory = mapped_[{rank, place.block}];
    if (!memory) memory = sharing_->open(device_, place.handle, static_cast<std::size_t>(place.nbytes));
    return static_cast<std::byte*>(memory.get()) + place.offset;
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    mapped_.clear();
  }

 private:
  const std::shared_ptr<DeviceSharing> sharing_;
  const c10::Device device_;
  std::mutex mutex_;
  std::map<std::pair<int, std::int64_t>, std::shared_ptr<void>> mapped_;  ///< by rank and number
};

/// What boards and the transport have in common.
struct Shared {
  Group group;
  c10::Device device;
  std::shared_ptr<Blocks> blocks;  ///< lives as long as one of them is used
  std::shared_ptr<Peers> peers;
};

/// A board of the group tells where parcels are; their slices stay in the memory of the devices.
class DeviceBoard final : public comm::ExchangeBoard, public std::enable_shared_from_this<DeviceBoard> {
 public:
  DeviceBoard(std::shared_ptr<Shared> shared, std::string label, const std::vector<comm::Parcel>& parcels, DType dtype,
              Sink sink)
      : shared_(std::move(shared)), sink_(std::move(sink)), stream_(shared_->device) {
    const auto ranks = static_cast<std::size_t>(shared_->group.size());
    const auto rank = static_cast<std::size_t>(shared_->group.rank());
    const auto nbytes = static_cast<std::int64_t>(element_nbytes(dtype));
    slices_.resize(ranks);
    messages_ = shared_->group.allocate(std::max<std::size_t>(parcels.size(), 1) * ranks * sizeof(Place));
    std::vector<comm::Parcel> told;
    for (const comm::Parcel& parcel : parcels) {
      const auto mine = parcel.counts.begin() + static_cast<std::ptrdiff_t>(rank);
      Post& post = posts_.emplace_back(*this, static_cast<int>(posts_.size()), c10::Event(shared_->device.type()));
      post.mine_offset = std::accumulate(parcel.counts.begin(), mine, std::int64_t{0}) * nbytes;
      post.has_slice = *mine > 0;
      told.push_back({parcel.label, std::vector<std::int64_t>(ranks, sizeof(Place))});
    }
    host_ =
        comm::make_exchange_board(shared_->group, std::move(label), std::move(told), DType::kByte,
                                  [this](int parcel, std::span<const void* const> places) { take(parcel, places); });
  }

  Work post(int parcel, const void* in) override {
    Post& post = post_of(parcel);
    const Place place = shared_->blocks->place_of(in);
    post.work.begin();
    post.in = static_cast<const std::byte*>(in);
    for (std::size_t rank = 0; rank < slices_.size(); ++rank)
      std::memcpy(message(parcel) + rank * sizeof(place), &place, sizeof(place));
    post.written.record(stream_.caller());
    ++post.count;
    untold_.push_back(parcel);
    tell_written();
    return Work(std::shared_ptr<comm::WorkState>(shared_from_this(), &post.work));
  }

  bool wait_while_others_run(int parcel, Work& post, std::chrono::milliseconds limit) override {
    tell_all();
    return host_->wait_while_others_run(parcel, post_of(parcel).told, limit) && post.test();
  }
  bool sees_waits() const override { return host_->sees_waits(); }
  std::int64_t posts(int parcel) const override { return posts_[static_cast<std::size_t>(parcel)].count; }
  bool abandon() override {
    tell_all();
    return host_->abandon();
  }

 private:
  class Posted final : public comm::WorkState {
   public:
    Posted(DeviceBoard& board, int parcel)
        : WorkState(std::make_shared<comm::BackendLock>()), board_(board), parcel_(parcel) {}

    void begin() { start_over(); }
    bool test() override {
      if (complete()) return true;
      board_.tell_written();
      if (board_.is_untold(parcel_) || !told().test()) return false;
      end();
      return true;
    }
    void wait() override {
      if (complete()) return;
      board_.tell_all();
      told().wait();
      end();
    }
    bool wait_for(std::chrono::milliseconds limit) override {
      if (complete()) return true;
      board_.tell_all();  // what a device was given ends by itself
      if (!told().wait_for(limit)) return false;
      end();
      return true;
    }
    void start() override {}
    void chain(std::shared_ptr<WorkState>) override { ZERO_CHECK(false, "works of a device are not chained"); }

   private:
    Work& told() { return board_.post_of(parcel_).told; }
    void end() {
      add_moving_ns(static_cast<std::int64_t>(told().moving_seconds() * 1e9));
      set_complete();
    }
    DeviceBoard& board_;
    const int parcel_;
  };

  struct Post {
    Post(DeviceBoard& board, int parcel, c10::Event event) : work(board, parcel), written(std::move(event)) {}
    Posted work;         ///< of its last post
    c10::Event written;  ///< over when the device has written the parcel
    Work told;           ///< complete when all ranks have taken their slices of it
    const std::byte* in = nullptr;
    std::int64_t mine_offset = 0;  ///< in bytes, of this rank's slice in each rank's parcel
    bool has_slice = false;        ///< of one element or more
    std::int64_t count = 0;
  };

  Post& post_of(int parcel) { return posts_[static_cast<std::size_t>(parcel)]; }
  std::byte* message(int parcel) const {
    return static_cast<std::byte*>(messages_.data()) +
           static_cast<std::size_t>(parcel) * slices_.size() * sizeof(Place);
  }
  bool is_untold(int parcel) const { return std::ranges::find(untold_, parcel) != untold_.end(); }

  /// Tells the others of what was posted, in that order, as far as the device has written it.
  void tell_written() {
    while (!untold_.empty() && post_of(untold_.front()).written.query()) tell_first();
  }
  /// Waits for all of it: another rank may need any of it to go on.
  void tell_all() {
    while (!untold_.empty()) {
      post_of(untold_.front()).written.synchronize();
      tell_first();
    }
  }
  void tell_first() {
    const int parcel = untold_.front();
    untold_.pop_front();
    post_of(parcel).told = host_->post(parcel, message(parcel));
  }

  /// Runs inside calls of the group or in its progress thread.
  void take(int parcel, std::span<const void* const> places) {
    const Post& post = post_of(parcel);
    for (std::size_t rank = 0; rank < slices_.size() && post.has_slice; ++rank) {
      Place place;
      std::memcpy(&place, places[rank], sizeof(place));
      const bool is_mine = static_cast<int>(rank) == shared_->group.rank();
      const void* const whole = is_mine ? post.in : shared_->peers->address_of(static_cast<int>(rank), place);
      slices_[rank] = static_cast<const std::byte*>(whole) + post.mine_offset;
    }
    const c10::StreamGuard here(stream_.stream());
    sink_(parcel, slices_);
    stream_.finish();  // the slices may be overwritten, and what was made of them read
  }

  const std::shared_ptr<Shared> shared_;
  const Sink sink_;
  DeviceStream stream_;              ///< of what is done with slices
  SharedMemory messages_;            ///< a place for each rank, by parcel
  std::deque<Post> posts_;           ///< by parcel
  std::deque<int> untold_;           ///< parcels that were posted, oldest first
  std::vector<const void*> slices_;  ///< by rank; reused
  std::shared_ptr<ExchangeBoard> host_;
};

class DeviceTransport final : public comm::ShardTransport {
 public:
  DeviceTransport(Group group, c10::Device device, const std::shared_ptr<DeviceSharing>& sharing)
      : shared_(std::make_shared<Shared>(Shared{std::move(group), device, std::make_shared<Blocks>(sharing, device),
                                                std::make_shared<Peers>(sharing, device)})),
        exceptions_at_start_(std::uncaught_exceptions()),
        process_(::getpid()) {
    staging_ = shared_->blocks->take(kStagingNbytes);
    stagings_ = everyones(staging_.get());
  }

  ~DeviceTransport() override {
    if (::getpid() != process_) return;
    try {
      finish_current_stream(shared_->device);
      shared_->peers->forget();
      // Memory is freed when no other process has it mapped.
      if (std::uncaught_exceptions() > exceptions_at_start_ || shared_->group.failed()) return;
      barrier("shared device memory");
    } catch (const std::exception&) {  // others learn why
    }
  }

  std::shared_ptr<comm::ExchangeBoard> make_exchange_board(std::string label, std::vector<comm::Parcel> parcels,
                                                           DType dtype, comm::ExchangeBoard::Sink sink) override {
    return std::make_shared<DeviceBoard>(shared_, std::move(label), parcels, dtype, std::move(sink));
  }
  std::shared_ptr<comm::ShardWindow> make_shard_window(std::string label, std::vector<comm::Parcel>, DType,
                                                       std::vector<const void*>) override {
    throw InternalError(fmt::format("a window of \"{}\": all ranks' memory is read in place", label));
  }

  Work all_gather(const void* in, void* out, std::span<const std::int64_t> counts, DType dtype,
                  const CollectiveOptions& options) override {
    const auto nbytes = static_cast<std::int64_t>(element_nbytes(dtype));
    const std::int64_t part = kStagingNbytes / nbytes, longest = *std::ranges::max_element(counts);
    for (std::int64_t begin = 0; begin < longest; begin += part) {
      const auto part_nbytes = [&](std::size_t rank) {
        return static_cast<std::size_t>(std::clamp<std::int64_t>(counts[rank] - begin, 0, part) * nbytes);
      };
      put_out(static_cast<const std::byte*>(in) + begin * nbytes, part_nbytes(static_cast<std::size_t>(rank())));
      barrier(options.label);
      auto* to = static_cast<std::byte*>(out) + begin * nbytes;
      for (std::size_t peer = 0; peer < counts.size(); ++peer) {
        copy_bytes(to, stagings_[peer], part_nbytes(peer), shared_->device);
        to += counts[peer] * nbytes;
      }
      finish_current_stream(shared_->device);
      barrier(options.label);  // stagings are read
    }
    return {};
  }

  Work broadcast(void* inout, std::int64_t numel, DType dtype, int root, const CollectiveOptions& options) override {
    const std::int64_t total = numel * static_cast<std::int64_t>(element_nbytes(dtype));
    for (std::int64_t begin = 0; begin < total; begin += kStagingNbytes) {
      auto* const data = static_cast<std::byte*>(inout) + begin;
      const auto nbytes = static_cast<std::size_t>(std::min<std::int64_t>(total - begin, kStagingNbytes));
      if (rank() == root) put_out(data, nbytes);
      barrier(options.label);
      if (rank() != root) copy_bytes(data, stagings_[static_cast<std::size_t>(root)], nbytes, shared_->device);
      finish_current_stream(shared_->device);
      barrier(options.label);
    }
    return {};
  }

  std::shared_ptr<void> allocate(std::size_t nbytes) override { return shared_->blocks->take(nbytes); }

  std::vector<void*> everyones(void* mine) override {
    const Place place = shared_->blocks->place_of(mine);
    std::vector<Place> places(static_cast<std::size_t>(shared_->group.size()));
    const std::vector<std::int64_t> counts(places.size(), sizeof(Place));
    shared_->group.all_gather(&place, places.data(), counts, DType::kByte, {.label = "shared device memory"}).wait();
    std::vector<void*> addresses;
    for (std::size_t peer = 0; peer < places.size(); ++peer) {
      const bool is_mine = static_cast<int>(peer) == rank();
      addresses.push_back(is_mine ? mine : shared_->peers->address_of(static_cast<int>(peer), places[peer]));
    }
    return addresses;
  }

 private:
  static constexpr std::int64_t kStagingNbytes = 16 << 20;

  int rank() const { return shared_->group.rank(); }
  void barrier(std::string_view label) { shared_->group.barrier({.label = label}).wait(); }
  /// Puts data where the others read it.
  void put_out(const void* data, std::size_t nbytes) {
    copy_bytes(staging_.get(), data, nbytes, shared_->device);
    finish_current_stream(shared_->device);
  }

  const std::shared_ptr<Shared> shared_;
  const int exceptions_at_start_, process_;
  std::shared_ptr<void> staging_;
  std::vector<void*> stagings_;  ///< by rank
};

}  // namespace

bool can_share_device_memory(const Group& group, c10::Device device) {
  return group.single_node() && device_sharing(device.type()) != nullptr;
}

std::shared_ptr<comm::ShardTransport> make_device_transport(Group group, c10::Device device) {
  auto sharing = device_sharing(device.type());
  ZERO_CHECK(sharing, "{} shares no memory", device.str());
  return std::make_shared<DeviceTransport>(std::move(group), device, sharing);
}

}  // namespace zero::device
