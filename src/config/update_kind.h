#pragma once
// The choices of "zerotorch.update": what each takes, what it leaves undone and what it excludes.
// sharding/update/schedule.h carries them out.
#include <span>
#include <string_view>

#include "zero/config.h"

namespace zero::config {

struct Exclusion;

struct UpdateKind {
  std::string_view name;
  std::string_view summary = {};   ///< empty: the usual one
  bool keeps_gradients = true;     ///< until step(); else they are used up in backward
  int sets_of_sums = 1;            ///< of gradients: a second one for the step that comes
  bool second_parameters = false;  ///< this rank's are in memory twice: as they are, and as an update makes them
  bool second_states = false;      ///< so are states, in their file
  bool overlaps = false;           ///< with forward or backward
  bool ends_after_step = false;    ///< what reads or saves weights has to finish it
};

const UpdateKind& kind_of(Config::Zerotorch::Update update);

/// The one that keeps no gradients.
Config::Zerotorch::Update update_without_gradients();

/// A part of exclusions().
std::span<const Exclusion> update_exclusions();

}  // namespace zero::config
