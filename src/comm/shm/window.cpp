// Shard windows over shared memory: every rank maps the memory in which the others' slices lie, and copies
// out of it when the owners have published what it wants.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "comm/copy.h"
#include "comm/shm/backend.h"
#include "comm/transfers.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

/// One per rank, followed by the locations of all ranks' slices.
struct alignas(kCacheLine) Owner {
  std::atomic<std::uint64_t> version;
  std::atomic<std::uint32_t> state;
};

/// What each rank tells the others of its part in the creation.
struct Outcome {
  std::int32_t has_private_slices = 0;
  std::int32_t failed = 0;
  char error[480] = {};
};

class ShmWindow final : public HostedWindow {
 public:
  ShmWindow(std::shared_ptr<ShmBackend> backend, std::shared_ptr<const ParcelTable> table,
            std::span<const void* const> mine, std::shared_ptr<Region> board)
      : HostedWindow(backend, std::move(table), mine), shm_(*backend), shared_(std::move(board)) {}
  ~ShmWindow() override {
    if (open_) close();
  }

  static std::size_t shared_nbytes(int ranks, std::size_t parcels) {
    return static_cast<std::size_t>(ranks) * (sizeof(Owner) + parcels * sizeof(Published<InputLocation>));
  }
  /// *Collective.* False where some rank's slices lie in memory of its own. Throws CommError, IoError.
  bool open();

 protected:
  std::shared_ptr<FetchWork> new_work() override { return std::make_shared<FetchWork>(*this); }
  bool move(FetchWork& work) override;
  void announce(std::uint64_t version) override {
    owner(rank()).version.store(version, std::memory_order_seq_cst);
    shm_.segment().notify();
  }
  void announce(State state) override {
    owner(rank()).state.store(static_cast<std::uint32_t>(state), std::memory_order_seq_cst);
    shm_.segment().notify();
  }
  State state_of(int peer) const override {
    return static_cast<State>(owner(peer).state.load(std::memory_order_seq_cst));
  }
  Blocker blocker_of(const FetchWork& work) const override;

 private:
  Owner& owner(int rank) const { return reinterpret_cast<Owner*>(shared_->data())[rank]; }
  Published<InputLocation>& location(int rank, std::size_t parcel) const {
    auto* const table =
        reinterpret_cast<Published<InputLocation>*>(shared_->data() + static_cast<std::size_t>(size()) * sizeof(Owner));
    return table[static_cast<std::size_t>(rank) * this->table().size() + parcel];
  }
  bool has_published(int peer, const FetchWork& work) const {
    return table().slice_nbytes(work.parcel, peer) == 0 ||
           owner(peer).version.load(std::memory_order_seq_cst) >= work.version;
  }
  bool publish_locations();
  void map_peers();
  const std::byte* map(int peer, const InputLocation& location);
  std::vector<Outcome> tell(const Outcome& mine);

  ShmBackend& shm_;
  const std::shared_ptr<Region> shared_;
  std::vector<std::shared_ptr<Region>> regions_;         ///< those my slices lie in
  std::unordered_map<std::uint64_t, Mapping> mappings_;  ///< those of the others, by RegionId::key()
  std::vector<const std::byte*> slices_;                 ///< [parcels * N]
  bool open_ = false;
};

bool ShmWindow::publish_locations() {
  for (std::size_t p = 0; p < table().size(); ++p) {
    const int parcel = static_cast<int>(p);
    const std::size_t nbytes = table().slice_nbytes(parcel, rank());
    InputLocation mine;
    if (nbytes > 0) {
      const std::shared_ptr<Region> region = shm_.registry()->find(my_slice(parcel), nbytes);
      if (!region || !region->shared()) return false;
      mine = ShmBackend::location_of(*region, my_slice(parcel));
      if (std::find(regions_.begin(), regions_.end(), region) == regions_.end()) regions_.push_back(region);
    }
    location(rank(), p).store(mine);
  }
  return true;
}

const std::byte* ShmWindow::map(int peer, const InputLocation& location) {
  const RegionId id{location.region_owner, location.region_number};
  // A node-shared region is mapped here already, by its own name.
  if (const auto region = shm_.registry()->find(id)) return region->data() + location.offset_nbytes;
  auto found = mappings_.find(id.key());
  if (found == mappings_.end()) {
    const auto what = [this] { return fmt::format("shard window \"{}\"", table().label); };
    found = mappings_.emplace(id.key(), shm_.map_region_of(peer, location, what)).first;
  }
  return found->second.data() + location.offset_nbytes;
}

void ShmWindow::map_peers() {
  const auto ranks = static_cast<std::size_t>(size());
  slices_.assign(table().size() * ranks, nullptr);
  for (std::size_t p = 0; p < table().size(); ++p) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank() || table().slice_nbytes(static_cast<int>(p), peer) == 0) continue;
      slices_[p * ranks + static_cast<std::size_t>(peer)] = map(peer, location(peer, p).load());
    }
  }
}

std::vector<Outcome> ShmWindow::tell(const Outcome& mine) {
  std::vector<Outcome> all(static_cast<std::size_t>(size()));
  shm_.tell_all(&mine, sizeof(mine), all.data(), "shard window");
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].failed) throw IoError(fmt::format("shard window \"{}\": rank {}: {}", table().label, r, all[r].error));
  }
  return all;
}

bool ShmWindow::open() {
  Outcome mine;
  mine.has_private_slices = publish_locations() ? 0 : 1;
  const std::vector<Outcome> all = tell(mine);
  if (std::any_of(all.begin(), all.end(), [](const Outcome& each) { return each.has_private_slices != 0; }))
    return false;
  try {
    map_peers();
  } catch (const IoError& error) {
    mine.failed = 1;
    std::strncpy(mine.error, error.what(), sizeof(mine.error) - 1);
  }
  tell(mine);  // nobody goes on before all have mapped all
  open_ = true;
  return true;
}

bool ShmWindow::move(FetchWork& work) {
  for (; work.peers_seen < size() - 1; ++work.peers_seen) {
    const int peer = (rank() + 1 + work.peers_seen) % size();
    if (has_published(peer, work)) continue;
    // It may have published just before it closed.
    if (state_of(peer) != State::kOpen && !has_published(peer, work)) fail_fetch(work, peer);
    return false;
  }
  const std::int64_t begin_ns = base::monotonic_ns();
  // Starting behind oneself, so that not all ranks read the same peer at once.
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    const auto from =
        static_cast<std::size_t>(work.parcel) * static_cast<std::size_t>(size()) + static_cast<std::size_t>(peer);
    std::byte* const target = work.out + table().slice_offset(work.parcel, peer);
    if (target != slices_[from]) copy_bytes(target, slices_[from], table().slice_nbytes(work.parcel, peer));
  }
  copy_my_slice(work);
  // An owner that failed or went meanwhile may have given its slices away: what was read cannot be trusted.
  check_owners(work);
  if (shm_.failed()) return false;
  add_moving_ns(work, base::monotonic_ns() - begin_ns);
  return true;
}

Blocker ShmWindow::blocker_of(const FetchWork& work) const {
  Blocker blocker;
  blocker.lack = "has not published that version";
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && !has_published(peer, work)) blocker.ranks.push_back(peer);
  }
  return blocker;
}

}  // namespace

std::shared_ptr<ShardWindow> ShmBackend::make_window(std::shared_ptr<const ParcelTable> parcels,
                                                     std::span<const void* const> mine) {
  std::shared_ptr<Region> shared = share_with_all(ShmWindow::shared_nbytes(size(), parcels->size()), "shard window");
  auto window = std::make_shared<ShmWindow>(std::static_pointer_cast<ShmBackend>(shared_from_this()),
                                            std::move(parcels), mine, std::move(shared));
  if (!window->open()) return nullptr;
  add_transfers(*window);
  return window;
}

}  // namespace zero::comm
