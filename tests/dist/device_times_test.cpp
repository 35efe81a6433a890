// How far ahead of use units are copied to a device, from the times of its own events.
#include "sharding/device_times.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "device/device_stream.h"
#include "dist/accelerator.h"
#include "support/simulated_device.h"
#include "zero/plan.h"
#include "zero/zero.h"

namespace zero::testing::device_times_test {
namespace {

/// Something that takes the device a while.
void work(const c10::Device& device, int size) {
  const at::Tensor some = at::ones({size, size}, at::TensorOptions(device));
  for (int i = 0; i < 3; ++i) static_cast<void>(at::mm(some, some));
  device::finish_current_stream(device);
}

/// What a step of four uses in backward asks for, of 100 elements each, whose copies and computations are so long.
std::int64_t wanted_window(int copy_size, int compute_size) {
  const c10::Device device = device_with(1);
  const c10::Stream user = device::current_stream(device);
  sharding::DeviceTimes times(device.type());
  EXPECT_FALSE(times.measuring());
  for (int step = 1; step < 3; ++step) EXPECT_FALSE(times.end_step().has_value());
  EXPECT_TRUE(times.measuring());
  for (int use = 0; use < 4; ++use) {
    times.begin_use(/*phase=*/1, user);
    sharding::TimedCopy copy{times.make_event(), times.make_event(), 100};
    copy.begin.record(user);
    work(device, copy_size);
    copy.end.record(user);
    times.begin_compute(user, std::move(copy));
    work(device, compute_size);
  }
  const auto wanted = times.end_step();
  if (!wanted) throw std::logic_error("the step was measured");
  return *wanted;
}

TEST(DeviceTimes, LongCopiesBeginEarlyAndShortOnesLate) {
  const c10::Device device = device_with(1);
  work(device, 300);  // threads are started, caches are warm
  EXPECT_EQ(wanted_window(/*copy_size=*/300, /*compute_size=*/1), 300) << "all that come after the first";
  EXPECT_EQ(wanted_window(/*copy_size=*/1, /*compute_size=*/300), 100) << "the next one";
}

TEST(DeviceTimes, AUseThatFailedIsNone) {
  const c10::Device device = device_with(1);
  const c10::Stream user = device::current_stream(device);
  sharding::DeviceTimes times(device.type());
  for (int step = 1; step < 3; ++step) static_cast<void>(times.end_step());
  times.begin_use(1, user);
  EXPECT_FALSE(times.end_step().has_value());
}

/// The curve is that of a window as given, far less is gathered ahead, and memory is within the plan.
TEST(DeviceTimes, AnEngineMeasuresItsWindow) {
  for (const std::string states : {"cpu", "none"}) {
    for (int ranks = 1; ranks <= 3; ++ranks) {
      const auto lines = lines_of(ranks, [&](Group group) {
        std::vector<std::string> results;
        for (const bool measured : {false, true}) {
          const auto device = device_with(7);
          use_kernels(true);
          Small model = make_small(device);
          const Setting setting{.live_numel = 100'000, .states = states, .measured = measured};
          Config config = Config::from_text(json_of(setting));
          config.resolve_batch(group.size());
          const auto shape = plan::shape_of(ModelView::of(model.ptr()));
          const auto planned =
              plan::engine_memory(shape, config, group.size(), group.rank(), group.size(), /*gpus=*/true);
          auto engine = initialize(model, json_of(setting), {.group = group});
          const std::int64_t given = engine.communication_report().prefetch_window_numel;
          std::vector<double> losses;
          for (int i = 0; i < 14; ++i) {
            const at::Tensor loss = model->loss(tokens_of(i, group.rank(), device));
            engine.backward(loss);
            engine.step();
            losses.push_back(loss.item<float>());
          }
          const std::int64_t chosen = engine.communication_report().prefetch_window_numel;
          if (!measured && (chosen != 50'000'000 || given != chosen)) throw std::logic_error("not as given");
          if (measured && (given > 2000 || chosen < given || chosen > 100'000)) {
            throw std::logic_error("a window of " + std::to_string(chosen) + " after " + std::to_string(given));
          }
          if (engine.memory_report()[MemoryKind::kGather].peak_nbytes > planned[MemoryKind::kGather].peak_nbytes) {
            throw std::logic_error("more than planned");
          }
          results.push_back(outcome_of(engine, model, losses));
        }
        if (results[0] != results[1]) throw std::logic_error("another curve: " + results[0] + ", " + results[1]);
        return results;
      });
      EXPECT_EQ(lines.size(), 2u) << states << ", " << ranks;
    }
  }
}

}  // namespace
}  // namespace zero::testing::device_times_test
