// The update of a step begins in backward, unit by unit as their sums are complete, before anybody knows whether
// gradients are finite and need no clipping. If so it is kept at the end of the accumulation, else undone: the bits are
// those of an update that has waited. States are on a disk, whose work overlaps with backward.
//
//   begin             in the backward of the last micro-batch, with the rates and the scale of its step
//   gradients_ready   a unit that is complete is updated in a thread, into second places: of states on the disk
//                     (offload/disk_store.h), of this rank's parameters in memory
//   end_accumulation  if the step is taken with those rates and that scale, what is missing is updated, and the second
//                     places are the first from here on; else everything is updated
//   drop              instead: the second places are forgotten
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "sharding/update/schedule.h"
#include "sharding/update/thread.h"

namespace zero::sharding {
namespace {

class SpeculativeUpdate final : public UpdateSchedule {
 public:
  explicit SpeculativeUpdate(const UpdateParts& parts);
  ~SpeculativeUpdate() override;

  /// Does nothing while one is under way, and after a step whose update was dropped: another one seldom fares better.
  void begin(const std::vector<double>& lr, double gradient_scale) override;
  void gradients_ready(int unit, Range range, const at::Tensor& sums) override;
  void gradients_change(int unit) override;
  void end_accumulation(const std::vector<double>& lr, double gradient_scale) override;
  void drop() override;
  void stop() override { drop(); }
  Counts counts() const override { return counts_; }

 private:
  struct Unit {
    std::int64_t numel = 0;           ///< of the sums that this rank has
    std::int64_t added_numel = 0;     ///< of those that are complete
    std::vector<std::int64_t> added;  ///< where they begin
    bool is_queued = false;
    bool was_active = false;  ///< all of it, in the last step
  };

  void work();
  /// True if the update is done, as ShardedOptimizer::update would have; else nothing has happened, and nothing is
  /// under way.
  bool keep(const std::vector<double>& lr, double gradient_scale);
  bool is_spoilt();
  /// Returns when the thread does nothing, and will do nothing more.
  void close();

  const ShardedModel& model_;
  ShardedOptimizer& optimizer_;
  GradientReducer& reducer_;
  Timeline& timeline_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Unit> units_;
  std::vector<int> queue_;  ///< units, in the order in which they are complete
  std::size_t next_ = 0;    ///< in queue_
  bool is_open_ = false;    ///< the queue grows
  bool is_spoilt_ = false;  ///< what was made does not count
  bool under_way_ = false;  ///< from begin() to end_accumulation() or drop(); of the caller's thread
  bool last_was_dropped_ = false;
  Counts counts_;
  const pid_t process_;  ///< a forked child has no thread
  UpdateThread thread_;  ///< last: ends first
};

SpeculativeUpdate::SpeculativeUpdate(const UpdateParts& parts)
    : model_(parts.model),
      optimizer_(parts.optimizer),
      reducer_(parts.reducer),
      timeline_(parts.timeline),
      process_(::getpid()),
      thread_([this] { work(); }, "speculative update", parts.timeline) {}

SpeculativeUpdate::~SpeculativeUpdate() {
  if (process_ != ::getpid()) return;
  const std::lock_guard lock(mutex_);
  is_open_ = false;
  is_spoilt_ = true;
  changed_.notify_all();
}

void SpeculativeUpdate::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_spoilt_ || !is_open_ || next_ < queue_.size(); });
    if (is_spoilt_ || next_ == queue_.size()) return;
    const int unit = queue_[next_++];
    lock.unlock();
    optimizer_.try_unit(unit, reducer_.sums());
    lock.lock();
  }
}

void SpeculativeUpdate::begin(const std::vector<double>& lr, double gradient_scale) {
  if (under_way_ && !is_spoilt()) return;
  drop();
  if (std::exchange(last_was_dropped_, false)) return;
  optimizer_.begin_try(lr, gradient_scale);
  {
    const std::lock_guard lock(mutex_);
    units_.resize(model_.units.size());
    for (std::size_t u = 0; u < units_.size(); ++u) {
      Unit& unit = units_[u];
      unit.numel = model_.units[u].trainable ? reducer_.gradient_range(static_cast<int>(u)).numel() : 0;
      unit.added_numel = 0;
      unit.added.clear();
      unit.is_queued = false;
    }
    queue_.clear();
    next_ = 0;
    is_open_ = true;
    is_spoilt_ = false;
  }
  under_way_ = true;
  thread_.start();
}

void SpeculativeUpdate::gradients_ready(int unit, Range range, const at::Tensor&) {
  const std::lock_guard lock(mutex_);
  if (!is_open_ || is_spoilt_) return;
  Unit& its = units_[static_cast<std::size_t>(unit)];
  if (std::ranges::find(its.added, range.begin) != its.added.end()) return;
  its.added.push_back(range.begin);
  its.added_numel += range.numel();
  if (its.added_numel < its.numel || !its.was_active || its.is_queued) return;
  its.is_queued = true;
  queue_.push_back(unit);
  changed_.notify_all();
}

void SpeculativeUpdate::gradients_change(int unit) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_open_ || !units_[static_cast<std::size_t>(unit)].is_queued) return;
    is_spoilt_ = true;
    changed_.notify_all();
  }
  thread_.wait();  // also where it is spoilt already: it may still read these sums
}

bool SpeculativeUpdate::is_spoilt() {
  const std::lock_guard lock(mutex_);
  return is_spoilt_;
}

void SpeculativeUpdate::close() {
  {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
    changed_.notify_all();
  }
  thread_.wait();
}

void SpeculativeUpdate::end_accumulation(const std::vector<double>& lr, double gradient_scale) {
  const Stopwatch watch(timeline_, &StepBreakdown::update);
  if (!keep(lr, gradient_scale)) optimizer_.update(reducer_, lr, gradient_scale);
}

bool SpeculativeUpdate::keep(const std::vector<double>& lr, double gradient_scale) {
  const auto note_active = [this] {
    units_.resize(model_.units.size());
    for (std::size_t u = 0; u < units_.size(); ++u)
      units_[u].was_active =
          std::ranges::all_of(model_.units[u].parameters, [&](int p) { return optimizer_.is_active(p); });
  };
  if (!under_way_) {
    note_active();
    return false;
  }
  const auto is_active = [this](int unit) {
    const auto& parameters = model_.units[static_cast<std::size_t>(unit)].parameters;
    return std::ranges::all_of(parameters, [this](int p) { return optimizer_.is_active(p); });
  };
  // All reductions are over, and the queue is as it will be.
  const bool is_as_tried = !is_spoilt() && !queue_.empty() && optimizer_.would_repeat(lr, gradient_scale) &&
                           std::ranges::all_of(queue_, is_active);
  if (!is_as_tried) {
    drop();
    note_active();
    return false;
  }
  close();
  thread_.rethrow();
  optimizer_.keep_try(reducer_.sums(), [this](int unit) { return units_[static_cast<std::size_t>(unit)].is_queued; });
  under_way_ = false;
  ++counts_.kept;
  note_active();
  return true;
}

void SpeculativeUpdate::drop() {
  if (!under_way_ || process_ != ::getpid()) return;
  {
    const std::lock_guard lock(mutex_);
    is_spoilt_ = true;
    changed_.notify_all();
  }
  thread_.wait();
  close();
  under_way_ = false;
  last_was_dropped_ = !queue_.empty();
  counts_.undone += last_was_dropped_ ? 1 : 0;
  optimizer_.forget_try();
  thread_.rethrow();
}

}  // namespace

std::unique_ptr<UpdateSchedule> make_speculative_update(const UpdateParts& parts) {
  return std::make_unique<SpeculativeUpdate>(parts);
}

}  // namespace zero::sharding
