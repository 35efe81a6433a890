#pragma once
// WholeTensors: what the steps of some optimizers need of tensors that are cut into shards: norms, and whole
// tensors. Both give the same bits whatever the number of ranks.
#include <c10/util/FunctionRef.h>

#include <memory>
#include <span>
#include <vector>

#include "comm/transport.h"
#include "layout/tensor_rounds.h"
#include "sharding/sharded_model.h"
#include "storage/flat_buffer.h"

namespace zero::sharding {

class WholeTensors {
 public:
  /// `tensors`: parameters that are brought together. *Collective.*
  WholeTensors(const ShardedModel& model, storage::Ledger& ledger, std::vector<int> tensors);

  /// fp32 values of a part of a parameter's unit, in this rank's shard: [range.numel()], in ShardedModel::device's
  /// memory.
  using Read = c10::function_ref<void(int unit, Range range, float* out)>;
  /// Sums of squares of `parameters`, by parameter, in the order given: `read` is called for this rank's
  /// shards only. *Collective.*
  std::vector<double> sums_of_squares(std::span<const int> parameters, Read read);

  /// Where this rank holds fp32 values of `range` of a unit: in its shard, or where optimizer states are not
  /// sharded in all of it.
  using Values = c10::function_ref<float*(int unit, Range range)>;
  /// A tensor of a parameter's shape and strides, to change in place.
  using Change = c10::function_ref<void(int parameter, const at::Tensor& whole)>;
  /// The rank that changes a parameter that is brought together.
  int owner(int parameter) const;
  /// `change` once for every tensor for which `is_active` is true (the same on all ranks), on one rank each,
  /// whose result all get that hold a part. *Collective.*
  void change_tensors(c10::function_ref<bool(int parameter)> is_active, Values values, Change change);

  /// Moved by change_tensors() to this rank so far; fp32.
  std::int64_t received_numel() const { return received_numel_; }

 private:
  void run_round(const layout::TensorRound& round, c10::function_ref<bool(int)> is_active, Values values,
                 Change change);
  /// Sends what lies in send_, and takes what comes to destinations_.
  void exchange(int parcel);
  void take(int parcel, std::span<const void* const> slices);
  at::Tensor as_tensor(int parameter, float* values) const;
  int unit_of(int tensor) const { return model_.parameters[tensors_[tensor]].unit; }
  Range range_of(int tensor) const { return model_.parameters[tensors_[tensor]].range; }
  /// Of a tensor, in its unit.
  Range part(int tensor, int rank) const;
  void copy(float* out, const float* in, std::int64_t numel) const;

  const ShardedModel& model_;
  std::vector<int> tensors_;
  layout::TensorRounds plan_;
  storage::FlatBuffer send_, whole_;
  std::shared_ptr<comm::ExchangeBoard> board_;  ///< parcels 2k and 2k + 1 are those of round k
  std::vector<float*> destinations_;            ///< of the exchange that runs, by sender; null: nothing is wanted
  std::vector<std::int64_t> wanted_;            ///< elements of each sender
  std::int64_t received_numel_ = 0;
};

}  // namespace zero::sharding
