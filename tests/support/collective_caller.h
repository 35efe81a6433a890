#pragma once
// Every collective behind one call, for tests of what happens when a rank fails to make it.
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/transport.h"
#include "zero/group.h"

namespace zero::testing {

inline const std::string kCollectives[] = {"all_gather",       "reduce_scatter", "exchange", "all_reduce",
                                           "large all_reduce", "broadcast",      "barrier",  "allocate_node_shared",
                                           "polled barrier",   "post",           "fetch"};

/// What errors call one of kCollectives.
inline std::string name_in_errors(const std::string& collective) {
  return collective == "exchange" ? "reduce_scatter" : collective.substr(collective.rfind(' ') + 1);
}

/// One way to call each collective, with buffers that live as long as the object.
class CollectiveCaller {
 public:
  CollectiveCaller(Group& group, std::string collective) : group_(group), collective_(std::move(collective)) {
    counts_.assign(static_cast<std::size_t>(group.size()), 5000);
    in_.resize(counts_.size() * 5000, 1.0f);
    out_.resize(in_.size());
    shared_ = group.allocate(in_.size() * sizeof(float));
    if (collective_ == "post") {
      board_ = comm::make_exchange_board(group, "board", {{"parcel", counts_}}, DType::kFloat32,
                                         [](int, std::span<const void* const>) {});
    }
    if (collective_ == "fetch") {
      window_ = comm::make_shard_window(group, "window", {{"parcel", counts_}}, DType::kFloat32, {shared_.data()});
    }
  }

  /// *Collective.*
  void call(std::string_view label) {
    const CollectiveOptions options{.label = label};
    auto* const shared = static_cast<float*>(shared_.data());
    if (collective_ == "all_gather") group_.all_gather(shared, out_.data(), counts_, DType::kFloat32, options).wait();
    if (collective_ == "reduce_scatter") {
      group_.reduce_scatter(in_.data(), out_.data(), counts_, DType::kFloat32, DType::kFloat32, false, options).wait();
    }
    if (collective_ == "exchange")
      group_
          .exchange(
              shared, counts_, DType::kFloat32, [](auto) {}, options)
          .wait();
    if (collective_ == "all_reduce")
      group_.all_reduce(out_.data(), 10, DType::kFloat32, ReduceOp::kMax, options).wait();
    if (collective_ == "large all_reduce") {
      const auto numel = static_cast<std::int64_t>(in_.size());
      group_.all_reduce(shared, numel, DType::kFloat32, ReduceOp::kMax, options).wait();
      group_.all_reduce(in_.data(), numel, DType::kFloat32, ReduceOp::kMax, options).wait();
    }
    if (collective_ == "broadcast") group_.broadcast(out_.data(), 100, DType::kFloat32, 0, options).wait();
    if (collective_ == "barrier") group_.barrier(options).wait();
    if (collective_ == "allocate_node_shared") group_.allocate_node_shared(8192, label);
    if (collective_ == "polled barrier") {
      Work work = group_.barrier(options);
      while (!work.test()) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    if (collective_ == "post") board_->post(0, shared).wait();
    if (collective_ == "fetch") {
      window_->publish();
      window_->fetch(0, out_.data(), label).wait();
    }
  }

 private:
  Group& group_;
  std::string collective_;
  std::vector<std::int64_t> counts_;
  std::vector<float> in_, out_;
  SharedMemory shared_;
  std::shared_ptr<comm::ExchangeBoard> board_;
  std::shared_ptr<comm::ShardWindow> window_;
};

}  // namespace zero::testing
