#pragma once
// RowGradients: sparse gradients of a micro-batch, which travel as rows.
//
// An embedding table of V rows whose micro-batch reads a few hundred of them has a gradient of a few hundred rows
// (torch::nn::EmbeddingOptions::sparse). Where a table has a unit of its own, its rows are kept until the ranks have
// agreed, and then every rank gets those of all others and adds them to its sums in rank order, backward by backward:
// the numbers of dense gradients without their bytes. Where rows would be more bytes than the table, or a rank has a
// dense gradient of it, they become dense.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "sharding/sharded_model.h"

namespace zero::sharding {

class RowGradients {
 public:
  explicit RowGradients(ShardedModel& model);

  /// Keeps `gradient` when it is one of rows and `parameter` has a unit of its own. Local.
  bool keep(int parameter, const at::Tensor& gradient);

  void begin_backward();
  /// Takes back what was kept since begin_backward().
  void undo_backward();
  void end_micro_batch();

  bool empty() const { return kept_.empty(); }
  /// True when there is something the other ranks must hear of: rows, or a table that they expect no bucket of.
  bool active() const { return !kept_.empty() || !as_rows_.empty(); }
  /// True for a table whose gradients of this micro-batch go as rows, on all ranks.
  bool goes_as_rows(int parameter) const { return as_rows_.contains(parameter); }

  struct Agreement {
    bool mixed = false;       ///< some ranks had rows and others had given dense gradients
    std::int64_t rounds = 0;  ///< most dense gradients of a table that a rank can have now; no less, seldom more
  };
  /// *Collective.* Decides for everything kept on any rank; the same on every rank. `is_dense(parameter)`: this rank
  /// has given something of it to its buckets in this micro-batch, `dense_rounds` times at most. What is not to go as
  /// rows goes to `take_dense`, as this rank's gradients, backward by backward.
  Agreement agree(const std::function<bool(int parameter)>& is_dense, std::int64_t dense_rounds,
                  const std::function<void(int parameter, const at::Tensor& gradient)>& take_dense);

  struct RankRows {
    std::span<const std::int64_t> rows;  ///< ascending
    const void* values = nullptr;        ///< [rows, D], of ShardedModel::gradient_dtype
  };
  /// *Collective.* After agree(): hands over what goes as rows, table by table; in order the first backward of this
  /// micro-batch of every rank, the second of every rank, and so on.
  void exchange(const std::function<void(int parameter, std::span<const RankRows> in_order)>& take_rows);

  std::int64_t received_numel() const { return received_numel_; }  ///< of all exchanges

 private:
  std::vector<at::Tensor> coalesced(int parameter);
  bool is_less(int parameter, std::int64_t rows) const;

  struct Agreed {
    int parameter = 0;
    std::vector<at::Tensor> mine;            ///< coalesced, by backward; none when this rank has no rows
    std::vector<std::int64_t> rows_of_rank;  ///< [N]
  };

  ShardedModel& model_;
  std::vector<int> tables_;                      ///< parameters that can go as rows, the same on every rank
  std::map<int, std::vector<at::Tensor>> kept_;  ///< sparse gradients by parameter
  std::map<int, std::size_t> before_backward_;   ///< how many, at begin_backward()
  std::vector<Agreed> agreed_;
  std::set<int> as_rows_;  ///< of this micro-batch
  std::int64_t received_numel_ = 0;
};

}  // namespace zero::sharding
