#pragma once
// Where the parts of this engine's model keep what backward needs, if the configuration says so.
#include <memory>

#include "engine/groups.h"
#include "layout/placement.h"
#include "storage/ledger.h"
#include "zero/activations.h"
#include "zero/config.h"

namespace zero::engine {

/// The home of zero::recompute() from now on until this is destroyed, or another one takes its place.
class UsedActivationHome {
 public:
  /// Nothing where the configuration asks for nothing, or for what is so anyway. Memory of the host counts in `ledger`.
  /// Throws IoError.
  UsedActivationHome(const Config& config, const layout::Placement& place, const Groups& groups, c10::Device module,
                     storage::Ledger& ledger);
  ~UsedActivationHome();
  UsedActivationHome(const UsedActivationHome&) = delete;
  UsedActivationHome& operator=(const UsedActivationHome&) = delete;

  std::string description() const { return home_ ? home_->description() : std::string(); }

 private:
  std::shared_ptr<storage::Ledger*> ledger_;  ///< tensors that are kept may outlive it
  std::shared_ptr<ActivationHome> home_;
};

}  // namespace zero::engine
