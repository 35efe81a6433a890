#pragma once
// Inventory: what a model holds, with tied tensors seen once.
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/split.h"
#include "layout/units.h"
#include "zero/group.h"
#include "zero/model_view.h"

namespace zero::engine {

struct Inventory {
  struct Named {
    std::string name;  ///< the first name the tensor was seen under
    at::Tensor tensor;
    std::vector<std::string> aliases = {};  ///< of a buffer: its further names
    std::vector<std::int64_t> sizes = {};   ///< as registered
    bool in_parameter_dtype = false;        ///< of a buffer: goes to kernels together with parameters
    bool persistent = true;                 ///< of a buffer: saved, loaded and exported
    Split split = {};                       ///< over model-parallel ranks
  };
  std::vector<Named> parameters;                     ///< distinct, in registration order
  std::vector<Named> buffers;                        ///< distinct, in registration order
  std::map<std::string, int, std::less<>> index_of;  ///< every name, aliases included, to `parameters`
  layout::ModuleNode tree;
  std::vector<const void*> registered;  ///< identity of every registered parameter, as ModelView::walk goes
};

/// Whether a name is one of `pattern`, which may begin or end with "*".
bool name_matches(std::string_view pattern, std::string_view name);

/// Local. Throws ModelError for undefined or non-leaf parameters, and for a name that two tensors have.
Inventory take_inventory(const ModelView& model);

/// Throws ModelError for a parameter that another engine has, and for memory that other tensors share with a
/// parameter: they would keep the old values. Local.
void check_memory(const Inventory& inventory);

/// True while the model has the parameters it had. Allocates nothing. Local.
bool is_unchanged(const Inventory& inventory, const ModelView& model);
/// Throws ModelError naming what was added, removed or replaced. Local.
[[noreturn]] void throw_module_changed(const Inventory& inventory, const ModelView& model);

/// Names, shapes, dtypes and requires_grad of all ranks' models must agree. *Collective.* Throws ModelError
/// on every rank, naming the first difference from rank 0.
void check_agreement(const Inventory& inventory, Group& group);

/// Every key must be the name of a parameter or a buffer: another one would do nothing, silently. `option`:
/// whose keys they are. Throws CheckpointError.
void require_known_names(const Inventory& inventory, const std::map<std::string, std::string>& names,
                         std::string_view option);

/// The parameter called `name`; throws ModelError with the nearest name.
int find_parameter(const Inventory& inventory, std::string_view name);

}  // namespace zero::engine
