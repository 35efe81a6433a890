// Exchange boards over shared memory. The ranks share one cell per rank and parcel: how often it was posted
// there, where its input lies, and of how many posts that rank needs nothing any more; and one cell per rank that says
// whether it posts no more. A cell has one writer.
#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "comm/copy.h"
#include "comm/shm/backend.h"
#include "comm/transfers.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

struct alignas(kCacheLine) Cell {
  std::atomic<std::uint64_t> posted;
  std::atomic<std::uint64_t> left;
  Published<InputLocation> input;  ///< of the last post; published by `posted`
};
static_assert(sizeof(Cell) == kCacheLine);

struct alignas(kCacheLine) Departure {
  std::atomic<std::uint64_t> gone;  ///< not 0: `posted` of this rank's cells stays as it is
};
static_assert(sizeof(Departure) == kCacheLine);

class ShmPost final : public BoardWork {
 public:
  using BoardWork::BoardWork;
  std::shared_ptr<Region> region;  ///< holds what the peers read
};

class ShmBoard final : public HostedBoard {
 public:
  ShmBoard(std::shared_ptr<ShmBackend> backend, std::shared_ptr<const ParcelTable> table, BoardSink sink,
           std::shared_ptr<Region> cells)
      : HostedBoard(backend, std::move(table), std::move(sink), backend->size()),
        shm_(*backend),
        cells_(std::move(cells)),
        staging_(this->table().size()) {}
  ~ShmBoard() override { close(); }

 protected:
  std::shared_ptr<BoardWork> new_work(int parcel) override { return std::make_shared<ShmPost>(*this, parcel); }
  void enter(BoardWork& work) override;
  bool arrived(BoardWork& work) override { return all_have(&Cell::posted, work); }
  void find_slices(BoardWork& work, std::span<const void*> slices) override;
  bool leave(BoardWork& work) override;
  bool released(BoardWork& work) override;
  bool announce_abandoned() override;
  bool hopeless(const BoardWork& work) const override;
  Blocker blocker_of(const BoardWork& work) const override;

 private:
  using Counter = std::atomic<std::uint64_t> Cell::*;

  Cell& cell(int rank, int parcel) const {
    return reinterpret_cast<Cell*>(
        cells_->data())[static_cast<std::size_t>(rank) * table().size() + static_cast<std::size_t>(parcel)];
  }
  Departure& departure(int rank) const {
    const std::size_t cells = static_cast<std::size_t>(size()) * table().size();
    return reinterpret_cast<Departure*>(cells_->data() + cells * sizeof(Cell))[rank];
  }
  bool has(Counter counter, int peer, const BoardWork& work) const {
    return (cell(peer, work.parcel).*counter).load(std::memory_order_seq_cst) >=
           static_cast<std::uint64_t>(work.number);
  }
  /// Goes on where it stopped the last time, so that a late peer costs one look.
  bool all_have(Counter counter, BoardWork& work) const;
  InputLocation locate(ShmPost& work);
  std::shared_ptr<Region> stage(const BoardWork& work);

  ShmBackend& shm_;
  const std::shared_ptr<Region> cells_;
  std::vector<std::shared_ptr<Region>> staging_;  ///< per parcel, once it was needed
};

bool ShmBoard::all_have(Counter counter, BoardWork& work) const {
  for (; work.peers_seen < size() - 1; ++work.peers_seen) {
    if (!has(counter, (rank() + 1 + work.peers_seen) % size(), work)) return false;
  }
  return true;
}

std::shared_ptr<Region> ShmBoard::stage(const BoardWork& work) {
  std::shared_ptr<Region>& region = staging_[static_cast<std::size_t>(work.parcel)];
  const std::size_t nbytes = table().nbytes(work.parcel);
  if (!region) region = shm_.create_region(nbytes, "staging of a parcel");
  const std::size_t begin = table().slice_offset(work.parcel, rank());  // nobody else reads my own slice
  const std::size_t end = table().slice_offset(work.parcel, rank() + 1);
  copy_bytes(region->data(), work.in, begin);
  copy_bytes(region->data() + end, work.in + end, nbytes - end);
  return region;
}

InputLocation ShmBoard::locate(ShmPost& work) {
  const std::size_t nbytes = table().nbytes(work.parcel);
  if (nbytes == 0 || size() == 1) return {};
  work.region = shm_.registry()->find(work.in, nbytes);
  if (work.region && work.region->shared()) return ShmBackend::location_of(*work.region, work.in);
  work.region = stage(work);
  return ShmBackend::location_of(*work.region, work.region->data());
}

void ShmBoard::enter(BoardWork& work) {
  Cell& mine = cell(rank(), work.parcel);
  try {
    mine.input.store(locate(static_cast<ShmPost&>(work)));
  } catch (const IoError& error) {
    shm_.abort(fmt::format("no memory to share its input of {} on exchange board \"{}\": {}", table().text(work.parcel),
                           table().label, error.what()));
    throw;
  }
  mine.posted.store(static_cast<std::uint64_t>(work.number), std::memory_order_seq_cst);
  shm_.segment().notify();
}

void ShmBoard::find_slices(BoardWork& work, std::span<const void*> slices) {
  const bool empty = table().slice_nbytes(work.parcel, rank()) == 0;
  const std::size_t offset = table().slice_offset(work.parcel, rank());
  const auto what = [this, &work] {
    return fmt::format("{} on exchange board \"{}\"", table().text(work.parcel), table().label);
  };
  for (int peer = 0; peer < size(); ++peer) {
    const std::byte* input = work.in;
    if (peer != rank() && !empty) input = shm_.map_input(peer, cell(peer, work.parcel).input.load(), what);
    slices[static_cast<std::size_t>(peer)] = empty ? nullptr : input + offset;
  }
}

bool ShmBoard::leave(BoardWork& work) {
  // A peer that failed meanwhile may have given its input away: what was read cannot be trusted.
  if (shm_.failed()) return false;
  cell(rank(), work.parcel).left.store(static_cast<std::uint64_t>(work.number), std::memory_order_seq_cst);
  shm_.segment().notify();
  return true;
}

bool ShmBoard::released(BoardWork& work) {
  if (!all_have(&Cell::left, work)) return false;
  static_cast<ShmPost&>(work).region.reset();
  return true;
}

bool ShmBoard::announce_abandoned() {
  departure(rank()).gone.store(1, std::memory_order_seq_cst);
  shm_.segment().notify();
  return true;
}

bool ShmBoard::hopeless(const BoardWork& work) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (departure(peer).gone.load(std::memory_order_seq_cst) != 0 && !has(&Cell::posted, peer, work)) return true;
  }
  return false;
}

Blocker ShmBoard::blocker_of(const BoardWork& work) const {
  Blocker blocker;
  blocker.lack = work.consumed ? "has not read this rank's part of it" : "has not posted it so often";
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && !has(work.consumed ? &Cell::left : &Cell::posted, peer, work)) blocker.ranks.push_back(peer);
  }
  return blocker;
}

}  // namespace

std::shared_ptr<ExchangeBoard> ShmBackend::make_board(std::shared_ptr<const ParcelTable> parcels, BoardSink sink,
                                                      HostSums) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t nbytes = ranks * (parcels->size() * sizeof(Cell) + sizeof(Departure));
  std::shared_ptr<Region> cells = share_with_all(nbytes, "exchange board");
  auto board = std::make_shared<ShmBoard>(std::static_pointer_cast<ShmBackend>(shared_from_this()), std::move(parcels),
                                          std::move(sink), std::move(cells));
  add_transfers(*board);
  return board;
}

}  // namespace zero::comm
