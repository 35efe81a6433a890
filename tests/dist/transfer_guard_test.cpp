// What a post and a fetch cost besides the bytes: no allocation and no page fault once they have been made a
// few times. Counted, not timed.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <vector>

#include "comm/transport.h"
#include "support/allocation_counter.h"
#include "support/spawn.h"
#include "zero/group.h"

namespace zero::testing::transfer_guard_test {
namespace {

constexpr int kParcels = 6;
constexpr std::int64_t kNumel = 40'000;  ///< of each rank's slice

std::int64_t page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

struct Cost {
  std::int64_t allocations, faults;
};

/// Posts and fetches of all parcels, in an order of this rank's own, and what they cost.
class Step {
 public:
  Step(Group& group, bool shared) : group_(group), out_(static_cast<std::size_t>(kNumel * group.size()), 1.0f) {
    std::vector<comm::Parcel> parcels;
    std::vector<const void*> mine;
    for (int p = 0; p < kParcels; ++p) {
      parcels.push_back({"a parcel with a name that is longer than any string holds by itself " + std::to_string(p),
                         std::vector<std::int64_t>(static_cast<std::size_t>(group.size()), kNumel)});
      const std::size_t nbytes = static_cast<std::size_t>(kNumel) * sizeof(float);
      memory_.push_back(group.allocate(nbytes * static_cast<std::size_t>(group.size())));
      slices_.push_back(group.allocate(nbytes));
      mine.push_back(slices_.back().data());
      private_.emplace_back(out_);
      std::fill_n(static_cast<float*>(memory_.back().data()), out_.size(), 1.0f);
      std::fill_n(static_cast<float*>(slices_.back().data()), kNumel, 1.0f);
    }
    shared_ = shared;
    board_ = comm::make_exchange_board(group, "gradients", parcels, DType::kFloat32,
                                       [this](int, std::span<const void* const> slices) {
                                         for (const void* slice : slices)
                                           sum_ += static_cast<const float*>(slice)[kNumel - 1];
                                       });
    window_ = comm::make_shard_window(group, "parameters", parcels, DType::kFloat32, mine);
  }

  Cost run() {
    const std::int64_t allocations = allocations_of_this_thread(), faults = page_faults();
    for (int i = 0; i < kParcels; ++i) {
      const int parcel = (i + group_.rank()) % kParcels;
      const auto p = static_cast<std::size_t>(parcel);
      fetches_[p] = window_->fetch(parcel, out_.data(), "a use whose name is longer than any string holds");
      posts_[p] = board_->post(parcel, shared_ ? memory_[p].data() : private_[p].data());
      fetches_[p].wait();
    }
    for (Work& post : posts_) post.wait();
    window_->publish();
    return {allocations_of_this_thread() - allocations, page_faults() - faults};
  }

 private:
  Group& group_;
  bool shared_ = false;
  std::vector<SharedMemory> memory_, slices_;
  std::vector<std::vector<float>> private_;
  std::vector<float> out_;
  std::array<Work, kParcels> posts_, fetches_;
  float sum_ = 0;
  std::shared_ptr<comm::ExchangeBoard> board_;
  std::shared_ptr<comm::ShardWindow> window_;
};

TEST(TransferGuard, PostsAndFetchesAllocateNothing) {
  expect_all_ok(spawn(2, [](Group group) {
    for (const bool shared : {true, false}) {
      Step step(group, shared);
      for (int i = 0; i < 5; ++i) step.run();
      // A peer that is late for a tenth of a second is looked after, which allocates: the best of a few.
      Cost least{1'000'000, 1'000'000};
      for (int i = 0; i < 5; ++i) {
        const Cost cost = step.run();
        least = {std::min(least.allocations, cost.allocations), std::min(least.faults, cost.faults)};
      }
      EXPECT_EQ(least.allocations, 0) << "shared " << shared;
      EXPECT_EQ(least.faults, 0) << "shared " << shared;
    }
  }));
}

}  // namespace
}  // namespace zero::testing::transfer_guard_test
