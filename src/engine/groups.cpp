#include "engine/groups.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <tuple>

#include "comm/gather_values.h"
#include "engine/agreement.h"
#include "intercept/deferred_values.h"
#include "zero/errors.h"

namespace zero::engine {
namespace {

/// A rank's place in the table of ranks.
struct Place {
  std::int64_t data_rank, data_size, model_rank, model_size;
};

std::string problem_with(const std::vector<Place>& places) {
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  const auto all = static_cast<std::int64_t>(places.size());
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const Place& place = places[rank];
    if (place.data_size * place.model_size != all) {
      return fmt::format(
          "rank {} has {} data-parallel and {} model-parallel ranks, whose product is not the {} ranks of "
          "InitializeOptions::group",
          rank, place.data_size, place.model_size, all);
    }
    if (!seen.emplace(place.data_rank, place.model_rank).second) {
      return fmt::format("two ranks are at place {} of their data-parallel and place {} of their model-parallel group",
                         place.data_rank, place.model_rank);
    }
  }
  return {};
}

void check_table(Groups& groups) {
  const Place mine{groups.data_parallel.rank(), groups.data_parallel.size(), groups.model_parallel_rank(),
                   groups.model_parallel_size()};
  const std::string problem = problem_with(comm::gather_values(groups.all, mine, "groups"));
  if (problem.empty()) return;
  leave_together(groups.all);
  throw ConfigError(
      fmt::format("initialize: {}; model_parallel = group.split(group.rank() / M) gives every M ranks one copy of the "
                  "model, and data_parallel can be left out",
                  problem));
}

/// What model-parallel ranks must have alike.
std::string describe(const Inventory& inventory) {
  std::string text;
  const auto add = [&](const char* what, const Inventory::Named& item) {
    auto shape = item.tensor.sizes().vec();
    if (item.split.is_split()) shape[static_cast<std::size_t>(item.split.dim)] = 0;
    text += fmt::format("{} '{}' {} [{}]{}", what, item.name, c10::toString(item.tensor.scalar_type()),
                        fmt::join(shape, ", "), item.tensor.requires_grad() ? "" : " frozen");
    text += item.split.is_split() ? fmt::format(", split along dimension {}\n", item.split.dim) : "\n";
  };
  for (const auto& item : inventory.parameters) add("parameter", item);
  for (const auto& item : inventory.buffers) add("buffer", item);
  return text;
}

/// The order of a part's dimensions in memory, [dims]; all -1 where each order is the same.
std::vector<std::int64_t> order_of(const at::Tensor& part) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(part.dim()), -1);
  if (checkpoint::has_one_order(part.sizes().vec())) return order;
  const auto dims = checkpoint::dim_order_of(part.sizes().vec(), part.strides().vec());
  std::iota(order.begin(), order.end(), 0);
  std::copy(dims.begin(), dims.end(), order.begin());
  return order;
}

/// The order of one rank's part becomes that of all.
void take_order(Inventory::Named& item, std::span<const std::int64_t> order, std::size_t rank) {
  if (order.empty() || order.front() < 0) return;
  std::vector<int> theirs(order.begin(), order.end());
  auto& common = item.split.dim_order;
  if (!common.empty() && common != theirs) {
    throw ModelError(
        fmt::format("'{}' lies in memory with its dimensions from the slowest to the fastest as {} on model-parallel "
                    "rank {} and {} on one before it; make it in one order on all",
                    item.name, fmt::join(theirs, ", "), rank, fmt::join(common, ", ")));
  }
  common = std::move(theirs);
}

int checked_dim(const Inventory::Named& item, int dim) {
  const auto dims = static_cast<int>(item.tensor.dim());
  if (dim >= -dims && dim < dims) return dim < 0 ? dim + dims : dim;
  throw ConfigError(fmt::format("InitializeOptions::placement: '{}' has {} dimensions and cannot be split along {}",
                                item.name, dims, dim));
}

std::vector<Inventory::Named*> items_of(Inventory& inventory) {
  std::vector<Inventory::Named*> items;
  for (auto* list : {&inventory.parameters, &inventory.buffers}) {
    for (auto& item : *list) items.push_back(&item);
  }
  return items;
}

}  // namespace

void Groups::set_timeout(std::chrono::milliseconds timeout) {
  all.set_timeout(timeout);
  data_parallel.set_timeout(timeout);
  if (model_parallel) model_parallel->set_timeout(timeout);
  if (across_islands) {
    island.set_timeout(timeout);
    across_islands->set_timeout(timeout);
  }
}

void Groups::abort(std::string_view reason) noexcept {
  data_parallel.abort(reason);
  if (across_islands) {
    island.abort(reason);
    across_islands->abort(reason);
  }
  if (!model_parallel) return;
  model_parallel->abort(reason);
  all.abort(reason);
}

Groups find_groups(const InitializeOptions& options) {
  Groups groups{.all = options.group ? *options.group : init_distributed()};
  const bool is_split = options.model_parallel && options.model_parallel->size() > 1;
  if (!is_split && !options.data_parallel) {
    groups.data_parallel = groups.island = groups.all;
    return groups;
  }
  if (is_split && !options.placement) {
    throw ConfigError(
        "InitializeOptions::model_parallel without a placement: which parameters are split, and along which "
        "dimension?");
  }
  if (is_split) groups.model_parallel = *options.model_parallel;
  groups.data_parallel =
      options.data_parallel ? *options.data_parallel : groups.all.split(options.model_parallel->rank());
  check_table(groups);
  groups.island = groups.data_parallel;
  return groups;
}

void find_islands(const Config& config, Groups& groups) {
  const auto& wanted = config.zerotorch.local_steps;
  if (wanted.steps == 0) return;
  Group& all = groups.data_parallel;
  const auto refuse = [&all](const std::string& problem) {
    leave_together(all);
    throw ConfigError(fmt::format("zerotorch.local_steps.ranks_per_island: {}", problem));
  };
  if (wanted.ranks_per_island == 0) {
    groups.island = all.split_by_host();
  } else if (all.size() % wanted.ranks_per_island == 0) {
    groups.island = all.split(static_cast<int>(all.rank() / wanted.ranks_per_island));
  } else {
    refuse(fmt::format("{} ranks cannot make islands of {}; give a divisor", all.size(), wanted.ranks_per_island));
  }
  struct Place {
    std::int64_t place, island_size, across, first;
  };
  groups.across_islands = all.split(groups.island.rank());
  const std::int64_t first = comm::gather_values(groups.island, std::int64_t{all.rank()}, "islands").front();
  const Place mine{groups.island.rank(), groups.island.size(), groups.across_islands->rank(), first};
  const auto places = comm::gather_values(all, mine, "islands");
  std::map<std::int64_t, std::int64_t> island_of;  // by its first rank
  for (const Place& place : places) {
    if (place.island_size != mine.island_size) {
      refuse(fmt::format("there are islands of {} and of {} ranks; start as many ranks on every host, or give a number",
                         mine.island_size, place.island_size));
    }
    if (island_of.emplace(place.first, place.across).first->second != place.across)
      refuse("the ranks of the hosts are in different orders; number them host by host, or give a number");
  }
}

void place_parts(const InitializeOptions& options, const Groups& groups, Inventory& inventory) {
  if (!groups.model_parallel) return;
  for (auto* item : items_of(inventory)) {
    if (const auto dim = options.placement(item->name).split_dim) item->split.dim = checked_dim(*item, *dim);
    item->split.rank = groups.model_parallel_rank();
  }
}

void agree_on_parts(Groups& groups, Inventory& inventory) {
  if (!groups.model_parallel) return;
  const auto items = items_of(inventory);
  if (const auto difference = first_difference(describe(inventory), groups.all, "placement")) {
    throw ModelError(
        fmt::format("the ranks have different models or placements: {}; what "
                    "InitializeOptions::placement does not split is the same on all ranks",
                    *difference));
  }
  std::vector<std::int64_t> mine;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto& [tensor, split] = std::tie(items[i]->tensor, items[i]->split);
    if (!split.is_split()) continue;
    mine.push_back(tensor.size(split.dim));
    // Buffers are saved row by row.
    const auto order = i < inventory.parameters.size()
                           ? order_of(tensor)
                           : std::vector<std::int64_t>(static_cast<std::size_t>(tensor.dim()), -1);
    mine.insert(mine.end(), order.begin(), order.end());
  }
  Group& group = *groups.model_parallel;
  const auto size = static_cast<std::size_t>(group.size());
  std::vector<std::int64_t> all(mine.size() * size);
  const std::vector<std::int64_t> counts(size, static_cast<std::int64_t>(mine.size()));
  group.all_gather(mine.data(), all.data(), counts, DType::kInt64, {.label = "placement"}).wait();
  std::size_t next = 0;
  for (auto* item : items) {
    if (!item->split.is_split()) continue;
    const auto dims = static_cast<std::size_t>(item->tensor.dim());
    for (std::size_t rank = 0; rank < size; ++rank) {
      const auto* const theirs = all.data() + rank * mine.size() + next;
      item->split.sizes.push_back(theirs[0]);
      take_order(*item, {theirs + 1, dims}, rank);
    }
    auto& order = item->split.dim_order;
    if (std::ranges::is_sorted(order)) order.clear();
    next += 1 + dims;
  }
}

void make_replicated_alike(Groups& groups, const Inventory& inventory, bool verify) {
  if (!groups.model_parallel) return;
  const at::NoGradGuard no_grad;
  Group& group = *groups.model_parallel;
  for (const auto& item : inventory.parameters) {
    if (item.split.is_split() || item.tensor.numel() == 0) continue;
    intercept::write_values(item.tensor);
    const at::Tensor values = item.tensor.detach().contiguous();
    if (verify) {
      if (have_same_values(values, group, item.name)) continue;
      throw ModelError(fmt::format(
          "parameter '{}', which InitializeOptions::placement does not split, has other initial values on some "
          "model-parallel ranks; seed them alike, or set zerotorch.verify_parameters to \"broadcast\"",
          item.name));
    }
    group
        .broadcast(values.mutable_data_ptr(), static_cast<std::int64_t>(values.nbytes()), DType::kByte, 0,
                   {.label = item.name})
        .wait();
    if (!values.is_alias_of(item.tensor)) item.tensor.detach().copy_(values);
  }
}

}  // namespace zero::engine
