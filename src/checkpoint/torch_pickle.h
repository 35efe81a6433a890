#pragma once
// The pickle inside an archive of Python's torch.save, as far as plain values and tensors go. Nothing of it
// is executed: what would make an object of a class becomes an opaque value with the class's name.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/element_type.h"

namespace zero::checkpoint {

/// A view of a storage, which is a record of the archive of its own: "data/<storage>".
struct PickledTensor {
  ElementType dtype = ElementType::kF32;
  std::string storage;
  std::int64_t storage_numel = 0;
  std::int64_t offset = 0;  ///< elements
  std::vector<std::int64_t> shape, strides;
};

struct PickledValue;
using PickledPointer = std::shared_ptr<PickledValue>;

struct PickledValue {
  enum class Kind : std::uint8_t { kNone, kBool, kInt, kFloat, kString, kList, kDict, kTensor, kObject };
  Kind kind = Kind::kNone;
  std::int64_t integer = 0;           ///< kBool, kInt
  double number = 0;                  ///< kFloat
  std::string text;                   ///< kString; kObject: the class's full name
  std::vector<PickledPointer> items;  ///< kList (and tuples); kDict: key, value, key, value, ...
  PickledTensor tensor;
  int depth = 0;  ///< of the values in it
};

/// Parses the text of "data.pkl". Throws CheckpointError (with `what`) for anything torch.save does not
/// write; every view lies inside its storage. Memory: a small multiple of the text's length.
PickledPointer parse_torch_pickle(std::string_view text, const std::string& what);

/// The tensors of a state dict by name: the dictionary itself, or the one under "state_dict",
/// "model_state_dict", "model" or "module" in it. Throws CheckpointError that says what is there instead.
std::vector<std::pair<std::string, PickledTensor>> tensors_of_state_dict(const PickledValue& value,
                                                                         const std::string& what);

}  // namespace zero::checkpoint
