#include "plan/simulation/rank_player.h"

#include <algorithm>
#include <utility>

namespace zero::plan {
namespace {

constexpr double Elapsed::*kParts[] = {&Elapsed::seconds,    &Elapsed::compute,
                                       &Elapsed::copies,     &Elapsed::update,
                                       &Elapsed::parameters, &Elapsed::gradients,
                                       &Elapsed::ranks,      &Elapsed::received_nbytes,
                                       &Elapsed::messages,   &Elapsed::between_hosts_nbytes};

std::vector<std::int64_t> missing_numels(const ShardingPlan& shards) {
  std::vector<std::int64_t> numels;
  for (const auto& unit : shards.units) numels.push_back(unit.numel - unit.numel / shards.world_size);
  return numels;
}

}  // namespace

Elapsed& Elapsed::operator+=(const Elapsed& more) {
  for (double Elapsed::*const part : kParts) this->*part += more.*part;
  return *this;
}

Elapsed Elapsed::operator-(const Elapsed& other) const {
  Elapsed result = *this;
  for (double Elapsed::*const part : kParts) result.*part -= other.*part;
  return result;
}

Elapsed Elapsed::operator*(double factor) const {
  Elapsed result = *this;
  for (double Elapsed::*const part : kParts) result.*part *= factor;
  return result;
}

RankPlayer::RankPlayer(const StepModel& model, World& world, int ranks, int steps, std::int64_t most_micro_batches)
    : model_(model),
      world_(world),
      ranks_(ranks),
      steps_(steps),
      micro_batches_(std::min(model.micro_batches, most_micro_batches)),
      writer_(model),
      gathers_(model.shards.units.size(), -1),
      late_(missing_numels(model.shards), sharding::most_late_numel(model.shards.param_dtype)),
      late_transfers_(model.shards.units.size(), -1),
      buffer_of_(model.buckets.numel.size(), -1),
      posts_(model.buckets.numel.size(), 0) {
  late_.set_units(model.whole_units);
  std::int64_t largest = 0;
  for (const std::int64_t numel : model.buckets.numel) largest = std::max(largest, numel);
  pool_limit_numel_ = layout::bucket_pool_limit(largest, model.shards.overlap);
  world_.announce(ranks_, topic(kShards, 0));
}

bool RankPlayer::play() {
  while (true) {
    if (next_ == actions_.size() && !next_step()) return false;
    const Action& action = actions_[next_];
    if (!std::exchange(begun_, true)) began_ = world_.now();
    if (!act(action)) return true;
    if (double* const account = account_of(action.kind)) *account += world_.now() - began_;
    begun_ = false;
    ++next_;
  }
}

bool RankPlayer::next_step() {
  if (steps_begun_ > 0) last_step_end_ = so_far();
  if (steps_begun_ == steps_) return false;
  if (steps_begun_ > 0) end_timed_step();
  ++steps_begun_;
  actions_ = writer_.write(micro_batches_);
  next_ = 0;
  marks_ = {so_far()};
  return true;
}

Elapsed RankPlayer::so_far() const {
  Elapsed elapsed = elapsed_;
  elapsed.seconds = world_.now();
  const World::Received& received = world_.received(ranks_);
  elapsed.received_nbytes = received.nbytes;
  elapsed.between_hosts_nbytes = received.between_hosts_nbytes;
  elapsed.messages = received.messages;
  return elapsed;
}

Elapsed RankPlayer::last_step() const {
  Elapsed step = last_step_end_ - marks_.front();
  const std::size_t last = marks_.size() - 1;  // the end of the last micro-batch
  if (model_.micro_batches > micro_batches_ && last >= 2) {
    step += (marks_[last - 1] - marks_[last - 2]) * static_cast<double>(model_.micro_batches - micro_batches_);
  }
  return step;
}

double* RankPlayer::account_of(Action::Kind kind) {
  switch (kind) {
    case Action::kCompute:
      return &elapsed_.compute;
    case Action::kCopy:
      return &elapsed_.copies;
    case Action::kUpdate:
      return &elapsed_.update;
    case Action::kWaitGather:
    case Action::kUseLate:
    case Action::kCompleteLate:
      return &elapsed_.parameters;
    case Action::kOpenBucket:
    case Action::kWaitBuckets:
      return &elapsed_.gradients;
    case Action::kCollective:
      return &elapsed_.ranks;
    default:
      return nullptr;
  }
}

bool RankPlayer::act(const Action& action) {
  switch (action.kind) {
    case Action::kCompute:
    case Action::kCopy:
    case Action::kUpdate:
      return compute(action.seconds);
    case Action::kNoteUse:
      if (times_of_uses_.measuring()) times_of_uses_.note_use(action.index, world_.now(), elapsed_.parameters);
      return true;
    case Action::kGather:
      gather(action.index);
      return true;
    case Action::kWaitGather:
      return wait_gather(action);
    case Action::kUseLate:
      return use_late(action.index);
    case Action::kOpenBucket:
      return open_bucket(action.index);
    case Action::kSendBucket:
      send_bucket(action.index);
      return true;
    case Action::kWaitBuckets:
      return wait_buckets();
    case Action::kCollective:
      return collective(action.transfer);
    case Action::kCompleteLate:
      return complete_all_late();
    case Action::kPublish:
      publish();
      return true;
    case Action::kEndMicroBatch:
      marks_.push_back(so_far());
      return true;
  }
  return true;
}

bool RankPlayer::compute(double seconds) {
  if (call_ != -1) {  // it has been begun
    call_ = -1;
    return true;
  }
  call_ = 0;
  world_.compute(ranks_, seconds);
  return false;
}

double RankPlayer::numel_of(int unit) const {
  return static_cast<double>(model_.shards.units[static_cast<std::size_t>(unit)].numel);
}

void RankPlayer::gather(int unit) {
  const auto nbytes = static_cast<double>(model_.shards.gathered_nbytes(static_cast<std::size_t>(unit)));
  const auto transfer = sharding::gather_of(model_.shards, numel_of(unit), nbytes);
  int& gather = gathers_[static_cast<std::size_t>(unit)];
  gather = -1;
  if (transfer.nbytes == 0) return;
  // NCCL's gathers are calls of all ranks; others take what is published.
  const bool is_call = transfer.way == sharding::Way::kByRing;
  const World::Topic wanted = is_call ? topic(kRing, ++gathers_made_) : topic(kShards, publications_);
  if (is_call) world_.announce(ranks_, wanted);
  gather = world_.start(ranks_, transfer, wanted);
}

bool RankPlayer::wait_gather(const Action& action) {
  const int transfer = gathers_[static_cast<std::size_t>(action.index)];
  if (transfer < 0) return true;
  if (!wait(transfer)) return false;
  if (action.seconds > 0 && times_of_uses_.measuring())
    times_of_uses_.note_gather(static_cast<std::int64_t>(numel_of(action.index)), world_.seconds_of(transfer));
  return true;
}

bool RankPlayer::use_late(int unit) {
  if (call_ == -1) {
    late_.use(unit);
    call_ = 0;
  }
  if (!complete_late(unit)) return false;
  call_ = -1;
  fetch_more();
  return true;
}

bool RankPlayer::complete_late(int unit) {
  using State = layout::LateSchedule::State;
  if (!late_.is_late(unit)) return true;
  if (late_.state(unit) == State::kWanted) fetch_late(unit);
  if (!wait(late_transfers_[static_cast<std::size_t>(unit)])) return false;
  late_.complete(unit);
  return true;
}

bool RankPlayer::complete_all_late() {
  for (; completed_ < late_.order().size(); ++completed_) {
    if (!complete_late(late_.order()[completed_])) return false;
    fetch_more();
  }
  completed_ = 0;
  return true;
}

void RankPlayer::fetch_late(int unit) {
  late_transfers_[static_cast<std::size_t>(unit)] = world_.start(
      ranks_, sharding::publication_of(model_.shards, numel_of(unit), /*is_late=*/true), topic(kLate, publications_));
  late_.fetched(unit);
}

void RankPlayer::fetch_more() {
  for (int unit = late_.oldest_coming(); unit >= 0; unit = late_.oldest_coming()) {
    if (!wait(late_transfers_[static_cast<std::size_t>(unit)])) break;
    late_.moved(unit);
  }
  for (int unit = late_.next_to_fetch(); unit >= 0; unit = late_.next_to_fetch()) fetch_late(unit);
}

void RankPlayer::publish() {
  ++publications_;
  world_.announce(ranks_, topic(kShards, publications_));
  if (!model_.publishes_late) return;
  world_.announce(ranks_, topic(kLate, publications_));
  late_.begin(model_.whole_units);
  fetch_more();
}

bool RankPlayer::open_bucket(int bucket) {
  if (!model_.shards.sharding.gradients) return true;  // every bucket has memory of its own
  const auto b = static_cast<std::size_t>(bucket);
  const std::int64_t numel = model_.buckets.numel[b];
  while (!sent_.empty() && pool_.would_exceed(pool_limit_numel_, numel)) {
    const auto done = std::ranges::find_if(sent_, [this](const Sent& sent) { return wait(sent.transfer); });
    if (done == sent_.end()) return false;
    retire(static_cast<std::size_t>(done - sent_.begin()));
  }
  buffer_of_[b] = pool_.take_or_make(numel);
  return true;
}

void RankPlayer::send_bucket(int bucket) {
  const auto b = static_cast<std::size_t>(bucket);
  const World::Topic post = topic(kBucket, posts_[b]++, b);
  world_.announce(ranks_, post);
  const auto numel = static_cast<double>(model_.buckets.numel[b]);
  sent_.push_back({world_.start(ranks_, sharding::exchange_of(model_.shards, numel), post), buffer_of_[b]});
  if (!model_.shards.sharding.gradients) return;
  for (std::size_t i = 0; i < sent_.size();) {
    if (wait(sent_[i].transfer)) {
      retire(i);
    } else {
      ++i;
    }
  }
}

bool RankPlayer::wait_buckets() {
  while (!sent_.empty()) {
    if (!wait(sent_.front().transfer)) return false;
    retire(0);
  }
  return true;
}

void RankPlayer::retire(std::size_t sent) {
  if (sent_[sent].buffer >= 0) pool_.give_back(sent_[sent].buffer);
  sent_.erase(sent_.begin() + static_cast<std::ptrdiff_t>(sent));
}

bool RankPlayer::collective(const sharding::Transfer& transfer) {
  if (call_ == -1) {
    const World::Topic call = topic(kCall, ++calls_);
    world_.announce(ranks_, call);
    call_ = world_.start(ranks_, transfer, call);
  }
  if (!wait(call_)) return false;
  call_ = -1;
  return true;
}

void RankPlayer::end_timed_step() {
  if (!model_.measured_prefetch) return;
  const auto wanted = times_of_uses_.end_step();
  if (!wanted) return;
  writer_.set_window(std::min(std::max(*wanted, writer_.largest_numel()), model_.gather_limits.window_numel));
}

}  // namespace zero::plan
