#pragma once
// RowGradients: sparse gradients of a micro-batch, which travel as rows.
//
// An embedding table of V rows whose micro-batch reads a few hundred of them has a gradient of a few hundred rows
// (torch::nn::EmbeddingOptions::sparse). Where a table has a unit of its own, its rows are kept until the ranks have
// agreed, and then every rank gets those of all others and adds them to its sums in rank order: the numbers of dense
// gradients without their bytes. Where rows would be more bytes than the table, or a rank has a dense gradient of it,
// they become dense.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "zero/sharded_model.h"

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

  /// *Collective.* Decides for everything kept on any rank. `is_dense(parameter)`: this rank has given something of it
  /// to its buckets in this micro-batch. What is not to go as rows goes to `take_dense`, as this rank's gradient. True
  /// when some ranks had rows and others had given dense gradients, on every rank.
  bool agree(const std::function<bool(int parameter)>& is_dense,
             const std::function<void(int parameter, const at::Tensor& gradient)>& take_dense);

  struct RankRows {
    std::span<const std::int64_t> rows;  ///< ascending
    const void* values = nullptr;        ///< [rows, D], of ShardedModel::gradient_dtype
  };
  /// *Collective.* After agree(): hands over what goes as rows, table by table, rank by rank.
  void exchange(const std::function<void(int parameter, std::span<const RankRows> by_rank)>& take_rows);

  std::int64_t received_numel() const { return received_numel_; }  ///< of all exchanges

 private:
  at::Tensor join(int parameter);
  bool is_less(int parameter, std::int64_t rows) const;

  struct Agreed {
    int parameter = 0;
    at::Tensor mine;                         ///< coalesced; undefined when this rank has no rows
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
