#pragma once
// WeightSource: a model's whole tensors by name, in any of the formats that Engine::load_full_weights takes.
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/element_type.h"
#include "io/file_system.h"

namespace zero::persistence {

struct WeightInfo {
  std::string name;
  checkpoint::ElementType dtype = checkpoint::ElementType::kF32;
  std::vector<std::int64_t> shape;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual const std::vector<WeightInfo>& tensors() const = 0;
  /// Whole tensor `index`, on the host, contiguous. Throws CheckpointError, IoError.
  virtual at::Tensor read(std::size_t index) = 0;
};

/// By what the file is: safetensors (one file, an index, or a folder), Python's torch.save of a state dict, or
/// C++'s torch::save of a module. Throws CheckpointError that says what the file is instead; IoError.
std::unique_ptr<WeightSource> open_weights(io::FileSystem& files, const std::string& path);

}  // namespace zero::persistence
