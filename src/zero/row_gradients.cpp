#include "zero/row_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace zero::sharding {

RowGradients::RowGradients(ShardedModel& model) : model_(model) {
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    const at::Tensor& tensor = model.parameters[p].tensor;
    if (model.passes->in_host_memory() && tensor.dim() == 2 && tensor.numel() > 0 && tensor.is_contiguous() &&
        model.units[model.parameters[p].unit].parameters.size() == 1) {
      tables_.push_back(static_cast<int>(p));
    }
  }
}

bool RowGradients::keep(int parameter, const at::Tensor& gradient) {
  if (gradient.layout() != at::kSparse || gradient.sparse_dim() != 1 ||
      !std::binary_search(tables_.begin(), tables_.end(), parameter)) {
    return false;
  }
  kept_[parameter].push_back(gradient);
  return true;
}

void RowGradients::begin_backward() {
  before_backward_.clear();
  for (const auto& [parameter, gradients] : kept_) before_backward_[parameter] = gradients.size();
}

void RowGradients::undo_backward() {
  for (auto& [parameter, gradients] : kept_) gradients.resize(before_backward_[parameter]);
  std::erase_if(kept_, [](const auto& item) { return item.second.empty(); });
}

void RowGradients::end_micro_batch() {
  kept_.clear();
  before_backward_.clear();
  agreed_.clear();
  as_rows_.clear();
}

/// What was kept of a parameter, summed one after the other as dense gradients are: coalesced, of the dtype
/// they travel in.
at::Tensor RowGradients::join(int parameter) {
  at::Tensor sum;
  for (const at::Tensor& gradient : kept_[parameter]) {
    const at::Tensor one = gradient.to(storage::to_scalar_type(model_.gradient_dtype)).coalesce();
    // In fp32, as libtorch has no sum of sparse halves; rounded once, as one of halves would be.
    sum = sum.defined() ? (sum.to(at::kFloat) + one.to(at::kFloat)).coalesce().to(one.scalar_type()).coalesce() : one;
  }
  return sum;
}

/// True when `rows` rows with their indices are fewer bytes than the table.
bool RowGradients::is_less(int parameter, std::int64_t rows) const {
  const at::Tensor& tensor = model_.parameters[parameter].tensor;
  const auto row_nbytes = tensor.size(1) * static_cast<std::int64_t>(tensor.element_size());
  return rows * (row_nbytes + static_cast<std::int64_t>(sizeof(std::int64_t))) < tensor.size(0) * row_nbytes;
}

bool RowGradients::agree(const std::function<bool(int parameter)>& is_dense,
                         const std::function<void(int parameter, const at::Tensor& gradient)>& take_dense) {
  constexpr std::int64_t kDense = -1;
  at::NoGradGuard no_grad;
  const auto ranks = static_cast<std::size_t>(model_.world_size());
  std::map<int, at::Tensor> joined;
  for (const auto& [parameter, gradients] : kept_) joined[parameter] = join(parameter);
  kept_.clear();
  std::vector<std::int64_t> mine;
  for (const int p : tables_) mine.push_back(is_dense(p) ? kDense : joined.contains(p) ? joined[p]._nnz() : 0);
  std::vector<std::int64_t> all = mine;
  if (ranks > 1) {
    all.resize(mine.size() * ranks);
    const std::vector<std::int64_t> counts(ranks, static_cast<std::int64_t>(mine.size()));
    model_.group.all_gather(mine.data(), all.data(), counts, DType::kInt64, {.label = "numbers of gradient rows"})
        .wait();
  }
  bool mixed = false;
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const int p = tables_[t];
    Agreed agreed{p, {}, {}};
    if (const auto found = joined.find(p); found != joined.end()) agreed.mine = found->second;
    for (std::size_t r = 0; r < ranks; ++r) agreed.rows_of_rank.push_back(all[r * tables_.size() + t]);
    const auto& rows = agreed.rows_of_rank;
    const bool some_dense = std::find(rows.begin(), rows.end(), kDense) != rows.end();
    mixed = mixed || (some_dense && *std::max_element(rows.begin(), rows.end()) >= 0);
    const std::int64_t total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    if (some_dense || !is_less(p, total)) {
      as_rows_.erase(p);
      if (agreed.mine.defined()) take_dense(p, agreed.mine.to_dense());
    } else if (total > 0) {
      as_rows_.insert(p);
      agreed_.push_back(std::move(agreed));
    }
  }
  return mixed;
}

void RowGradients::exchange(const std::function<void(int parameter, std::span<const RankRows> by_rank)>& take_rows) {
  at::NoGradGuard no_grad;
  for (const Agreed& agreed : std::exchange(agreed_, {})) {
    const auto& parameter = model_.parameters[agreed.parameter];
    const std::int64_t columns = parameter.tensor.size(1);
    at::Tensor rows = at::empty({0}, at::kLong),
               values = at::empty({0, columns}, storage::to_scalar_type(model_.gradient_dtype));
    if (agreed.mine.defined()) {
      rows = agreed.mine.indices().select(0, 0).contiguous();
      values = agreed.mine.values().contiguous();
    }
    if (model_.world_size() > 1) {
      std::int64_t total = 0;
      std::vector<std::int64_t> numel;
      for (const std::int64_t count : agreed.rows_of_rank) {
        total += count;
        numel.push_back(count * columns);
      }
      const std::string label = "gradient rows of " + parameter.name;
      const at::Tensor all_rows = at::empty({total}, at::kLong);
      const at::Tensor all_values = at::empty({total, columns}, values.options());
      model_.transport
          ->all_gather(rows.const_data_ptr(), all_rows.mutable_data_ptr(), agreed.rows_of_rank, DType::kInt64,
                       {.label = label})
          .wait();
      model_.transport
          ->all_gather(values.const_data_ptr(), all_values.mutable_data_ptr(), numel, model_.gradient_dtype,
                       {.label = label})
          .wait();
      received_numel_ += (total - rows.numel()) * columns;
      rows = all_rows;
      values = all_values;
    }
    std::vector<RankRows> by_rank;
    const auto* row = rows.const_data_ptr<std::int64_t>();
    const auto* value = static_cast<const std::byte*>(values.const_data_ptr());
    for (const std::int64_t count : agreed.rows_of_rank) {
      by_rank.push_back({{row, static_cast<std::size_t>(count)}, value});
      row += count;
      value += count * columns * static_cast<std::int64_t>(values.element_size());
    }
    take_rows(agreed.parameter, by_rank);
  }
}

}  // namespace zero::sharding
