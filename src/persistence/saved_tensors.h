#pragma once
// The tensors of a checkpoint under the names that this model has for them.
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "engine/engine_impl.h"

namespace zero::persistence {

class SavedTensors {
 public:
  using Names = std::map<std::string, std::string>;

  /// `renamed`: from names of this model to those in the checkpoint, where they differ. All outlive this object.
  /// `island`: whose values they are, where the islands of the checkpoint have different ones.
  SavedTensors(const Engine::Impl& impl, const checkpoint::Manifest& manifest, const Names& renamed, int island = 0);

  const checkpoint::TensorInfo& info(std::size_t tensor) const { return manifest_.tensors[tensor].info; }

  /// Index of the tensor, or nothing.
  std::optional<std::size_t> find(std::string_view kind, const std::string& name) const;
  /// As find() for a parameter under any of its names.
  std::optional<std::size_t> find_parameter(std::string_view kind, int parameter) const;
  /// True when the optimizer of the checkpoint had a parameter, and its states, should it have any, are there.
  bool has_states(int parameter) const;
  /// Names of the states that the optimizer of the checkpoint kept.
  std::set<std::string> states() const;

  /// This model's parameters by their names in the checkpoint.
  std::map<std::string, int> parameters_by_saved_name() const;
  /// Those of this model that the checkpoint calls by one of `names`.
  std::vector<int> parameters_among(const std::vector<std::string>& names) const;
  /// Indices of weights and buffers in the order of their kinds and names.
  std::vector<std::size_t> weights_and_buffers() const;

 private:
  const Engine::Impl& impl_;
  const checkpoint::Manifest& manifest_;
  const Names& renamed_;
  std::map<std::string, std::size_t> index_;           ///< by "kind/name"
  std::map<std::string, std::string> owner_of_alias_;  ///< to the name its tensor has
};

}  // namespace zero::persistence
