// The copying store's gathers, without memory.
#include <algorithm>

#include "layout/best_fit.h"
#include "layout/gather_schedule.h"
#include "sharding/plan/footprint.h"

namespace zero::sharding {
namespace {

constexpr int kForward = 0, kBackward = 1;
/// Order and distances of use are known after the first, and nothing changes after the third.
constexpr int kSteps = 4;
constexpr std::int64_t kMostMicroBatches = 3;

/// Carries out the copying store's schedule without memory.
class GatherPool {
 public:
  GatherPool(const ShardingPlan& shards, const Config& config)
      : shards_(shards),
        schedule_(shards.unit_numels(), shards.resident,
                  {.max_live_numel = config.zero_optimization.stage3_max_live_parameters,
                   .max_reuse_numel = config.zero_optimization.stage3_max_reuse_distance,
                   .window_numel = shards.prefetch_numel}),
        buffer_of_(shards.units.size(), -1),
        codes_of_(shards.units.size(), -1) {}

  void operate(const std::vector<int>& units, int phase) {
    for (const int unit : units) carry_out(schedule_.use(unit, phase));
    for (const int unit : units) carry_out(schedule_.unuse(unit));
  }
  void publish() { carry_out(schedule_.publish()); }

  void start_step() { gathered_numel_ = gathered_nbytes_ = 0; }
  GatherUse use() const {
    return {exact_.total_numel() + rounded_.total_numel(), codes_.total_numel(), gathered_numel_, gathered_nbytes_};
  }

 private:
  void carry_out(layout::GatherSchedule::Commands commands) {
    using Command = layout::GatherSchedule::Command;
    for (const Command& command : commands) {
      int& buffer = buffer_of_[command.unit];
      const auto format = shards_.gathered_format(static_cast<std::size_t>(command.unit));
      layout::BestFit& buffers = format ? rounded_ : exact_;
      if (command.kind == Command::kRelease) buffers.give_back(buffer);
      if (command.kind == Command::kWait && format) codes_.give_back(codes_of_[command.unit]);
      if (command.kind != Command::kGather) continue;
      const std::int64_t numel = shards_.units[command.unit].numel;
      const std::int64_t nbytes = shards_.gathered_nbytes(static_cast<std::size_t>(command.unit));
      buffer = buffers.take_or_make(numel);
      if (format) codes_of_[command.unit] = codes_.take_or_make(nbytes);
      gathered_numel_ += numel;
      gathered_nbytes_ += nbytes;
    }
  }

  const ShardingPlan& shards_;
  layout::GatherSchedule schedule_;
  layout::BestFit exact_, rounded_;  ///< of units that are not quantised, and of those that are
  std::vector<int> buffer_of_;       ///< by unit
  layout::BestFit codes_;            ///< in bytes
  std::vector<int> codes_of_;        ///< by unit
  std::int64_t gathered_numel_ = 0, gathered_nbytes_ = 0;
};

/// Units of an operator's parameters, in the order of its arguments.
std::vector<std::vector<int>> operators(const Workload& work, const ShardingPlan& shards, int phase) {
  const std::vector<int> unit_of = shards.unit_of_parameter();
  std::vector<std::vector<int>> result;
  for (const plan::Use& use : work.uses) {
    if (phase == kBackward && !use.in_backward) continue;
    result.emplace_back();
    for (const int p : use.parameters) result.back().push_back(unit_of[p]);
  }
  if (phase == kBackward) std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace

GatherUse gather_use(const ShardingPlan& shards, const Workload& work, const Config& config) {
  const bool gathers = !shards.place.reads_in_place() &&
                       std::find(shards.resident.begin(), shards.resident.end(), false) != shards.resident.end();
  if (!gathers) return {};
  const auto forward = operators(work, shards, kForward), backward = operators(work, shards, kBackward);
  const std::int64_t micro_batches = std::clamp<std::int64_t>(work.micro_batches, 1, kMostMicroBatches);
  GatherPool pool(shards, config);
  for (int step = 0; step < kSteps; ++step) {
    pool.start_step();
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      for (const auto& units : forward) pool.operate(units, kForward);
      for (const auto& units : backward) pool.operate(units, kBackward);
    }
    pool.publish();
  }
  GatherUse use = pool.use();
  // Micro-batches beyond those gone through gather as the last of them did, on average.
  const auto more =
      static_cast<double>(std::max<std::int64_t>(work.micro_batches, 1)) / static_cast<double>(micro_batches);
  use.gathered_numel = static_cast<std::int64_t>(static_cast<double>(use.gathered_numel) * more);
  use.gathered_nbytes = static_cast<std::int64_t>(static_cast<double>(use.gathered_nbytes) * more);
  return use;
}

}  // namespace zero::sharding
