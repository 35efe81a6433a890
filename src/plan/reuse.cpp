// What gradients and activations share, because the ones come while the others go.
#include <algorithm>
#include <cctype>
#include <string_view>

#include "plan/engine_memory.h"

namespace zero::plan {
namespace {

/// True for "h.3.mlp.weight": a component of the name is a number.
bool is_of_a_layer(std::string_view name) {
  while (!name.empty()) {
    const std::string_view part = name.substr(0, name.find('.'));
    const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
    if (!part.empty() && std::all_of(part.begin(), part.end(), is_digit)) return true;
    name.remove_prefix(std::min(name.size(), part.size() + 1));
  }
  return false;
}

/// The largest gradient of the unit, as autograd hands it over.
double gradient_nbytes(const ShardingPlan& shards, const layout::Unit& unit) {
  std::int64_t largest = 0;
  for (const auto& slot : unit.slots) largest = std::max(largest, slot.numel);
  return static_cast<double>(largest * shards.low_nbytes());
}

double layers_numel(const ModelShape& model, const layout::Unit& unit) {
  double sum = 0;
  for (const auto& slot : unit.slots) {
    if (is_of_a_layer(model.parameters[slot.parameter].name)) sum += static_cast<double>(slot.numel);
  }
  return sum;
}

}  // namespace

std::int64_t reused_nbytes(const ModelShape& model, const ShardingPlan& shards, const Config& config,
                           const Activations& kept, int rank) {
  const bool come_and_go = config.zerotorch.caching_allocator && shards.sharding.optimizer_states &&
                           shards.update.keeps_gradients && shards.update.sets_of_sums == 1 &&
                           !shards.place.gradients.is_on_disk() && config.gradient_accumulation_steps == 1;
  if (!come_and_go) return 0;
  double of_layers = 0;
  for (const auto& unit : shards.units) of_layers += layers_numel(model, unit);
  const auto peak = static_cast<double>(kept.peak_nbytes), layers = static_cast<double>(kept.layers_nbytes);
  double activations = layers, sums = 0, most = peak;
  // The head's gradient waits for the embedding's.
  const Transformer& t = *model.transformer;
  const double of_tied_head = t.tied ? static_cast<double>(t.vocab * t.dim * shards.low_nbytes()) : 0;
  // Backward: a unit's sums have memory from its first gradient on, its activations until its last.
  for (std::size_t u = shards.units.size(); u-- > 0;) {
    const layout::Unit& unit = shards.units[u];
    const auto shard = shards.shard(u, rank);
    if (unit.trainable) sums += static_cast<double>(shard.numel() * shards.sum_nbytes());
    const double share = of_layers > 0 ? layers_numel(model, unit) / of_layers : 0;
    const bool is_head = share == 0 && activations == layers;
    const double temporary =
        std::max(static_cast<double>(kept.layer_backward_nbytes), unit.trainable ? gradient_nbytes(shards, unit) : 0);
    const double now = is_head ? peak : activations + temporary + of_tied_head;
    most = std::max(most, now + sums);
    activations = std::max(0.0, activations - layers * share);
  }
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(peak + sums - most));
}

}  // namespace zero::plan
