// A part of a forward as nodes of the graph, one for each result, which keep the inputs and run the part again in
// backward.
//
// The first run makes a graph, too. It shows what a result depends on besides the inputs: other results, parameters and
// other tensors that the function has captured. They become inputs of its node, so that each gets one gradient from it
// as it would from any operator: hooks, sums over several uses and gradients that are taken work as ever. Then that
// graph, with the intermediate results, is dropped.
#include "zero/recompute.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
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
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_set>

#include "intercept/gradient_hook.h"
#include "intercept/kept_results.h"
#include "intercept/random_replay.h"
#include "intercept/second_run.h"
#include "zero/errors.h"

namespace zero::intercept {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::AutogradContext;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;
using torch::autograd::impl::gradient_edge;
using zero::detail::Recomputable;
using zero::detail::Tensors;

/// Where a gradient goes: a node and which of its inputs.
using Place = std::pair<const Node*, std::uint32_t>;
Place place_of(const Edge& edge) { return {edge.function.get(), edge.input_nr}; }

bool is_leaf(const Node* node) { return dynamic_cast<const AccumulateGrad*>(node) != nullptr; }

/// The graph of a run, between its outputs and what it depends on.
struct Graph {
  edge_list leaves;        ///< out of it, each once, in the order in which they are met
  std::uint64_t path = 0;  ///< a hash of the operators in it
  std::unordered_set<const Node*> nodes;
};

/// Follows the graph from `output`; `is_outside` tells the places at which it ends, besides leaves.
template <class IsOutside>
Graph follow(const at::Tensor& output, IsOutside is_outside) {
  Graph graph;
  std::vector<const Node*> found;
  std::set<Place> left;
  const auto take = [&](const Edge& edge) {
    const Node* node = edge.function.get();
    if (!node) return;
    if (is_leaf(node) || is_outside(edge)) {
      if (left.insert(place_of(edge)).second) graph.leaves.push_back(edge);
    } else if (graph.nodes.insert(node).second) {
      found.push_back(node);
    }
  };
  take(gradient_edge(output));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string name = found[i]->name();
    graph.path = XXH3_64bits_withSeed(name.data(), name.size(), graph.path + found[i]->num_outputs());
    for (const Edge& edge : found[i]->next_edges()) take(edge);
  }
  return graph;
}

std::vector<std::uint64_t> hashes_of(const Tensors& tensors) {
  std::vector<std::uint64_t> hashes;
  for (const at::Tensor& tensor : tensors) hashes.push_back(hash_of(tensor));
  return hashes;
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

/// An input inside a part: has a graph, as outside, and may be changed in place.
struct GraphEntry : torch::autograd::Function<GraphEntry> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x.variable_data(); }
  static variable_list backward(AutogradContext*, const variable_list& gradients) { return gradients; }
};

/// While alive, casts of autocast are made anew: one of before would be no part of the second run.
class WithoutCachedCasts {
 public:
  WithoutCachedCasts() { at::autocast::set_autocast_cache_enabled(false); }
  ~WithoutCachedCasts() { at::autocast::set_autocast_cache_enabled(before_); }
  WithoutCachedCasts(const WithoutCachedCasts&) = delete;
  WithoutCachedCasts& operator=(const WithoutCachedCasts&) = delete;

 private:
  bool before_ = at::autocast::is_autocast_cache_enabled();
};

thread_local bool t_added_to_gradients = false;
thread_local int t_second_runs = 0;  ///< under way

struct SecondRun {
  SecondRun() { ++t_second_runs; }
  ~SecondRun() { --t_second_runs; }
  SecondRun(const SecondRun&) = delete;
  SecondRun& operator=(const SecondRun&) = delete;
};

std::unique_ptr<at::ObserverContext> note_accumulation(const at::RecordFunction& function) {
  if (std::string_view(function.name()).find("AccumulateGrad") != std::string_view::npos) t_added_to_gradients = true;
  return nullptr;
}

/// While alive, sees whether a backward() adds to gradients of leaves.
class BackwardWatch {
 public:
  BackwardWatch()
      : before_(std::exchange(t_added_to_gradients, false)),
        handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&note_accumulation).scopes({at::RecordScope::BACKWARD_FUNCTION}))) {}
  ~BackwardWatch() {
    at::removeCallback(handle_);
    t_added_to_gradients = before_;
  }
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  bool has_seen_one() const { return t_added_to_gradients; }

 private:
  bool before_;
  at::CallbackHandle handle_;
};

/// The inputs of a run, and inside of what.
struct Arguments {
  Tensors tensors;
  std::map<std::size_t, at::Tensor> leaves;  ///< of inputs that have a graph: where the run's graph ends
  std::vector<std::int64_t> versions;
};

/// Which inputs have a graph, and get a gradient from their part.
std::vector<bool> have_graphs(const Tensors& inputs) {
  std::vector<bool> have;
  for (const at::Tensor& input : inputs) have.push_back(input.defined() && input.requires_grad() && !input.is_leaf());
  return have;
}

Arguments arguments_of(const Tensors& inputs, const std::vector<bool>& with_graphs) {
  Arguments made{.tensors = inputs};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (with_graphs[i]) {
      made.leaves[i] = inputs[i].detach().requires_grad_(true);
      made.tensors[i] = GraphEntry::apply(made.leaves[i]);
    }
    made.versions.push_back(version_of(made.tensors[i]));
  }
  return made;
}

/// Where a gradient of a part goes: exactly one of these.
struct Source {
  std::optional<std::size_t> input, result;
  Edge outside;
};

/// A result that the part has computed.
struct Result {
  std::vector<Source> sources;
  std::uint64_t path = 0;
};

/// What a second run has made.
struct Again {
  Arguments arguments;
  Tensors outputs;
};

/// The second run of a part with several results, for those whose turn is yet to come in this backward. One at a time:
/// a part is through before the one before it begins.
struct KeptRun {
  std::uint64_t segment = 0;
  int backward = -1;
  std::shared_ptr<Again> made;
};
thread_local KeptRun t_kept;

/// A part of a forward, between its runs.
class Segment : public torch::CustomClassHolder {
 public:
  Segment(Recomputable what, const Tensors& inputs) : what_(std::move(what)), devices_(devices_beside_cpu(inputs)) {}

  /// The results of the first run, each with a node of its own where it was computed. Throws ModelError.
  Tensors run(const Tensors& inputs, const c10::intrusive_ptr<Segment>& self);

  /// The gradients of the sources of result `k` from its own; `kept`: what its node has kept. Throws ModelError.
  variable_list gradients(std::size_t k, Tensors kept, const at::Tensor& gradient);

  const std::vector<Source>& sources(std::size_t k) const { return results_.at(k).sources; }

 private:
  static std::uint64_t next_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
  Tensors run_first(const Arguments& arguments, Tensors& kept);
  void send_home(Tensors& kept);
  void take_home(Tensors& kept) const;
  void check_inputs(const Arguments& arguments) const;
  void find_sources(const Tensors& outputs, const Arguments& arguments, std::uint64_t begin);
  at::Tensor value_for_node(const Tensors& outputs, std::size_t k, const Tensors& inputs) const;
  bool is_of_others(const Tensors& outputs, std::size_t k, const Tensors& inputs) const;
  variable_list parents_of(std::size_t k, const Tensors& inputs, const Tensors& results) const;

  std::shared_ptr<Again> again(Tensors kept);
  std::shared_ptr<Again> run_again(Tensors kept);
  void check_leaves() const;
  void check_graph(const Again& made) const;
  Edge edge_of(const Source& source, const Again& made) const;

  Recomputable what_;
  std::vector<c10::Device> devices_;
  at::ThreadLocalState state_;
  std::optional<RecordedRandom> random_;
  std::map<std::size_t, Result> results_;       ///< by output
  std::map<const Node*, std::int64_t> leaves_;  ///< versions of leaves that were captured
  std::vector<std::uint64_t> hashes_;           ///< by output; empty: not compared
  std::vector<TapedResult> taped_;              ///< their memory is with the nodes
  std::vector<bool> with_graphs_;               ///< by input
  /// Of what the nodes keep, in their order, that which is elsewhere; empty: all of it is with them.
  std::vector<std::shared_ptr<ActivationHome::Kept>> homes_;
  std::size_t outputs_ = 0;
  const std::uint64_t id_ = next_id();
};

/// What the node of a result keeps.
struct Given {
  c10::intrusive_ptr<Segment> segment;
  std::size_t result;
  at::Tensor value;
  Tensors kept;  ///< inputs, and results of operators
};

struct Recomputation : torch::autograd::Function<Recomputation> {
  static at::Tensor forward(AutogradContext* ctx, const std::shared_ptr<Given>& given, at::TensorList) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward(given->kept);
    ctx->saved_data["segment"] = c10::IValue::make_capsule(given->segment);
    ctx->saved_data["result"] = static_cast<std::int64_t>(given->result);
    return given->value;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw ModelError(
          "zero::recompute: gradients of gradients (create_graph) are not built; call the function itself, without "
          "recompute");
    }
    const auto segment = c10::static_intrusive_pointer_cast<Segment>(ctx->saved_data["segment"].toCapsule());
    const auto k = static_cast<std::size_t>(ctx->saved_data["result"].toInt());
    variable_list all(1 + segment->sources(k).size());  // the first one is no tensor
    if (!gradients[0].defined()) return all;
    variable_list of_sources = segment->gradients(k, ctx->get_saved_variables(), gradients[0]);
    std::move(of_sources.begin(), of_sources.end(), all.begin() + 1);
    return all;
  }
};

Tensors Segment::run(const Tensors& inputs, const c10::intrusive_ptr<Segment>& self) {
  const std::uint64_t begin = at::sequence_number::peek();
  with_graphs_ = have_graphs(inputs);
  const Arguments arguments = arguments_of(inputs, with_graphs_);
  Tensors kept = inputs;
  Tensors outputs = run_first(arguments, kept);
  outputs_ = outputs.size();
  find_sources(outputs, arguments, begin);
  send_home(kept);
  if (what_.options.compare) hashes_ = hashes_of(outputs);
  Tensors results(outputs.size());
  // Those that others depend on come first.
  std::vector<std::size_t> order;
  order.reserve(results_.size());
  for (const auto& [k, result] : results_) order.push_back(k);
  const auto number = [&](std::size_t k) { return gradient_edge(outputs[k]).function->sequence_nr(); };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return number(a) < number(b); });
  for (const std::size_t k : order) {
    auto given = std::make_shared<Given>(Given{self, k, value_for_node(outputs, k, inputs), kept});
    const variable_list parents = parents_of(k, inputs, results);
    results[k] = Recomputation::apply(given, at::TensorList(parents));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (results[i].defined()) continue;
    results[i] = outputs[i];
    for (std::size_t j = 0; j < i; ++j) {  // returned twice
      if (results_.contains(j) && outputs[i].is_same(outputs[j])) results[i] = results[j];
    }
    for (const auto& [j, leaf] : arguments.leaves) {
      if (outputs[i].is_same(arguments.tensors[j])) results[i] = inputs[j];
    }
  }
  return results;
}

Tensors Segment::run_first(const Arguments& arguments, Tensors& kept) {
  // Inside a second run this one is a repetition, too.
  std::optional<Kept> buffers;
  if (t_second_runs > 0) buffers.emplace(what_.buffers);
  const WithoutCachedCasts casts;
  const BackwardWatch backward;
  std::optional<RandomRecording> recording;
  if (what_.options.preserve_random) recording.emplace(devices_);
  ResultTape tape(what_.options.keep);
  Tensors outputs = what_.run(arguments.tensors);
  if (recording) random_ = recording->take();
  Tensors values = tape.take_values();
  taped_ = tape.take_results();
  std::move(values.begin(), values.end(), std::back_inserter(kept));
  if (backward.has_seen_one()) {
    throw ModelError(
        "zero::recompute: the function runs a backward() of its own, which adds to gradients of parameters, and would "
        "again in backward; use torch::autograd::grad in it, or call it without recompute");
  }
  check_inputs(arguments);
  return outputs;
}

void Segment::send_home(Tensors& kept) {
  const std::shared_ptr<ActivationHome> home = what_.options.home ? what_.options.home : activation_home();
  if (!home || results_.empty()) return;
  const at::NoGradGuard no_grad;
  homes_.resize(kept.size());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (i < with_graphs_.size() && !with_graphs_[i]) continue;  // who else has it is not known
    homes_[i] = kept[i].defined() ? home->keep(kept[i].detach()) : nullptr;
    if (homes_[i]) kept[i].reset();
  }
}

void Segment::take_home(Tensors& kept) const {
  for (std::size_t i = homes_.size(); i-- > 0;) {  // the last one was kept last
    if (homes_[i]) kept[i] = homes_[i]->take();
  }
}

void Segment::check_inputs(const Arguments& arguments) const {
  for (std::size_t i = 0; i < arguments.tensors.size(); ++i) {
    if (version_of(arguments.tensors[i]) == arguments.versions[i]) continue;
    throw ModelError(
        fmt::format("zero::recompute: the function changes its input {} in place; backward could not run it again from "
                    "there: give it a clone()",
                    i));
  }
}

void Segment::find_sources(const Tensors& outputs, const Arguments& arguments, std::uint64_t begin) {
  const auto is_from_before = [begin](const Edge& edge) {
    return edge.function->sequence_nr() < begin || edge.function->thread_id() != at::RecordFunction::currentThreadId();
  };
  std::map<Place, std::size_t> computed, input_leaves;
  for (const auto& [i, leaf] : arguments.leaves) input_leaves[place_of(gradient_edge(leaf))] = i;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const at::Tensor& output = outputs[k];
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    const auto is_argument = [&](const auto& item) { return output.is_same(arguments.tensors[item.first]); };
    if (std::any_of(arguments.leaves.begin(), arguments.leaves.end(), is_argument)) continue;
    const Edge edge = gradient_edge(output);
    if (!is_from_before(edge)) computed.emplace(place_of(edge), k);  // not again where it is returned twice
  }
  for (const auto& [place, k] : computed) {
    const auto is_other = [&, own = place](const Edge& edge) {
      return place_of(edge) != own && computed.contains(place_of(edge));
    };
    Graph graph = follow(outputs[k], [&](const Edge& edge) { return is_from_before(edge) || is_other(edge); });
    Result& result = results_[k];
    result.path = graph.path;
    for (Edge& edge : graph.leaves) {
      Source source;
      const Place at = place_of(edge);
      if (const auto input = input_leaves.find(at); input != input_leaves.end()) {
        source.input = input->second;
      } else if (const auto other = computed.find(at); other != computed.end()) {
        if (graph.nodes.contains(at.first)) {
          throw ModelError(
              fmt::format("zero::recompute: result {} is computed from result {} and from another one of the operator "
                          "that made that; return a clone() of it",
                          k, other->second));
        }
        source.result = other->second;
      } else {
        if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(edge.function.get()))
          leaves_.emplace(leaf, version_of(leaf->variable));
        source.outside = std::move(edge);
      }
      result.sources.push_back(std::move(source));
    }
  }
}

/// Its memory, and nothing of the graph. One that shares memory with another tensor is a view that libtorch refuses to
/// change in place: the other would not know.
at::Tensor Segment::value_for_node(const Tensors& outputs, std::size_t k, const Tensors& inputs) const {
  const at::NoGradGuard no_grad;
  const at::Tensor value = outputs[k].detach();
  return is_of_others(outputs, k, inputs) ? at::alias(value) : value;
}

bool Segment::is_of_others(const Tensors& outputs, std::size_t k, const Tensors& inputs) const {
  const at::Tensor& output = outputs[k];
  if (!output.has_storage()) return false;
  const auto same = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.has_storage() &&
           tensor.storage().unsafeGetStorageImpl() == output.storage().unsafeGetStorageImpl();
  };
  const auto is_other = [&](const at::Tensor& tensor) { return !tensor.is_same(output) && same(tensor); };
  return std::any_of(inputs.begin(), inputs.end(), same) || std::any_of(outputs.begin(), outputs.end(), is_other) ||
         std::any_of(leaves_.begin(), leaves_.end(),
                     [&](const auto& leaf) { return same(static_cast<const AccumulateGrad*>(leaf.first)->variable); });
}

/// What the node of a result depends on; for tensors of before that are no leaves, stand-ins with their place.
variable_list Segment::parents_of(std::size_t k, const Tensors& inputs, const Tensors& results) const {
  variable_list parents;
  for (const Source& source : results_.at(k).sources) {
    if (source.input) {
      parents.push_back(inputs[*source.input]);
    } else if (source.result) {
      parents.push_back(results[*source.result]);
    } else if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(source.outside.function.get())) {
      parents.push_back(leaf->variable);
    } else {
      const at::NoGradGuard no_grad;
      at::Tensor stand_in = at::empty({0}, at::kFloat);
      torch::autograd::impl::set_gradient_edge(stand_in, source.outside);
      parents.push_back(std::move(stand_in));
    }
  }
  return parents;
}

variable_list Segment::gradients(std::size_t k, Tensors kept, const at::Tensor& gradient) {
  const at::ThreadLocalStateGuard as_in_forward(state_);
  const at::AutoGradMode with_graph(true);
  const std::shared_ptr<Again> made = again(std::move(kept));
  edge_list places, ends;
  for (const Source& source : results_.at(k).sources) {
    places.push_back(edge_of(source, *made));
    if (!source.input) ends.push_back(places.back());
  }
  const EndOfGraph here(ends);
  return torch::autograd::Engine::get_default_engine().execute(
      {gradient_edge(made->outputs[k])}, {gradient}, /*keep_graph=*/results_.size() > 1,
      /*create_graph=*/false, /*accumulate_grad=*/false, places);
}

Edge Segment::edge_of(const Source& source, const Again& made) const {
  if (source.input) return gradient_edge(made.arguments.leaves.at(*source.input));
  if (source.result) return gradient_edge(made.outputs[*source.result]);
  return source.outside;
}

std::shared_ptr<Again> Segment::again(Tensors kept) {
  const int backward = backward_id();
  if (t_kept.segment == id_ && t_kept.backward == backward && t_kept.made) return t_kept.made;
  t_kept = {};
  check_leaves();
  std::shared_ptr<Again> made = run_again(std::move(kept));
  if (results_.size() == 1) return made;
  t_kept = {id_, backward, made};
  when_backward_ends([id = id_](bool) {
    if (t_kept.segment == id) t_kept = {};
  });
  return made;
}

std::shared_ptr<Again> Segment::run_again(Tensors kept) {
  take_home(kept);
  const auto results = kept.end() - static_cast<std::ptrdiff_t>(taped_.size());
  ResultTape tape(what_.options.keep, taped_, {std::make_move_iterator(results), std::make_move_iterator(kept.end())});
  const Tensors inputs(std::make_move_iterator(kept.begin()), std::make_move_iterator(results));
  auto made = std::make_shared<Again>(Again{arguments_of(inputs, with_graphs_), {}});
  {
    const SecondRun second;
    const Kept buffers(what_.buffers);
    const WithoutCachedCasts casts;
    std::optional<RandomReplay> random;
    if (random_) random.emplace(*random_, devices_);
    made->outputs = what_.run(made->arguments.tensors);
  }
  tape.check_end();
  if (made->outputs.size() != outputs_)
    is_another_run(fmt::format("returned {} tensors, and {} in forward", made->outputs.size(), outputs_));
  if (!hashes_.empty()) {
    const auto hashes = hashes_of(made->outputs);
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      if (hashes[i] != hashes_[i]) is_another_run(fmt::format("gave other values for its output {}", i));
    }
  }
  check_graph(*made);
  return made;
}

void Segment::check_leaves() const {
  for (const auto& [node, version] : leaves_) {
    const at::Tensor& leaf = static_cast<const AccumulateGrad*>(node)->variable;
    if (version_of(leaf) == version) continue;
    throw ModelError(fmt::format(
        "zero::recompute: a parameter of shape [{}] was changed in place between forward and backward; run backward "
        "before the optimizer's step",
        fmt::join(leaf.sizes(), ", ")));
  }
}

void Segment::check_graph(const Again& made) const {
  std::set<Place> outside;
  for (const auto& [k, result] : results_) {
    const at::Tensor& output = made.outputs[k];
    if (!output.defined() || !output.requires_grad() || output.is_leaf())
      is_another_run(fmt::format("gave an output {} without a gradient", k));
    outside.insert(place_of(gradient_edge(output)));
    for (const Source& source : result.sources) outside.insert(place_of(edge_of(source, made)));
  }
  for (const auto& [k, result] : results_) {
    const Place own = place_of(gradient_edge(made.outputs[k]));
    const Graph graph = follow(
        made.outputs[k], [&](const Edge& edge) { return place_of(edge) != own && outside.contains(place_of(edge)); });
    std::set<Place> known;
    for (const Source& source : result.sources) known.insert(place_of(edge_of(source, made)));
    for (const Edge& edge : graph.leaves) {
      if (!known.contains(place_of(edge))) is_another_run("used a parameter that it did not use in forward");
    }
    if (graph.path != result.path) is_another_run("ran other operators");
    if (graph.leaves.size() != result.sources.size())
      is_another_run("did not use an input or a parameter that it used in forward");
  }
}

}  // namespace
}  // namespace zero::intercept

namespace zero {
namespace {

struct DefaultHome {
  std::mutex mutex;
  std::shared_ptr<ActivationHome> home;
};
DefaultHome& default_home() {
  static DefaultHome* const only = new DefaultHome;  // parts may end after main() does
  return *only;
}

}  // namespace

void set_activation_home(std::shared_ptr<ActivationHome> home) {
  const std::lock_guard lock(default_home().mutex);
  default_home().home.swap(home);
}

std::shared_ptr<ActivationHome> activation_home() {
  const std::lock_guard lock(default_home().mutex);
  return default_home().home;
}

detail::Tensors detail::recompute_tensors(Recomputable what, const Tensors& inputs) {
  if (what.options.keep != KeptResults::kNone && !(what.options.compare && what.options.preserve_random)) {
    throw ModelError(
        "zero::recompute: results that are kept are those of the first run: they need `compare` and `preserve_random`");
  }
  if (!at::GradMode::is_enabled()) return what.run(inputs);
  const auto segment = c10::make_intrusive<intercept::Segment>(std::move(what), inputs);
  return segment->run(inputs, segment);
}

}  // namespace zero
