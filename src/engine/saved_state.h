#pragma once
// The `state` of a checkpoint: counters, seed, rates, what is frozen or unused. Written and read here alone
// (docs/checkpoint_format.md).
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"

namespace zero::engine {

/// Of an engine between two steps, as JSON. Local.
std::string state_text(const Engine::Impl& impl);

/// Of a checkpoint, of any version that is read. Everything may be missing or nonsense: then it throws CheckpointError.
class SavedState {
 public:
  /// `text` is JSON; `folder`, the checkpoint's, for errors.
  SavedState(const std::string& text, std::string folder);

  /// A whole number from 0 to `most`.
  std::int64_t count(const char* key, std::int64_t most = std::int64_t{1} << 53) const;
  std::int64_t skipped_steps(std::int64_t most) const;
  /// Micro-batches of all data-parallel ranks that made a step.
  std::int64_t window() const;
  std::uint64_t seed() const;
  /// Learning rates that were set by hand, of each of `groups` parameter groups; nothing when the checkpoint has
  /// another number of groups, which is then in `*saved_groups`.
  std::optional<std::vector<std::optional<double>>> rates(std::size_t groups, std::size_t* saved_groups) const;
  /// A list of names; empty when there is none.
  std::vector<std::string> names(const char* key) const;
  /// Updates of parameters that had another number of them than "optimizer_steps", at most `most`.
  std::vector<std::pair<std::string, std::int64_t>> parameter_steps(std::int64_t most) const;
  /// As it is; null when there is none.
  nlohmann::json value(const char* key) const;
  [[noreturn]] void refuse(std::string_view key) const;

 private:
  std::int64_t count_in(const nlohmann::json& object, const char* key, std::int64_t most) const;
  std::optional<double> rate(const nlohmann::json& value, const char* key) const;

  nlohmann::json json_;
  std::string folder_;
};

}  // namespace zero::engine
