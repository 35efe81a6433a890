#include "comm/transfers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm/copy.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

constexpr int kAll = std::numeric_limits<int>::max();
constexpr std::string_view kUnwinding = "an exception ended its work, see its own output";

/// Of a backend that has a log.
void log_call(WorkState& work, CollectiveKind kind, const Backend& backend, const ParcelTable& table, int parcel) {
  const auto& log = backend.call_log();
  work.tell(log, log->begin(kind, static_cast<std::int64_t>(table.nbytes(parcel)),
                            table.parcels[static_cast<std::size_t>(parcel)].label, kind == CollectiveKind::kAllGather,
                            base::monotonic_ns()));
}

}  // namespace

std::string ParcelTable::text(int parcel) const {
  return fmt::format("parcel \"{}\" ({} {})", parcels[static_cast<std::size_t>(parcel)].label, numel(parcel),
                     dtype_name(dtype));
}

std::string ParcelTable::post_text(int parcel, std::int64_t number) const {
  return fmt::format("post {} of {} on exchange board \"{}\"", number, text(parcel), label);
}

void ParcelTable::check(std::string_view function, int parcel, const void* pointer) const {
  if (parcel < 0 || static_cast<std::size_t>(parcel) >= size()) {
    throw ConfigError(fmt::format("{}: parcel {} of \"{}\", which has {}.", function, parcel, label, size()));
  }
  if (!pointer && nbytes(parcel) > 0) {
    throw ConfigError(fmt::format("{}: the pointer for {} of \"{}\" is null.", function, text(parcel), label));
  }
}

void count_exchange(Backend& backend, const ParcelTable& table, int parcel) {
  const std::int64_t mine =
      table.parcels[static_cast<std::size_t>(parcel)].counts[static_cast<std::size_t>(backend.rank())];
  count_moved(backend.counters().reduce_scatter, table.numel(parcel) - mine, mine * (backend.size() - 1), table.dtype);
}

void count_fetch(Backend& backend, const ParcelTable& table, int parcel) {
  const std::int64_t mine =
      table.parcels[static_cast<std::size_t>(parcel)].counts[static_cast<std::size_t>(backend.rank())];
  count_moved(backend.counters().all_gather, mine * (backend.size() - 1), table.numel(parcel) - mine, table.dtype);
}

// ---- boards

BoardWork::BoardWork(HostedBoard& board, int of_parcel)
    : MovedWork(board.backend()), parcel(of_parcel), table_(board.table_), board_(&board) {}

void BoardWork::chain(std::shared_ptr<WorkState>) { ZERO_CHECK(false, "a post is part of no other call"); }

std::string BoardWork::text() const { return table_->post_text(parcel, number); }

Blocker BoardWork::blocker() const {
  Blocker blocker = board_->blocker_of(*this);
  blocker.what = text();
  return blocker;
}

HostedBoard::HostedBoard(std::shared_ptr<Backend> backend, std::shared_ptr<const ParcelTable> table, BoardSink sink,
                         int slices)
    : backend_(std::move(backend)),
      table_(std::move(table)),
      sink_(std::move(sink)),
      works_(table_->size()),
      posts_(table_->size()),
      slices_(static_cast<std::size_t>(slices)),
      pid_(::getpid()),
      exceptions_at_start_(std::uncaught_exceptions()) {
  under_way_.reserve(table_->size());
}

bool HostedBoard::is_forked_child() const { return ::getpid() != pid_; }

std::int64_t HostedBoard::posts(int parcel) const {
  table_->check("ExchangeBoard::posts", parcel, this);
  return posts_[static_cast<std::size_t>(parcel)];
}

bool HostedBoard::wait_while_others_run(int parcel, Work&, std::chrono::milliseconds limit) {
  table_->check("ExchangeBoard::wait_while_others_run", parcel, this);
  const auto& work = works_[static_cast<std::size_t>(parcel)][0];
  if (!work || work->complete()) return true;
  const BackendGuard guard(*backend_->lock());
  return work->wait_while_others_run(limit);
}

BoardWork& HostedBoard::next_work(int parcel) {
  const auto p = static_cast<std::size_t>(parcel);
  auto& [last, next] = works_[p];
  std::swap(last, next);
  // The caller may hold more than the last one: then it stays with him.
  if (!last || last.use_count() > 1) last = new_work(parcel);
  return *last;
}

Work HostedBoard::post(int parcel, const void* in) {
  table_->check("ExchangeBoard::post", parcel, in);
  const PostingGuard guard(*backend_);
  ZERO_CHECK(!abandoned_, "a post of {} after abandon()", table_->text(parcel));
  backend_->throw_if_failed();
  backend_->progress(kAll);
  backend_->throw_if_failed();
  const auto p = static_cast<std::size_t>(parcel);
  if (posts_[p] > 0 && !works_[p][0]->complete()) {
    throw ConfigError(
        fmt::format("ExchangeBoard::post: {} is still under way; wait for it before the next", works_[p][0]->text()));
  }
  BoardWork& work = next_work(parcel);
  work.begin(base::monotonic_ns(), backend_->default_timeout());
  work.number = ++posts_[p];
  last_parcel_ = parcel;
  work.in = static_cast<const std::byte*>(in);
  work.peers_seen = 0;
  work.consumed = false;
  work.arrived_ns_ = 0;
  count(parcel);
  if (backend_->call_log()) log_call(work, CollectiveKind::kReduceScatter, *backend_, *table_, parcel);
  enter(work);
  under_way_.push_back(&work);
  return Work(works_[p][0]);
}

bool HostedBoard::abandon() {
  const BackendGuard guard(*backend_->lock());
  if (!abandoned_) abandoned_ = announce_abandoned();
  return abandoned_;
}

bool HostedBoard::step(BoardWork& work, bool may_consume) {
  if (!work.consumed) {
    if (!arrived(work)) {
      if (abandoned_ && hopeless(work)) work.set_complete();
      return false;
    }
    if (work.arrived_ns_ == 0) work.arrived_ns_ = base::monotonic_ns();
    if (!may_consume) return false;
    find_slices(work, slices_);
    if (!work.run_own_part([&] { sink_(work.parcel, slices_); }) || !leave(work)) return false;
    work.add_moving_ns(base::monotonic_ns() - work.arrived_ns_);
    work.consumed = true;
    work.peers_seen = 0;
    if (released(work)) work.set_complete();
    return true;
  }
  if (released(work)) work.set_complete();
  return false;
}

int HostedBoard::progress(int most) {
  int steps = 0;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < under_way_.size(); ++i) {  // a sink may post another parcel
    BoardWork& work = *under_way_[i];
    if (!backend_->failed() && step(work, steps < most)) ++steps;
    if (!work.complete()) under_way_[kept++] = &work;
  }
  under_way_.resize(kept);
  return steps;
}

std::string HostedBoard::under_way_text() const {
  std::string text;
  for (const BoardWork* work : under_way_) {
    const Blocker blocker = work->blocker();
    text += fmt::format("    {}; {} rank {}\n", blocker.what, work->consumed ? "still read by" : "waits for",
                        fmt::join(blocker.ranks, ", "));
  }
  return text;
}

std::string HostedBoard::last_text() const {
  if (last_parcel_ < 0) return {};
  return table_->post_text(last_parcel_, posts_[static_cast<std::size_t>(last_parcel_)]);
}

void HostedBoard::close() noexcept {
  if (is_forked_child()) return;
  const BackendGuard guard(*backend_->lock());
  if (!under_way_.empty() && !backend_->failed()) {
    const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
    backend_->abort(unwinding ? std::string(kUnwinding)
                              : fmt::format("it destroyed exchange board \"{}\" in the middle of {}", table_->label,
                                            under_way_[0]->text()));
  }
  backend_->remove_transfers(*this);
  for (auto& pair : works_) {
    for (const auto& work : pair) {
      if (work) work->orphan();
    }
  }
}

// ---- windows

FetchWork::FetchWork(HostedWindow& window) : MovedWork(window.backend()), table_(window.table_), window_(&window) {}

void FetchWork::chain(std::shared_ptr<WorkState>) { ZERO_CHECK(false, "a fetch is part of no other call"); }

std::string FetchWork::text() const {
  std::string text = fmt::format("fetch of {} from shard window \"{}\"", table_->text(parcel), table_->label);
  if (version > 0) text += fmt::format(", version {}", version);
  if (!for_what_.empty()) text += fmt::format(", for {}", for_what_);
  return text;
}

Blocker FetchWork::blocker() const {
  Blocker blocker = window_->blocker_of(*this);
  blocker.what = text();
  return blocker;
}

HostedWindow::HostedWindow(std::shared_ptr<Backend> backend, std::shared_ptr<const ParcelTable> table,
                           std::span<const void* const> mine)
    : backend_(std::move(backend)),
      table_(std::move(table)),
      pid_(::getpid()),
      exceptions_at_start_(std::uncaught_exceptions()) {
  for (const void* slice : mine) mine_.push_back(static_cast<const std::byte*>(slice));
}

bool HostedWindow::is_forked_child() const { return ::getpid() != pid_; }

FetchWork& HostedWindow::next_work() {
  for (const auto& work : works_) {
    if (work.use_count() == 1 && work->complete()) return *work;
  }
  return *works_.emplace_back(new_work());
}

Work HostedWindow::fetch(int parcel, void* out, std::string_view for_what) {
  table_->check("ShardWindow::fetch", parcel, out);
  const PostingGuard guard(*backend_);
  backend_->throw_if_failed();
  backend_->progress(kAll);
  backend_->throw_if_failed();
  FetchWork& work = next_work();
  work.begin(base::monotonic_ns(), backend_->default_timeout());
  work.parcel = parcel;
  work.out = static_cast<std::byte*>(out);
  work.version = version_;
  work.peers_seen = 0;
  work.for_what_ = for_what;
  last_ = &work;
  count_fetch(*backend_, *table_, parcel);
  if (backend_->call_log()) log_call(work, CollectiveKind::kAllGather, *backend_, *table_, parcel);
  ask(work);
  under_way_.push_back(&work);
  const auto here = std::find_if(works_.begin(), works_.end(),
                                 [&](const std::shared_ptr<FetchWork>& kept) { return kept.get() == &work; });
  return Work(*here);
}

void HostedWindow::publish() {
  const BackendGuard guard(*backend_->lock());
  announce(++version_);
}

int HostedWindow::progress(int most) {
  serve();
  int steps = 0;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < under_way_.size(); ++i) {
    FetchWork& work = *under_way_[i];
    if (steps < most && !backend_->failed() && move(work)) {
      work.set_complete();
      ++steps;
    } else {
      under_way_[kept++] = &work;
    }
  }
  under_way_.resize(kept);
  return steps;
}

void HostedWindow::copy_my_slice(const FetchWork& work) const {
  std::byte* const target = work.out + table_->slice_offset(work.parcel, rank());
  const std::byte* const source = my_slice(work.parcel);
  const std::size_t nbytes = table_->slice_nbytes(work.parcel, rank());
  if (nbytes > 0 && target != source) copy_bytes(target, source, nbytes);
}

void HostedWindow::fail_fetch(const FetchWork& work, int owner) {
  // A window goes before its peers' only while an exception unwinds the stack.
  backend_->abort(fmt::format(
      "rank {} (pid {}) destroyed its shard window{} before {} was complete", owner, backend_->pid_of(owner),
      state_of(owner) == State::kGone ? " (an exception? see its own output)" : "", work.text()));
  backend_->throw_if_failed();
  throw CommError("the group could not be failed");  // never: abort() has failed it
}

void HostedWindow::check_owners(const FetchWork& work) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && table_->slice_nbytes(work.parcel, peer) > 0 && state_of(peer) == State::kGone)
      fail_fetch(work, peer);
  }
}

std::string HostedWindow::under_way_text() const {
  std::string text;
  for (const FetchWork* work : under_way_) {
    const Blocker blocker = work->blocker();
    text += fmt::format("    {}; waits for rank {}\n", blocker.what, fmt::join(blocker.ranks, ", "));
  }
  return text;
}

std::string HostedWindow::last_text() const { return last_ ? last_->text() : std::string(); }

std::vector<int> HostedWindow::open_ranks() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && state_of(peer) == State::kOpen) ranks.push_back(peer);
  }
  return ranks;
}

void HostedWindow::close() noexcept {
  if (is_forked_child()) return;
  const BackendGuard guard(*backend_->lock());
  try {
    const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
    if (!under_way_.empty() && !backend_->failed()) {
      backend_->abort(unwinding ? std::string(kUnwinding)
                                : fmt::format("it destroyed shard window \"{}\" in the middle of {}", table_->label,
                                              under_way_[0]->text()));
    }
    if (!backend_->failed()) announce(unwinding ? State::kGone : State::kClosing);
    if (!backend_->failed() && !unwinding) {
      backend_->block_until([this] { return open_ranks().empty() && served(); },
                            [this] {
                              return Blocker{fmt::format("the end of shard window \"{}\"", table_->label),
                                             "has not destroyed it", open_ranks()};
                            },
                            {backend_->default_timeout()});
    }
  } catch (const std::exception& error) {
    base::log_warning("leaving shard window \"{}\": {}", table_->label, error.what());
  }
  backend_->remove_transfers(*this);
  for (const auto& work : works_) work->orphan();
}

}  // namespace zero::comm
