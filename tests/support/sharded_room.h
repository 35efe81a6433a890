#pragma once
// The sharding room without modules and engine: units of parameters of given sizes over a group.
#include <ATen/ops/empty.h>

#include <memory>
#include <numeric>
#include <vector>

#include "sharding/parameter_store.h"
#include "sharding/sharded_model.h"

namespace zero::testing {

struct RoomShape {
  std::vector<std::vector<std::int64_t>> units = {{1500, 70}, {1}, {4000}, {64, 64, 2100}, {1024}};
  layout::Sharding sharding = layout::sharding_of_stage(3);
  DType param_dtype = DType::kFloat32;
  std::vector<bool> frozen = {};  ///< by unit; those not said are trainable
};

struct Room {
  sharding::ShardedModel model;
  storage::Ledger ledger;
  sharding::Timeline timeline;
  std::unique_ptr<sharding::ParameterStore> store;

  Room(const RoomShape& shape, Group group, std::shared_ptr<comm::ShardTransport> transport) {
    model.sharding = shape.sharding;
    model.param_dtype = shape.param_dtype;
    model.data_ranks = group;
    model.shard_groups = {{group, transport}};
    model.home = storage::Home(model.device, std::move(transport));
    for (std::size_t u = 0; u < shape.units.size(); ++u) {
      sharding::Unit unit{.name = "unit" + std::to_string(u),
                          .trainable = u >= shape.frozen.size() || !shape.frozen[u]};
      for (const std::int64_t numel : shape.units[u]) {
        const int p = static_cast<int>(model.parameters.size());
        sharding::Parameter parameter;
        parameter.name = unit.name + ".p" + std::to_string(p);
        parameter.tensor = at::empty({numel}, device::to_scalar_type(model.param_dtype));
        parameter.unit = static_cast<int>(u);
        parameter.range = {unit.numel, unit.numel + numel};
        parameter.strides = {1};
        parameter.handle = c10::make_intrusive<intercept::ParameterHandle>(parameter.name, p, parameter.unit);
        unit.parameters.push_back(p);
        unit.numel = layout::round_up(unit.numel + numel, layout::kAlignNumel);
        model.parameters.push_back(std::move(parameter));
      }
      unit.numel = layout::round_up(unit.numel, layout::kBlockNumel);
      unit.cuts = layout::shard_cuts(unit.numel, group.size(), static_cast<int>(u));
      model.units.push_back(std::move(unit));
    }
  }

  /// Units with odd numbers are sharded over `ranks` alone, as a layer of experts is. Before there is a store.
  void shard_odd_units_over(Group ranks) {
    for (std::size_t u = 1; u < model.units.size(); u += 2) {
      model.units[u].group = 1;
      model.units[u].cuts = layout::shard_cuts(model.units[u].numel, ranks.size(), static_cast<int>(u));
    }
    model.shard_groups.push_back({ranks, comm::make_host_transport(ranks)});
  }

  /// Takes the parameters over, as initialize() does. The store has its values.
  void start() {
    for (auto& parameter : model.parameters) {
      const auto nbytes = static_cast<std::size_t>(parameter.range.numel()) * element_nbytes(model.param_dtype);
      parameter.handle->adopt(parameter.tensor, device::to_scalar_type(model.param_dtype), parameter.strides, nbytes,
                              model.device, store.get());
    }
    store->start();
  }
  ~Room() {
    for (auto& parameter : model.parameters) {
      if (parameter.handle->owns(parameter.tensor))
        parameter.handle->retire(parameter.tensor, store->keep_alive(parameter.unit), "the room is closed");
    }
  }
};

}  // namespace zero::testing
