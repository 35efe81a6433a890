#include "plan/simulation/step_writer.h"

#include <algorithm>
#include <utility>

namespace zero::plan {
namespace {

constexpr int kForward = 0, kBackward = 1;

}  // namespace

StepWriter::StepWriter(const StepModel& model)
    : model_(model),
      gathers_(model.shards.unit_numels(), model.shards.resident, model.gather_limits),
      buckets_(model.buckets.parameters, static_cast<int>(model.buckets.places.size())) {
  for (std::size_t u = 0; u < model.shards.units.size(); ++u) {
    if (!model.shards.resident[u]) largest_numel_ = std::max(largest_numel_, model.shards.units[u].numel);
  }
  // One unit ahead, until times have been measured.
  if (model.measured_prefetch) set_window(std::min(largest_numel_, model.gather_limits.window_numel));
}

std::vector<Action> StepWriter::write(std::int64_t micro_batches) {
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    for (const Operator& op : model_.operators) operate(op, kForward, op.forward_seconds);
    for (auto op = model_.operators.rbegin(); op != model_.operators.rend(); ++op) {
      operate(*op, kBackward, op->backward_seconds);
      for (const auto& group : op->arrivals) arrive(group);
    }
    end_micro_batch();
  }
  end_step();
  return std::exchange(actions_, {});
}

void StepWriter::operate(const Operator& op, int phase, double seconds) {
  const bool reads = phase == kForward || op.in_backward;
  for (const int unit : op.units) {
    if (!reads) break;
    if (model_.publishes_late) actions_.push_back({Action::kUseLate, unit});
    if (!model_.gathers) continue;
    const int before = gathers_.current().unit;
    const auto commands = gathers_.use(unit, phase);
    if (model_.measured_prefetch && before != unit) actions_.push_back({Action::kNoteUse, phase});
    carry_out(commands, /*for_use=*/true);
  }
  if (seconds > 0) actions_.push_back({Action::kCompute, 0, seconds});
  for (const int unit : op.units) {
    if (reads && model_.gathers) carry_out(gathers_.unuse(unit), /*for_use=*/false);
  }
}

void StepWriter::carry_out(layout::GatherSchedule::Commands commands, bool for_use) {
  using Command = layout::GatherSchedule::Command;
  for (const Command& command : commands) {
    if (command.kind == Command::kGather) actions_.push_back({Action::kGather, command.unit});
    if (command.kind == Command::kWait) actions_.push_back({Action::kWaitGather, command.unit, for_use ? 1.0 : 0.0});
  }
}

/// Of gradients that arrive together all buckets are open before the first is complete, as in sharding/plan.
void StepWriter::arrive(const std::vector<int>& parameters) {
  std::vector<int> complete;
  double seconds = 0;
  for (const int p : parameters) {
    for (const auto place : model_.buckets.places[static_cast<std::size_t>(p)]) {
      const auto arrival = buckets_.arrive(place.bucket, place.position);
      const auto b = static_cast<std::size_t>(place.bucket);
      if (arrival.opens) {
        actions_.push_back({Action::kOpenBucket, place.bucket});
        seconds += model_.copy_seconds * static_cast<double>(model_.buckets.numel[b]);
      }
      if (arrival.completes) complete.push_back(place.bucket);
      if (!arrival.completes || parameters.size() > 1) continue;
      if (seconds > 0) actions_.push_back({Action::kCopy, 0, std::exchange(seconds, 0)});
      send(complete.back());
      complete.clear();
    }
  }
  if (seconds > 0) actions_.push_back({Action::kCopy, 0, seconds});
  for (const int bucket : complete) send(bucket);
}

void StepWriter::send(int bucket) {
  buckets_.send(bucket);
  if (!model_.has_peers()) return;
  actions_.push_back({Action::kSendBucket, bucket});
  if (!model_.shards.overlap) actions_.push_back({Action::kWaitBuckets});
}

void StepWriter::end_micro_batch() {
  collective(sharding::agreement_of(model_.shards));
  for (int b = 0; b < buckets_.size(); ++b) {
    if (buckets_.rounds(b) > 0) continue;
    if (!buckets_.open(b)) actions_.push_back({Action::kOpenBucket, b});
    send(b);
  }
  actions_.push_back({Action::kWaitBuckets});
  buckets_.end_micro_batch();
  actions_.push_back({Action::kEndMicroBatch});
}

void StepWriter::end_step() {
  const ShardingPlan& shards = model_.shards;
  collective(sharding::norm_of(shards));
  for (const auto& unit : shards.units) {
    const auto transfer = sharding::sums_of(shards, static_cast<double>(unit.numel));
    if (unit.trainable && transfer.nbytes > 0) collective(transfer);
  }
  if (model_.update_seconds > 0) actions_.push_back({Action::kUpdate, 0, model_.update_seconds});
  if (model_.gathers) carry_out(gathers_.publish(), /*for_use=*/false);
  if (model_.publishes_late) {
    actions_.push_back({Action::kCompleteLate});
  } else if (shards.place.reads_in_place()) {
    // All units are under way at once.
    double numel = 0;
    for (const int u : model_.whole_units)
      numel += static_cast<double>(shards.units[static_cast<std::size_t>(u)].numel);
    if (numel > 0) collective(sharding::publication_of(shards, numel, /*is_late=*/false));
  } else {
    for (const int u : model_.whole_units) {
      const std::int64_t all = shards.units[static_cast<std::size_t>(u)].numel;
      for (const layout::Range piece : layout::bucket_ranges(all, model_.publish_numel))
        collective(sharding::publication_of(shards, static_cast<double>(piece.numel()), /*is_late=*/false));
    }
  }
  actions_.push_back({Action::kPublish});
}

void StepWriter::collective(const sharding::Transfer& transfer) {
  if (model_.has_peers()) actions_.push_back({.kind = Action::kCollective, .transfer = transfer});
}

}  // namespace zero::plan
