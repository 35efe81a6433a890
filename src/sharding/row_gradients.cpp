#include "sharding/row_gradients.h"

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

/// What was kept of a parameter, backward by backward, of the dtype they travel in. Rows that come more than once in
/// one are added as autograd would, in the gradient's own.
std::vector<at::Tensor> RowGradients::coalesced(int parameter) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& gradient : kept_[parameter])
    all.push_back(gradient.coalesce().to(device::to_scalar_type(model_.gradient_dtype)).coalesce());
  return all;
}

/// True when `rows` rows with their indices are fewer bytes than the table.
bool RowGradients::is_less(int parameter, std::int64_t rows) const {
  const at::Tensor& tensor = model_.parameters[parameter].tensor;
  const auto row_nbytes = tensor.size(1) * static_cast<std::int64_t>(tensor.element_size());
  return rows * (row_nbytes + static_cast<std::int64_t>(sizeof(std::int64_t))) < tensor.size(0) * row_nbytes;
}

RowGradients::Agreement RowGradients::agree(
    const std::function<bool(int parameter)>& is_dense, std::int64_t dense_rounds,
    const std::function<void(int parameter, const at::Tensor& gradient)>& take_dense) {
  constexpr std::int64_t kDense = -1;
  at::NoGradGuard no_grad;
  const auto ranks = static_cast<std::size_t>(model_.world_size());
  std::map<int, std::vector<at::Tensor>> kept;
  for (const auto& [parameter, gradients] : kept_) kept[parameter] = coalesced(parameter);
  kept_.clear();
  std::vector<std::int64_t> mine;
  std::int64_t rounds = 0;
  for (const int p : tables_) {
    std::int64_t rows = 0;
    const bool dense = is_dense(p);
    if (const auto found = kept.find(p); found != kept.end()) {
      for (const at::Tensor& gradient : found->second) rows += gradient._nnz();
      rounds = std::max(rounds, static_cast<std::int64_t>(found->second.size()) + (dense ? dense_rounds : 0));
    }
    mine.push_back(dense ? kDense : rows);
  }
  mine.push_back(rounds);
  std::vector<std::int64_t> all = mine;
  if (ranks > 1) {
    all.resize(mine.size() * ranks);
    const std::vector<std::int64_t> counts(ranks, static_cast<std::int64_t>(mine.size()));
    model_.data_ranks.all_gather(mine.data(), all.data(), counts, DType::kInt64, {.label = "numbers of gradient rows"})
        .wait();
  }
  Agreement agreement;
  for (std::size_t r = 0; r < ranks; ++r) agreement.rounds = std::max(agreement.rounds, all[(r + 1) * mine.size() - 1]);
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const int p = tables_[t];
    Agreed agreed{p, {}, {}};
    if (const auto found = kept.find(p); found != kept.end()) agreed.mine = found->second;
    for (std::size_t r = 0; r < ranks; ++r) agreed.rows_of_rank.push_back(all[r * mine.size() + t]);
    const auto& rows = agreed.rows_of_rank;
    const bool some_dense = std::find(rows.begin(), rows.end(), kDense) != rows.end();
    agreement.mixed = agreement.mixed || (some_dense && *std::max_element(rows.begin(), rows.end()) >= 0);
    const std::int64_t total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    if (some_dense || !is_less(p, total)) {
      as_rows_.erase(p);
      for (const at::Tensor& gradient : agreed.mine) take_dense(p, gradient.to_dense());
    } else if (total > 0) {
      as_rows_.insert(p);
      agreed_.push_back(std::move(agreed));
    }
  }
  return agreement;
}

void RowGradients::exchange(const std::function<void(int parameter, std::span<const RankRows> in_order)>& take_rows) {
  at::NoGradGuard no_grad;
  for (const Agreed& agreed : std::exchange(agreed_, {})) {
    const auto& parameter = model_.parameters[agreed.parameter];
    const std::int64_t columns = parameter.tensor.size(1);
    // Row r of a rank's k-th backward travels as k * V + r.
    const std::int64_t table_rows = parameter.tensor.size(0);
    std::vector<at::Tensor> indices, parts;
    for (const at::Tensor& gradient : agreed.mine) {
      indices.push_back(gradient.indices().select(0, 0) + static_cast<std::int64_t>(indices.size()) * table_rows);
      parts.push_back(gradient.values());
    }
    at::Tensor rows = indices.empty() ? at::empty({0}, at::kLong) : at::cat(indices).contiguous();
    at::Tensor values = parts.empty() ? at::empty({0, columns}, device::to_scalar_type(model_.gradient_dtype))
                                      : at::cat(parts).contiguous();
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
      model_.group_of(parameter.unit)
          .transport
          ->all_gather(rows.const_data_ptr(), all_rows.mutable_data_ptr(), agreed.rows_of_rank, DType::kInt64,
                       {.label = label})
          .wait();
      model_.group_of(parameter.unit)
          .transport
          ->all_gather(values.const_data_ptr(), all_values.mutable_data_ptr(), numel, model_.gradient_dtype,
                       {.label = label})
          .wait();
      received_numel_ += (total - rows.numel()) * columns;
      rows = all_rows;
      values = all_values;
    }
    // First all ranks' first backward, then their second: as buckets go.
    std::vector<RankRows> in_order;
    auto* const row = rows.mutable_data_ptr<std::int64_t>();
    const auto* const value = static_cast<const std::byte*>(values.const_data_ptr());
    const std::int64_t row_nbytes = columns * static_cast<std::int64_t>(values.element_size());
    std::vector<std::int64_t> next, ends;
    for (const std::int64_t count : agreed.rows_of_rank) {
      next.push_back(ends.empty() ? 0 : ends.back());
      ends.push_back(next.back() + count);
    }
    for (std::int64_t first = 0; next != ends; first += table_rows) {
      for (std::size_t r = 0; r < next.size(); ++r) {
        const std::int64_t begin = next[r];
        for (; next[r] < ends[r] && row[next[r]] < first + table_rows; ++next[r]) row[next[r]] -= first;
        in_order.push_back({{row + begin, static_cast<std::size_t>(next[r] - begin)}, value + begin * row_nbytes});
      }
    }
    take_rows(agreed.parameter, in_order);
  }
}

}  // namespace zero::sharding
