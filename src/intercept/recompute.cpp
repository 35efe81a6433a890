// A part of a forward as one node of the graph, which keeps the inputs and runs the part again in backward.
//
// The first run makes a graph, too. It shows what the part depends on besides its inputs: parameters and other tensors
// that the function has captured. They become inputs of the node, so that each gets one gradient from it as it
// would from any operator: hooks, sums over several uses and gradients that are taken work as ever. Then that graph,
// with the intermediate results, is dropped.
#include "zero/recompute.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <ATen/SequenceNumber.h>
#include <ATen/ThreadLocalState.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/custom_class.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "intercept/random_replay.h"
#include "zero/errors.h"

namespace zero::intercept {
namespace {

using detail::Recomputable;
using detail::Tensors;
using torch::autograd::AccumulateGrad;
using torch::autograd::AutogradContext;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;
using torch::autograd::impl::gradient_edge;

/// Where a gradient goes: a node and which of its inputs.
using Place = std::pair<const Node*, std::uint32_t>;
Place place_of(const Edge& edge) { return {edge.function.get(), edge.input_nr}; }

bool is_leaf(const Node* node) { return dynamic_cast<const AccumulateGrad*>(node) != nullptr; }

/// The graph of a run, between its outputs and what it depends on.
struct Graph {
  edge_list leaves;        ///< out of it, each once, in the order in which they are met
  std::uint64_t path = 0;  ///< a hash of the operators in it
};

/// Follows the graph from `outputs`; `is_outside` tells the nodes at which it ends, besides leaves.
template <class IsOutside>
Graph follow(const Tensors& outputs, IsOutside is_outside) {
  Graph graph;
  std::vector<const Node*> found;
  std::unordered_set<const Node*> seen;
  std::set<Place> left;
  const auto take = [&](const Edge& edge) {
    const Node* node = edge.function.get();
    if (!node) return;
    if (is_leaf(node) || is_outside(edge)) {
      if (left.insert(place_of(edge)).second) graph.leaves.push_back(edge);
    } else if (seen.insert(node).second) {
      found.push_back(node);
    }
  };
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad()) take(gradient_edge(output));
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string name = found[i]->name();
    graph.path = XXH3_64bits_withSeed(name.data(), name.size(), graph.path + found[i]->num_outputs());
    for (const Edge& edge : found[i]->next_edges()) take(edge);
  }
  return graph;
}

/// Of values, shape and dtype; 0 where they are not looked at.
std::uint64_t hash_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu() || tensor.layout() != at::kStrided) return 0;
  const at::NoGradGuard no_grad;
  const at::Tensor values = tensor.detach().contiguous();
  std::uint64_t hash = XXH3_64bits(values.const_data_ptr(), values.nbytes());
  for (const std::int64_t size : values.sizes()) hash = XXH3_64bits_withSeed(&size, sizeof size, hash);
  return hash + static_cast<std::uint64_t>(values.scalar_type());
}

std::vector<std::uint64_t> hashes_of(const Tensors& tensors) {
  std::vector<std::uint64_t> hashes;
  for (const at::Tensor& tensor : tensors) hashes.push_back(hash_of(tensor));
  return hashes;
}

/// -1 for what has no version.
std::int64_t version_of(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.is_inference() ? -1 : static_cast<std::int64_t>(tensor._version());
}

std::vector<c10::Device> devices_beside_cpu(const Tensors& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) continue;
    if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) devices.push_back(tensor.device());
  }
  return devices;
}

/// Tensors that are left as they were.
class Kept {
 public:
  explicit Kept(const Tensors& tensors) : tensors_(tensors) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& tensor : tensors_) values_.push_back(tensor.detach().clone());
  }
  ~Kept() {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      try {
        tensors_[i].variable_data().copy_(values_[i]);
      } catch (...) {  // the same sizes and dtype as before, or the module has replaced its buffer
      }
    }
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

 private:
  const Tensors& tensors_;
  Tensors values_;
};

/// While alive, the graph ends at these places: nothing behind them runs, and nothing that the user has hooked to them.
/// Both do when the outer backward gets there.
class EndOfGraph {
 public:
  explicit EndOfGraph(const edge_list& edges) {
    std::set<Node*> nodes;
    for (const Edge& edge : edges) nodes.insert(edge.function.get());
    for (Node* node : nodes) {
      ends_.emplace_back(node);
      ends_.back().swap();
    }
  }
  ~EndOfGraph() {
    for (End& end : ends_) end.swap();
  }
  EndOfGraph(const EndOfGraph&) = delete;
  EndOfGraph& operator=(const EndOfGraph&) = delete;

 private:
  struct End {
    explicit End(Node* which) : node(which) {}
    void swap() {
      edges.swap(node->next_edges());
      // Where nothing is hooked libtorch gives one empty list for all.
      if (!hooks.empty() || !node->tensor_pre_hooks().empty()) hooks.swap(node->tensor_pre_hooks());
      retained.swap(node->retains_grad_hooks());
    }
    Node* node;
    edge_list edges;
    std::decay_t<decltype(std::declval<Node>().tensor_pre_hooks())> hooks;
    std::decay_t<decltype(std::declval<Node>().retains_grad_hooks())> retained;
  };
  std::vector<End> ends_;
};

[[noreturn]] void is_another_run(const std::string& what) {
  throw ModelError(
      fmt::format("zero::recompute: in backward the function {}; it must compute what it has computed in forward: no "
                  "captured value, training flag or global state may change in between",
                  what));
}

/// A part of a forward, between its two runs.
class Segment : public torch::CustomClassHolder {
 public:
  Segment(Recomputable what, Tensors inputs) : what_(std::move(what)), inputs_(std::move(inputs)) {
    devices_ = devices_beside_cpu(inputs_);
  }

  /// The first run: its outputs, with their graph. Throws ModelError.
  Tensors run() {
    std::vector<std::int64_t> versions;
    for (const at::Tensor& input : inputs_) versions.push_back(version_of(input));
    const Tensors arguments = cut(inputs_);
    const std::uint64_t begin = at::sequence_number::peek();
    Tensors outputs;
    {
      std::optional<RandomRecording> recording;
      if (what_.options.preserve_random) recording.emplace(devices_);
      outputs = what_.run(arguments);
      if (recording) random_ = recording->state(), scopes_ = recording->take_scopes();
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (version_of(inputs_[i]) == versions[i]) continue;
      throw ModelError(fmt::format(
          "zero::recompute: the function changes its input {} in place; backward could not run it again from there: "
          "give it a clone()",
          i));
    }
    Graph graph = follow(outputs, [&](const Edge& edge) { return is_from_before(*edge.function, begin); });
    path_ = graph.path;
    set_boundary(std::move(graph.leaves), arguments);
    if (what_.options.compare) hashes_ = hashes_of(outputs);
    return outputs;
  }

  /// The inputs, which autograd keeps from here on.
  Tensors take_inputs() { return std::exchange(inputs_, {}); }

  /// What the node depends on: inputs that have a graph, parameters, and stand-ins for the other tensors of before.
  variable_list parents(const Tensors& inputs) const {
    variable_list parents;
    for (const std::size_t i : cut_) parents.push_back(inputs[i]);
    for (const Edge& edge : boundary_) {
      if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(edge.function.get())) {
        parents.push_back(leaf->variable);
      } else {
        const at::NoGradGuard no_grad;
        at::Tensor stand_in = at::empty({0}, at::kFloat);
        torch::autograd::impl::set_gradient_edge(stand_in, edge);
        parents.push_back(std::move(stand_in));
      }
    }
    return parents;
  }

  /// Keeps of the outputs of run() those that have a gradient, without their graph, for the node to give out. False:
  /// none has.
  bool take_outputs(const Tensors& outputs, const Tensors& inputs) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& output : outputs) {
      is_differentiable_.push_back(output.defined() && output.requires_grad());
      if (!is_differentiable_.back()) continue;
      outputs_.push_back(is_of_others(output, inputs) ? output.detach().clone() : output.variable_data());
    }
    return !outputs_.empty();
  }
  Tensors give_outputs() { return std::exchange(outputs_, {}); }
  bool is_differentiable(std::size_t output) const { return is_differentiable_[output]; }

  /// The second run, and the gradients of parents() from those of the outputs (undefined: none). Throws ModelError.
  variable_list gradients(const Tensors& inputs, const variable_list& of_outputs) {
    const at::ThreadLocalStateGuard as_in_forward(state_);
    const at::AutoGradMode with_graph(true);
    check_leaves();
    const Tensors arguments = cut(inputs);
    const Tensors outputs = run_again(arguments);
    edge_list places;
    for (const std::size_t i : cut_) places.push_back(gradient_edge(arguments[i]));
    places.insert(places.end(), boundary_.begin(), boundary_.end());
    check_graph(outputs, places);
    edge_list roots;
    variable_list given;
    std::size_t next = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!is_differentiable_[i]) continue;
      const at::Tensor& gradient = of_outputs[next++];
      if (!gradient.defined()) continue;
      roots.push_back(gradient_edge(outputs[i]));
      given.push_back(gradient);
    }
    if (roots.empty()) return variable_list(places.size());
    const EndOfGraph here(boundary_);
    return torch::autograd::Engine::get_default_engine().execute(roots, given, /*keep_graph=*/false,
                                                                 /*create_graph=*/false, /*accumulate_grad=*/false,
                                                                 places);
  }

 private:
  static bool is_from_before(const Node& node, std::uint64_t begin) {
    return node.sequence_nr() < begin || node.thread_id() != at::RecordFunction::currentThreadId();
  }

  /// Inputs that have a graph without it, so that the runs' own graphs end there.
  Tensors cut(const Tensors& inputs) {
    cut_.clear();
    Tensors arguments = inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined() || !inputs[i].requires_grad() || inputs[i].is_leaf()) continue;
      arguments[i] = inputs[i].detach().requires_grad_(true);
      cut_.push_back(i);
    }
    return arguments;
  }

  /// True where `output` is, or shares the memory of, what the function was given.
  bool is_of_others(const at::Tensor& output, const Tensors& inputs) const {
    if (!output.has_storage()) return true;
    const auto same = [&](const at::Tensor& tensor) {
      return tensor.defined() && tensor.has_storage() &&
             tensor.storage().unsafeGetStorageImpl() == output.storage().unsafeGetStorageImpl();
    };
    return std::any_of(inputs.begin(), inputs.end(), same) ||
           std::any_of(boundary_.begin(), boundary_.end(), [&](const Edge& edge) {
             const auto* leaf = dynamic_cast<const AccumulateGrad*>(edge.function.get());
             return leaf && same(leaf->variable);
           });
  }

  void set_boundary(edge_list leaves, const Tensors& arguments) {
    std::set<Place> cut;
    for (const std::size_t i : cut_) cut.insert(place_of(gradient_edge(arguments[i])));
    for (Edge& edge : leaves) {
      if (cut.contains(place_of(edge))) continue;
      const auto* leaf = dynamic_cast<const AccumulateGrad*>(edge.function.get());
      versions_.push_back(leaf ? version_of(leaf->variable) : -1);
      boundary_.push_back(std::move(edge));
    }
  }

  void check_leaves() const {
    for (std::size_t i = 0; i < boundary_.size(); ++i) {
      const auto* leaf = dynamic_cast<const AccumulateGrad*>(boundary_[i].function.get());
      if (!leaf || version_of(leaf->variable) == versions_[i]) continue;
      throw ModelError(fmt::format(
          "zero::recompute: a parameter of shape [{}] was changed in place between forward and backward; run backward "
          "before the optimizer's step",
          fmt::join(leaf->variable.sizes(), ", ")));
    }
  }

  Tensors run_again(const Tensors& arguments) {
    const Kept buffers(what_.buffers);
    std::optional<RandomReplay> random;
    if (!random_.empty()) random.emplace(random_, scopes_, devices_);
    Tensors outputs = what_.run(arguments);
    if (outputs.size() != is_differentiable_.size()) {
      is_another_run(fmt::format("returned {} tensors, and {} in forward", outputs.size(), is_differentiable_.size()));
    }
    if (hashes_.empty()) return outputs;
    const auto again = hashes_of(outputs);
    for (std::size_t i = 0; i < again.size(); ++i) {
      if (again[i] != hashes_[i]) is_another_run(fmt::format("gave other values for its output {}", i));
    }
    return outputs;
  }

  void check_graph(const Tensors& outputs, const edge_list& places) const {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const bool differentiable = outputs[i].defined() && outputs[i].requires_grad();
      if (differentiable != is_differentiable_[i])
        is_another_run(fmt::format("gave an output {} {} a gradient", i, differentiable ? "with" : "without"));
    }
    std::set<Place> known;
    for (const Edge& edge : places) known.insert(place_of(edge));
    const Graph graph = follow(outputs, [&](const Edge& edge) { return known.contains(place_of(edge)); });
    for (const Edge& edge : graph.leaves) {
      if (!known.contains(place_of(edge))) is_another_run("used a parameter that it did not use in forward");
    }
    if (graph.path != path_) is_another_run("ran other operators");
  }

  Recomputable what_;
  Tensors inputs_;
  Tensors outputs_;                      ///< on their way through the node
  std::vector<bool> is_differentiable_;  ///< by output
  std::vector<c10::Device> devices_;
  at::ThreadLocalState state_;
  RandomState random_;
  std::vector<at::Tensor> scopes_;      ///< of random numbers of their own
  std::vector<std::size_t> cut_;        ///< inputs that have a graph
  edge_list boundary_;                  ///< out of the function, but for those inputs
  std::vector<std::int64_t> versions_;  ///< of its leaves
  std::uint64_t path_ = 0;
  std::vector<std::uint64_t> hashes_;  ///< by output; empty: not compared
};

struct Recomputation : torch::autograd::Function<Recomputation> {
  static variable_list forward(AutogradContext* ctx, const c10::intrusive_ptr<Segment>& segment, at::TensorList) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward(segment->take_inputs());
    ctx->saved_data["segment"] = c10::IValue::make_capsule(segment);
    return segment->give_outputs();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw ModelError(
          "zero::recompute: gradients of gradients (create_graph) are not built; call the function itself, without "
          "recompute");
    }
    const auto segment = c10::static_intrusive_pointer_cast<Segment>(ctx->saved_data["segment"].toCapsule());
    variable_list all = segment->gradients(ctx->get_saved_variables(), gradients);
    all.insert(all.begin(), at::Tensor());  // of the segment itself
    return all;
  }
};

}  // namespace
}  // namespace zero::intercept

namespace zero {

detail::Tensors detail::recompute_tensors(Recomputable what, Tensors inputs) {
  using intercept::Recomputation, intercept::Segment;
  if (!at::GradMode::is_enabled()) return what.run(inputs);
  auto segment = c10::make_intrusive<Segment>(std::move(what), inputs);
  Tensors outputs = segment->run();
  if (!segment->take_outputs(outputs, inputs)) return outputs;
  const Tensors parents = segment->parents(inputs);
  const Tensors through = Recomputation::apply(segment, at::TensorList(parents));
  std::size_t next = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (segment->is_differentiable(i)) outputs[i] = through[next++];
  }
  return outputs;
}

}  // namespace zero
