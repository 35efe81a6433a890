#include "sharding/whole_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace zero::sharding {

WholeTensors::WholeTensors(const ShardedModel& model, storage::Ledger& ledger, std::vector<int> tensors)
    : model_(model), tensors_(std::move(tensors)) {
  std::vector<layout::TensorPlace> places;
  for (const int p : tensors_) places.push_back({model.parameters[p].unit, model.parameters[p].range});
  std::vector<std::vector<std::int64_t>> cuts;
  for (const Unit& unit : model.units) cuts.push_back(unit.cuts);
  plan_ = layout::plan_rounds(places, cuts);
  if (!model.sharding.optimizer_states || plan_.rounds.empty()) return;
  destinations_.resize(static_cast<std::size_t>(model.world_size()));
  wanted_.resize(destinations_.size());
  whole_ = model.home.make_private(ledger, MemoryKind::kStaging, DType::kFloat32, plan_.largest_numel);
  send_ = model.home.make_readable(ledger, MemoryKind::kStaging, DType::kFloat32, plan_.send_numel);
  std::vector<comm::Parcel> parcels;
  for (std::size_t k = 0; k < plan_.rounds.size(); ++k) {
    parcels.push_back({fmt::format("tensors of round {}", k), plan_.rounds[k].to_owner});
    parcels.push_back({fmt::format("results of round {}", k), plan_.rounds[k].from_owner});
  }
  board_ = model.shard_groups.front().transport->make_exchange_board(
      "whole tensors", std::move(parcels), DType::kFloat32,
      [this](int parcel, std::span<const void* const> slices) { take(parcel, slices); });
}

int WholeTensors::owner(int parameter) const {
  const auto found = std::ranges::find(tensors_, parameter);
  ZERO_CHECK(found != tensors_.end(), "parameter {} is not brought together", parameter);
  return plan_.owner[static_cast<std::size_t>(found - tensors_.begin())];
}

std::vector<double> WholeTensors::sums_of_squares(std::span<const int> parameters, Read read) {
  if (parameters.empty()) return {};
  const at::NoGradGuard no_grad;
  constexpr std::int64_t kBlock = layout::kBlockNumel;
  Group group = model_.data_ranks;
  const auto chunks = [&](int parameter, int rank) {
    const Parameter& of = model_.parameters[parameter];
    const Range mine = layout::intersect(of.range, model_.units[of.unit].shard(rank));
    // Shards are cut between blocks; a parameter may begin and end inside of one.
    return mine.empty() ? 0 : (mine.end + kBlock - 1) / kBlock - mine.begin / kBlock;
  };
  std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), 0), next;
  for (int rank = 0; rank < group.size(); ++rank) {
    for (const int p : parameters) counts[rank] += chunks(p, rank);
  }
  constexpr std::int64_t kPiece = 256 * kBlock;
  const at::TensorOptions there = at::TensorOptions(at::kFloat).device(model_.device);
  const at::Tensor values = at::empty({kPiece}, there);
  at::Tensor mine = at::empty({counts[static_cast<std::size_t>(model_.rank())]}, there.dtype(at::kDouble));
  std::int64_t done = 0;
  for (const int p : parameters) {
    const Parameter& parameter = model_.parameters[p];
    Range rest = layout::intersect(parameter.range, model_.shard_of(parameter.unit));
    while (!rest.empty()) {
      // What does not begin with a block is summed alone, from a block's first place on.
      const std::int64_t until = rest.begin % kBlock ? (rest.begin / kBlock + 1) * kBlock : rest.begin + kPiece;
      const Range piece = layout::intersect({rest.begin, until}, rest);
      const std::int64_t blocks = (piece.numel() + kBlock - 1) / kBlock;
      values.narrow(0, (blocks - 1) * kBlock, kBlock).zero_();
      read(parameter.unit, piece, values.mutable_data_ptr<float>());
      model_.passes->block_sumsq(values.const_data_ptr(), DType::kFloat32, blocks * kBlock,
                                 mine.mutable_data_ptr<double>() + done);
      done += blocks;
      rest.begin = piece.end;
    }
  }
  mine = mine.cpu();
  std::int64_t total = 0;
  for (const std::int64_t count : counts) {
    next.push_back(total);
    total += count;
  }
  std::vector<double> all(static_cast<std::size_t>(total));
  group.all_gather(mine.const_data_ptr(), all.data(), counts, DType::kFloat64, {.label = "norms of tensors"}).wait();
  std::vector<double> sums;
  for (const int p : parameters) {
    double& sum = sums.emplace_back(0);
    for (int rank = 0; rank < group.size(); ++rank) {
      for (std::int64_t i = chunks(p, rank); i > 0; --i) sum += all[static_cast<std::size_t>(next[rank]++)];
    }
  }
  return sums;
}

void WholeTensors::change_tensors(c10::function_ref<bool(int parameter)> is_active, Values values, Change change) {
  if (!model_.sharding.optimizer_states) {
    // One computes, so that replicas stay the same where hosts differ.
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      if (!is_active(tensors_[t]) || range_of(static_cast<int>(t)).empty()) continue;
      const int tensor = static_cast<int>(t);
      float* const whole = values(unit_of(tensor), range_of(tensor));
      if (plan_.owner[t] == model_.rank()) change(tensors_[t], as_tensor(tensors_[t], whole));
      const std::int64_t numel = range_of(tensor).numel();
      if (model_.world_size() == 1) continue;
      model_.group_of(unit_of(tensor))
          .transport->broadcast(whole, numel, DType::kFloat32, plan_.owner[t], {.label = "whole tensors"})
          .wait();
      if (plan_.owner[t] != model_.rank()) received_numel_ += numel;
    }
    return;
  }
  for (const layout::TensorRound& round : plan_.rounds) run_round(round, is_active, values, change);
  for (const int t : plan_.local) {
    if (plan_.owner[t] != model_.rank() || !is_active(tensors_[t]) || range_of(t).empty()) continue;
    change(tensors_[t], as_tensor(tensors_[t], values(unit_of(t), range_of(t))));
  }
}

void WholeTensors::run_round(const layout::TensorRound& round, c10::function_ref<bool(int)> is_active, Values values,
                             Change change) {
  const auto active = [&](int t) { return t >= 0 && is_active(tensors_[t]); };
  if (std::ranges::none_of(round.tensor_of, active)) return;
  const int me = model_.rank(), parcel = 2 * static_cast<int>(&round - plan_.rounds.data());
  const int mine = active(round.tensor_of[me]) ? round.tensor_of[me] : -1;
  auto* const send = send_.data_as<float>();
  auto* const whole = whole_.data_as<float>();

  std::int64_t offset = 0;
  for (int rank = 0; rank < model_.world_size(); ++rank) {
    const int t = round.tensor_of[rank];
    if (active(t)) {
      const Range held = part(t, me);
      if (rank == me) {
        copy(whole + (held.begin - range_of(t).begin), values(unit_of(t), held), held.numel());
      } else if (!held.empty()) {
        copy(send + offset, values(unit_of(t), held), held.numel());
      }
    }
    const Range theirs = mine >= 0 && rank != me ? part(mine, rank) : Range{};
    destinations_[rank] = theirs.empty() ? nullptr : whole + (theirs.begin - range_of(mine).begin);
    wanted_[rank] = theirs.numel();
    offset += round.to_owner[rank];
  }
  exchange(parcel);

  if (mine >= 0) change(tensors_[mine], as_tensor(tensors_[mine], whole));

  offset = 0;
  for (int rank = 0; rank < model_.world_size(); ++rank) {
    const Range theirs = mine >= 0 ? part(mine, rank) : Range{};
    if (rank == me && mine >= 0) {
      copy(values(unit_of(mine), theirs), whole + (theirs.begin - range_of(mine).begin), theirs.numel());
    } else if (!theirs.empty()) {
      copy(send + offset, whole + (theirs.begin - range_of(mine).begin), theirs.numel());
    }
    const int t = round.tensor_of[rank];
    const Range held = active(t) && rank != me ? part(t, me) : Range{};
    destinations_[rank] = held.empty() ? nullptr : values(unit_of(t), held);
    wanted_[rank] = held.numel();
    offset += round.from_owner[rank];
  }
  exchange(parcel + 1);
}

void WholeTensors::exchange(int parcel) { board_->post(parcel, send_.data()).wait(); }

void WholeTensors::take(int, std::span<const void* const> slices) {
  for (std::size_t rank = 0; rank < slices.size(); ++rank) {
    if (!destinations_[rank]) continue;
    copy(destinations_[rank], static_cast<const float*>(slices[rank]), wanted_[rank]);
    received_numel_ += wanted_[rank];
  }
}

at::Tensor WholeTensors::as_tensor(int parameter, float* values) const {
  const Parameter& of = model_.parameters[parameter];
  return at::from_blob(values, of.tensor.sizes(), of.strides,
                       at::TensorOptions().dtype(at::kFloat).device(model_.device));
}

Range WholeTensors::part(int tensor, int rank) const {
  return layout::intersect(range_of(tensor), model_.units[unit_of(tensor)].shard(rank));
}

void WholeTensors::copy(float* out, const float* in, std::int64_t numel) const {
  if (numel > 0) model_.passes->copy(out, in, static_cast<std::size_t>(numel) * sizeof(float));
}

}  // namespace zero::sharding
