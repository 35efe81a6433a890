#include "model.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <set>
#include <stdexcept>

namespace zero::fuzz_training {
namespace {

using I = Ingredient;
constexpr int kVocab = 7;
constexpr int kSparseRows = 300;  ///< so many that a micro-batch reads a small part

struct BoomInBackward : torch::autograd::Function<BoomInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*, const torch::autograd::tensor_list&) {
    throw std::runtime_error(kBoom);
  }
};

int pick(const MicroBatch& micro_batch, int id, int of) {
  return static_cast<int>(mixed(micro_batch.index, static_cast<std::uint64_t>(id) + 1000) %
                          static_cast<std::uint64_t>(of));
}

}  // namespace

at::Tensor noise(at::IntArrayRef sizes, std::uint64_t seed) {
  at::Tensor out = at::empty(sizes, at::kFloat);
  Random random(mixed(seed, 5));
  auto* values = out.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < out.numel(); ++i) values[i] = static_cast<float>(random.next() >> 40) * 0x1p-23f - 1.0f;
  return out;
}

FuzzModelImpl::FuzzModelImpl(const std::vector<Layer>& layers, int dim, std::uint64_t seed) : dim_(dim) {
  at::manual_seed(seed);
  for (const Layer& layer : layers) parts_.push_back(make_part(layer));
}

std::string FuzzModelImpl::name(const Layer& layer, const std::string& what) const {
  return fmt::format("{}{}{}", name_of(layer.kind), layer.id, what.empty() ? "" : "_" + what);
}

torch::nn::Linear FuzzModelImpl::linear_of(const Layer& layer, bool registered_again) {
  const auto found = linears_.find(layer.other);
  if (found == linears_.end()) {  // the shrinker has removed it
    return linears_.insert_or_assign(layer.id, added(name(layer), torch::nn::Linear(dim_, dim_))).first->second;
  }
  if (registered_again) register_module(name(layer), found->second);
  return found->second;
}

FuzzModelImpl::Part FuzzModelImpl::make_part(const Layer& layer) {
  using torch::nn::Linear;
  switch (layer.kind) {
    case I::kLinear: {
      auto linear = added(name(layer), Linear(dim_, dim_));
      linears_.insert_or_assign(layer.id, linear);
      return [linear](const at::Tensor& x, const MicroBatch&) mutable { return x + at::tanh(linear(x)); };
    }
    case I::kWide: {
      const int hidden = dim_ * layer.size + 1;
      auto up = added(name(layer, "up"), Linear(dim_, hidden));
      auto down = added(name(layer, "down"), Linear(torch::nn::LinearOptions(hidden, dim_).bias(false)));
      return [up, down](const at::Tensor& x, const MicroBatch&) mutable { return x + down(at::gelu(up(x))); };
    }
    case I::kNorm: {
      auto norm = added(name(layer), torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim_}).eps(0.1)));
      return [norm](const at::Tensor& x, const MicroBatch&) mutable { return norm(x); };
    }
    case I::kTied:
    case I::kReuse: {
      auto linear = linear_of(layer, layer.kind == I::kTied);
      return [linear](const at::Tensor& x, const MicroBatch&) mutable {
        return x + at::tanh(linear(at::tanh(linear(x))));
      };
    }
    case I::kLayerDrop: {
      auto linear = added(name(layer), Linear(dim_, dim_));
      return [linear, id = layer.id](const at::Tensor& x, const MicroBatch& m) mutable {
        return pick(m, id, 3) == 0 ? x : x + at::tanh(linear(x));
      };
    }
    case I::kUnroll: {
      auto cell = added(name(layer), Linear(dim_, dim_));
      return [cell, id = layer.id](const at::Tensor& x, const MicroBatch& m) mutable {
        at::Tensor state = x;
        for (int i = pick(m, id, 4); i >= 0; --i) state = at::tanh(cell(state));
        return x + state;
      };
    }
    case I::kBuffer: {
      auto buffer = register_buffer(name(layer), at::zeros({dim_}));
      auto statistic = register_buffer(name(layer) + "_statistic", at::zeros({}));
      return [buffer, statistic](const at::Tensor& x, const MicroBatch& m) mutable {
        const at::NoGradGuard no_grad;
        buffer.fill_(0.05 * (m.window % 4));
        // Of rank 0's batches; what other ranks make of theirs must not be seen. Small integers, exact in bf16.
        if (m.block > 0 && m.index % m.block == 0) statistic.add_(1 + m.index / m.block % 3).remainder_(16);
        if (m.block > 0 && m.rank > 0) statistic.add_(32);
        const at::Tensor offset = m.block > 0 ? at::zeros({}, statistic.options()) : statistic * 0.125;
        const at::Tensor scale = (1 + buffer + offset).to(x.scalar_type());
        const at::AutoGradMode grad(true);
        return x * scale;
      };
    }
    case I::kTop1:
      return make_experts(layer, 1);
    case I::kTop2:
      return make_experts(layer, 2);
    case I::kHeads:
      return make_heads(layer);
    case I::kMask:
      return make_mask(layer);
    case I::kLazy:
      return make_lazy(layer);
    case I::kEmbedding:
    case I::kSparse:
      return make_embedding(layer);
    default:
      return make_parameter_part(layer);
  }
}

/// Routed experts: ranks use different ones, and some are used by none.
FuzzModelImpl::Part FuzzModelImpl::make_experts(const Layer& layer, int chosen) {
  std::vector<torch::nn::Linear> experts;
  for (int e = 0; e < layer.size; ++e)
    experts.push_back(added(name(layer, "expert" + std::to_string(e)), torch::nn::Linear(dim_, dim_)));
  return [experts, chosen, id = layer.id](const at::Tensor& x, const MicroBatch& m) mutable {
    at::Tensor out = x;
    const int count = static_cast<int>(experts.size()), first = pick(m, id, count);
    for (int c = 0; c < chosen; ++c) out = out + at::tanh(experts[(first + c) % count](x)) / chosen;
    return out;
  };
}

FuzzModelImpl::Part FuzzModelImpl::make_heads(const Layer& layer) {
  std::vector<torch::nn::Linear> heads;
  for (int h = 0; h < layer.size; ++h)
    heads.push_back(added(name(layer, "head" + std::to_string(h)), torch::nn::Linear(dim_, 1 + h)));
  return [this, heads, id = layer.id](const at::Tensor& x, const MicroBatch& m) mutable {
    const int chosen = pick(m, id, static_cast<int>(heads.size()) + 1);  // the last: none
    if (chosen < static_cast<int>(heads.size())) {
      const at::Tensor term = heads[chosen](x).to(at::kFloat).square().mean();
      extra_loss = extra_loss.defined() ? extra_loss + term : term;
    }
    return x;
  };
}

namespace {

/// The sum of squares, with a gradient that is only noted to be negated.
struct NegatedGradient : torch::autograd::Function<NegatedGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& weight) {
    context->save_for_backward({weight});
    return weight.square().sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {at::_neg_view(context->get_saved_variables()[0] * gradients[0] * -2)};
  }
};

/// Nothing, with a gradient of zeros that has no memory.
struct ZeroGradient : torch::autograd::Function<ZeroGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& weight) {
    context->save_for_backward({weight});
    return at::zeros({}, weight.options());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list&) {
    const at::Tensor weight = context->get_saved_variables()[0];
    return {at::_efficientzerotensor(weight.sizes(), weight.options())};
  }
};

}  // namespace

/// A parameter whose gradient is no ordinary tensor: one element expanded, a negated view, zeros without memory.
FuzzModelImpl::Part FuzzModelImpl::make_lazy(const Layer& layer) {
  auto weight = register_parameter(name(layer), at::randn({dim_, 2}).mul_(0.3));
  return [this, weight, kind = layer.size % 3](const at::Tensor& x, const MicroBatch&) {
    const at::Tensor sum = kind == 0   ? weight.sum()
                           : kind == 1 ? NegatedGradient::apply(weight)
                                       : ZeroGradient::apply(weight);
    const at::Tensor term = sum.to(at::kFloat) * 0.1;
    extra_loss = extra_loss.defined() ? extra_loss + term : term;
    return x;
  };
}

/// A pruned weight: the mask is written again in every forward.
FuzzModelImpl::Part FuzzModelImpl::make_mask(const Layer& layer) {
  auto weight = register_parameter(name(layer), at::randn({dim_, dim_}).mul_(0.3));
  const at::Tensor mask = noise({dim_, dim_}, 90 + layer.id).gt(-0.3);
  return [weight, mask](const at::Tensor& x, const MicroBatch&) mutable {
    {
      const at::NoGradGuard no_grad;
      weight.mul_(mask.to(weight.device(), weight.scalar_type()));
    }
    return x + at::tanh(at::matmul(x, weight));
  };
}

FuzzModelImpl::Part FuzzModelImpl::make_embedding(const Layer& layer) {
  auto embedding =
      added(name(layer),
            torch::nn::Embedding(torch::nn::EmbeddingOptions(layer.kind == I::kSparse ? kSparseRows : kVocab, dim_)
                                     .sparse(layer.kind == I::kSparse)));
  return [embedding, id = layer.id](const at::Tensor& x, const MicroBatch& m) mutable {
    at::Tensor rows = at::empty({x.size(0)}, at::kLong);
    for (std::int64_t i = 0; i < rows.numel(); ++i)
      rows.mutable_data_ptr<std::int64_t>()[i] = pick(m, id + 10 * static_cast<int>(i), kVocab);
    return x + embedding(rows.to(x.device()));
  };
}

/// Parameters of the module itself: used through views, oddly strided, a scalar, empty, at an offset, unused.
FuzzModelImpl::Part FuzzModelImpl::make_parameter_part(const Layer& layer) {
  switch (layer.kind) {
    case I::kView: {
      auto weight = register_parameter(name(layer), at::randn({dim_, dim_}).mul_(0.2));
      return [weight](const at::Tensor& x, const MicroBatch&) {
        const at::Tensor row = weight.view({-1}).narrow(0, 1, weight.size(1));
        return x + at::matmul(at::matmul(x, weight.t()), weight) + row;
      };
    }
    case I::kTransposed: {
      auto weight = register_parameter(name(layer), at::randn({dim_, layer.size}).mul_(0.2).t());
      return [weight](const at::Tensor& x, const MicroBatch&) {
        return x + at::matmul(at::matmul(x, weight.t()), weight);
      };
    }
    case I::kScalar: {
      auto scale = register_parameter(name(layer), at::ones({}));
      return [scale](const at::Tensor& x, const MicroBatch&) { return x * scale; };
    }
    case I::kEmpty: {
      auto empty = register_parameter(name(layer), at::zeros({0, 5}));
      return [empty](const at::Tensor& x, const MicroBatch&) { return x + empty.sum(); };
    }
    case I::kOdd: {
      auto shift = register_parameter(name(layer), at::randn({2 * dim_ + 1}).narrow(0, dim_, dim_));
      return [shift](const at::Tensor& x, const MicroBatch&) { return x + 0.1 * shift; };
    }
    case I::kUnused: {
      register_parameter(name(layer), at::randn({7, 3}));
      return [](const at::Tensor& x, const MicroBatch&) { return x; };
    }
    default:
      throw std::logic_error("no such layer");
  }
}

at::Tensor FuzzModelImpl::forward(at::Tensor x, const MicroBatch& micro_batch) {
  x = x.to(unique_parameters().front().second.scalar_type());
  extra_loss = at::Tensor();
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    x = parts_[i](x, micro_batch);
    if (boom_ == Boom::kNone || i != static_cast<std::size_t>(boom_layer_) % parts_.size()) continue;
    if (boom_ == Boom::kForward) throw std::runtime_error(kBoom);
    x = BoomInBackward::apply(x);
  }
  return x;
}

const std::vector<std::pair<std::string, at::Tensor>>& FuzzModelImpl::unique_parameters() {
  if (!unique_.empty()) return unique_;
  std::set<const void*> seen;
  for (const auto& item : named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) unique_.emplace_back(item.key(), item.value());
  }
  // Those of the first layer, which every loss depends on, are the first two.
  std::stable_partition(unique_.begin(), unique_.end(), [](const auto& p) { return p.first.starts_with("linear0."); });
  return unique_;
}

}  // namespace zero::fuzz_training
