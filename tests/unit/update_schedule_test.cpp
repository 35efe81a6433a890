// Schedules of updates by themselves, without modules and engine: of gradients that do not depend on the weights all of
// them come to the same bits, whatever is dropped on the way.
#include "sharding/update/schedule.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "config/update_kind.h"
#include "io/file_system.h"
#include "support/sharded_room.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"

namespace zero::sharding::update_schedule_test {
namespace {

using testing::Room;
using Kind = Config::Zerotorch::Update;

constexpr int kSteps = 7;

struct Run {
  Kind update = Kind::kAfterBackward;
  int stage = 3;
  DType dtype = DType::kFloat32;
  int micro_batches = 1;
};

at::Tensor gradient_of(const Room& room, int p, std::int64_t micro_batch) {
  const auto& parameter = room.model.parameters[static_cast<std::size_t>(p)];
  const at::Tensor index = at::arange(parameter.range.numel(), at::kFloat);
  return at::cos(index.mul(0.3).add(static_cast<double>(p + 2 * micro_batch)))
      .to(device::to_scalar_type(room.model.param_dtype));
}

/// The parts that an engine makes, in its order.
class Trainer {
 public:
  Trainer(Group group, const Run& run, const std::string& folder)
      : run_(run),
        kind_(config::kind_of(run.update)),
        room_({.sharding = layout::sharding_of_stage(run.stage), .param_dtype = run.dtype}, group,
              comm::make_host_transport(group)) {
    room_.model.gradient_dtype = run.dtype;
    room_.store = make_copying_store(room_.model, room_.ledger, room_.timeline,
                                     {.resident = std::vector<bool>(room_.model.units.size(), run.stage < 3),
                                      .updates_in_backward = !kind_.keeps_gradients});
    OptimizerOptions options{.groups = {{.hyper = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}}},
                             .group_of_parameter = std::vector<int>(room_.model.parameters.size(), 0),
                             .sub_group_numel = 1024,
                             .bucket_numel = kind_.keeps_gradients ? 0 : kBucketNumel,
                             .updates_late = kind_.second_parameters};
    if (kind_.second_states) {
      options.disk = offload::DiskOptions{.files = &io::system_files(), .folder = folder, .scratch = {}, .buffers = 3};
      options.disk->has_two_places = true;
    }
    optimizer_ = std::make_unique<ShardedOptimizer>(room_.model, *room_.store, room_.ledger, std::move(options));
    reducer_ = std::make_unique<GradientReducer>(
        room_.model, room_.ledger, room_.timeline,
        ReducerOptions{
            .bucket_numel = kBucketNumel, .sets_of_sums = kind_.sets_of_sums, .keeps_sums = kind_.keeps_gradients});
    update_ = make_update_schedule(run.update, {room_.model, *room_.store, *optimizer_, *reducer_, room_.timeline});
    for (std::size_t u = 0; u < room_.model.units.size(); ++u) {
      const at::Tensor index = at::arange(room_.model.units[u].numel, at::kFloat);
      optimizer_->load(static_cast<int>(u), at::sin(index.mul(0.1).add(static_cast<double>(u))));
    }
    room_.start();
  }
  ~Trainer() {
    update_->stop();
    reducer_.reset();
    update_.reset();
  }

  /// A clipped step has another scale than the one with which the update may have begun.
  void step(int number, bool clipped, bool skipped) {
    const int ranks = room_.model.world_size();
    const std::vector<double> lr = {0.01 / (number + 1)};
    const double scale = 1.0 / (run_.micro_batches * ranks);
    update_->set_rates(lr, scale);
    for (int j = 0; j < run_.micro_batches; ++j) {
      const bool last = j + 1 == run_.micro_batches;
      reducer_->expect_last_micro_batch(last);
      if (last) update_->begin(lr, scale);
      reducer_->begin_backward();
      const std::int64_t index = (static_cast<std::int64_t>(number) * run_.micro_batches + j) * ranks;
      for (int p = static_cast<int>(room_.model.parameters.size()); p-- > 0;)
        reducer_->add(p, gradient_of(room_, p, index + room_.model.rank()));
      reducer_->finish_micro_batch({});
    }
    room_.store->quiesce();
    reducer_->complete_sumsq();
    if (skipped) {
      finish();
      update_->drop();
    } else {
      update_->end_accumulation(lr, clipped ? scale * 0.25 : scale);
      publish();
    }
    reducer_->start_window();
  }

  /// As Engine::finish_update().
  void finish() {
    update_->settle();
    if (!update_->is_pending()) return;
    room_.store->quiesce();
    room_.model.data_ranks.barrier({.label = "pending update"}).wait();
    update_->finish();
    publish();
  }

  /// Of this rank: masters and states, as bytes.
  std::string bytes() const {
    std::string all;
    const auto add = [&all](const at::Tensor& values) {
      all.append(static_cast<const char*>(values.contiguous().const_data_ptr()), values.nbytes());
    };
    for (std::size_t u = 0; u < room_.model.units.size(); ++u) {
      const int unit = static_cast<int>(u);
      for (const int p : room_.model.units[u].parameters) {
        const Range mine = layout::intersect(room_.model.parameters[static_cast<std::size_t>(p)].range,
                                             optimizer_->update_range(unit));
        if (mine.empty()) continue;
        add(optimizer_->master_values(unit, mine));
        for (std::size_t s = 0; s < optimizer_->states().size(); ++s) add(optimizer_->state_values(s, unit, mine));
      }
    }
    return all;
  }
  UpdateSchedule& update() { return *update_; }
  Room& room() { return room_; }

 private:
  static constexpr std::int64_t kBucketNumel = 1024;

  void publish() {
    room_.store->quiesce();
    room_.store->publish(/*frozen_too=*/false);
  }

  const Run run_;
  const config::UpdateKind& kind_;
  Room room_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<UpdateSchedule> update_;
};

bool clips(int step) { return step == 2 || step == 3; }
bool skips(int step) { return step == 4; }

TEST(UpdateSchedule, AllComeToTheSameBits) {
  const testing::TemporaryFolder folder;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int stage : {1, 2, 3}) {
      for (const int ranks : {1, 2, 3}) {
        for (const Kind update : {Kind::kInBackward, Kind::kSpeculative, Kind::kDelayed}) {
          const auto& kind = config::kind_of(update);
          SCOPED_TRACE(::testing::Message()
                       << kind.name << ", " << ranks << " ranks, stage " << stage << ", " << dtype_name(dtype));
          // What is updated in backward can be neither scaled nor skipped.
          const bool may_change = kind.keeps_gradients;
          const int micro_batches = may_change ? 2 : 1;
          testing::expect_all_ok(testing::spawn(
              ranks,
              [&](Group group) {
                Trainer plain(group, {.stage = stage, .dtype = dtype, .micro_batches = micro_batches}, folder.path());
                Trainer other(group, {update, stage, dtype, micro_batches}, folder.path());
                for (int step = 0; step < kSteps; ++step) {
                  for (Trainer* const one : {&plain, &other})
                    one->step(step, may_change && clips(step), may_change && skips(step));
                  if (step % 2 == 1) other.finish();
                  if (step % 2 == 1 || !kind.ends_after_step) {
                    ASSERT_EQ(plain.bytes(), other.bytes()) << "step " << step;
                  }
                }
              },
              {.timeout = std::chrono::seconds(60)}));
        }
      }
    }
  }
}

TEST(UpdateSchedule, ASpeculativeUpdateIsKeptOrUndone) {
  const testing::TemporaryFolder folder;
  testing::expect_all_ok(testing::spawn(2, [&](Group group) {
    Trainer trainer(group, {.update = Kind::kSpeculative, .micro_batches = 2}, folder.path());
    const auto& kept = [&] { return trainer.update().counts().kept; };
    trainer.step(0, false, false);  // which does not know yet what a step uses
    EXPECT_EQ(kept(), 0);
    trainer.step(1, false, false);
    EXPECT_EQ(kept(), 1);
    trainer.step(2, /*clipped=*/true, false);
    EXPECT_EQ(trainer.update().counts().undone, 1);
    trainer.step(3, false, false);  // the step after one that was undone does not try
    trainer.step(4, false, false);
    EXPECT_EQ(kept(), 2);
    EXPECT_EQ(trainer.update().counts().undone, 1);
  }));
}

TEST(UpdateSchedule, ADelayedUpdateIsPendingUntilItIsFinished) {
  testing::expect_all_ok(testing::spawn(2, [&](Group group) {
    Trainer trainer(group, {.update = Kind::kDelayed}, {});
    const std::string before = trainer.bytes();
    EXPECT_FALSE(trainer.update().is_pending());
    trainer.step(0, false, false);
    EXPECT_TRUE(trainer.update().is_pending());
    trainer.finish();
    EXPECT_FALSE(trainer.update().is_pending());
    EXPECT_NE(trainer.bytes(), before);
  }));
}

TEST(UpdateSchedule, OnlyThoseThatOverlapTheProgramRefuseItsWrites) {
  const testing::TemporaryFolder folder;
  for (const Kind update : {Kind::kAfterBackward, Kind::kInBackward, Kind::kSpeculative, Kind::kDelayed}) {
    Trainer trainer(Group(), {.update = update}, folder.path());
    EXPECT_EQ(trainer.room().store->refuses_writes(), update == Kind::kInBackward || update == Kind::kDelayed);
  }
}

}  // namespace
}  // namespace zero::sharding::update_schedule_test
