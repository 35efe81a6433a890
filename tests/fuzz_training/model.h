#pragma once
// The random model of a program: what awkward models do with their parameters, layer by layer.
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "program.h"

namespace zero::fuzz_training {

/// Which micro-batch a forward is for: routes, lengths and data depend on nothing else.
struct MicroBatch {
  std::uint64_t index = 0;  ///< global: the same whatever the number of ranks
  int window = 0;           ///< optimizer steps so far
  int block = 0;  ///< in training of one network: the first of as many is rank 0's, however many ranks there are
  int rank = 0;   ///< that has it
};

inline constexpr const char* kBoom = "boom: thrown by the fuzzer";

struct FuzzModelImpl : torch::nn::Module {
  /// `seed` is of the initial values, which zero::initialize makes those of rank 0.
  FuzzModelImpl(const std::vector<Layer>& layers, int dim, std::uint64_t seed);

  /// [batch, dim] -> [batch, dim]. Terms of the loss that layers add themselves are in `extra_loss`.
  at::Tensor forward(at::Tensor x, const MicroBatch& micro_batch);

  /// Throws behind layer `layer` (modulo their number) of the next forwards: in forward or in backward.
  enum class Boom { kNone, kForward, kBackward };
  void set_boom(Boom boom, int layer) {
    boom_ = boom;
    boom_layer_ = layer;
  }

  /// Each parameter once, under its first name.
  const std::vector<std::pair<std::string, at::Tensor>>& unique_parameters();

  at::Tensor extra_loss;

 private:
  using Part = std::function<at::Tensor(const at::Tensor&, const MicroBatch&)>;
  template <class Holder>
  Holder added(const std::string& name, Holder module) {
    register_module(name, module);
    return module;
  }
  Part make_part(const Layer& layer);
  Part make_experts(const Layer& layer, int chosen);
  Part make_heads(const Layer& layer);
  Part make_mask(const Layer& layer);
  Part make_lazy(const Layer& layer);
  Part make_embedding(const Layer& layer);
  Part make_parameter_part(const Layer& layer);
  torch::nn::Linear linear_of(const Layer& layer, bool registered_again);
  std::string name(const Layer& layer, const std::string& what = {}) const;

  int dim_;
  std::vector<Part> parts_;
  std::map<int, torch::nn::Linear> linears_;  ///< by layer id, for those that use them again
  std::vector<std::pair<std::string, at::Tensor>> unique_;
  Boom boom_ = Boom::kNone;
  int boom_layer_ = 0;
};
TORCH_MODULE(FuzzModel);

/// Numbers in [-1, 1] that depend on the seed only.
at::Tensor noise(at::IntArrayRef sizes, std::uint64_t seed);

}  // namespace zero::fuzz_training
