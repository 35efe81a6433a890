#include "intercept/kept_results.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/mm_ops.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <tuple>
#include <utility>

#include "intercept/parameter_handle.h"
#include "intercept/second_run.h"

namespace zero::intercept {
namespace {

thread_local ResultTape* t_tape = nullptr;

/// While alive, what an operator is made of is no operator of the part.
class Nested {
 public:
  Nested() : before_(std::exchange(t_tape, nullptr)) {}
  ~Nested() { t_tape = before_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

 private:
  ResultTape* before_;
};

/// Versions of parameters are compared by who runs the part again.
bool is_parameter(const at::Tensor& tensor) {
  const at::Tensor root = tensor.is_view() ? at::Tensor(tensor._base()) : tensor;
  return ParameterHandle::of(root) || (root.is_leaf() && root.requires_grad());
}

template <class T>
std::uint64_t hash_of_argument(const T&) {
  return 0;
}
std::uint64_t hash_of_argument(const at::Tensor& tensor) {
  return !tensor.defined() || is_parameter(tensor) ? 0 : hash_of(tensor);
}
std::uint64_t hash_of_argument(const std::optional<at::Tensor>& tensor) {
  return tensor ? hash_of_argument(*tensor) : 0;
}

/// Its memory alone.
at::Tensor without_graph(const at::Tensor& tensor) { return tensor.variable_data(); }

}  // namespace

/// What an operator does where there is a tape.
class TapedOperator {
 public:
  TapedOperator(ResultTape& tape, const char* name, std::uint64_t inputs) : tape_(tape), name_(name), inputs_(inputs) {}

  static bool wants(const ResultTape& tape, KeptResults kind) { return tape.keep_ >= kind; }

  template <class Compute>
  auto operator()(const Compute& compute) {
    using Result = decltype(compute());
    if (tape_.gives_) {
      Result result;
      if (give(result)) return result;
      const Nested nested;
      return compute();
    }
    Result result = [&] {
      const Nested nested;
      return compute();
    }();
    keep(result);
    return result;
  }

 private:
  void keep(const at::Tensor& result) {
    TapedResult kept{.name = name_, .inputs = inputs_};
    if (!result.defined() || result.is_inference()) {
      tape_.results_.push_back(kept);
      tape_.values_.emplace_back();
      return;
    }
    kept.version = result.unsafeGetTensorImpl()->version_counter();
    kept.version_then = kept.version.current_version();
    tape_.results_.push_back(kept);
    tape_.values_.push_back(without_graph(result));
  }
  template <class... T>
  void keep(const std::tuple<T...>& results) {
    std::apply([&](const auto&... result) { (keep(result), ...); }, results);
  }

  bool give(at::Tensor& result) {
    if (tape_.next_ == tape_.results_.size()) is_another_run("ran more operators");
    const std::size_t at = tape_.next_++;
    const TapedResult& kept = tape_.results_[at];
    if (std::string_view(kept.name) != name_) is_another_run(fmt::format("ran {} in place of {}", name_, kept.name));
    if (kept.inputs != inputs_) is_another_run(fmt::format("gave other values to {}", name_));
    if (!tape_.is_there(at)) return false;
    result = without_graph(tape_.values_[at]);
    return true;
  }
  template <class... T>
  bool give(std::tuple<T...>& results) {
    return std::apply([&](auto&... result) { return (static_cast<int>(give(result)) & ...) != 0; }, results);
  }

  ResultTape& tape_;
  const char* name_;
  std::uint64_t inputs_;
};

namespace {

template <class Operator, KeptResults kKind, class Schema = typename Operator::schema>
struct Kernel;
template <class Operator, KeptResults kKind, class Result, class... Arguments>
struct Kernel<Operator, kKind, Result(Arguments...)> {
  static Result run(c10::DispatchKeySet keys, Arguments... arguments) {
    const c10::DispatchKeySet below =
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
    ResultTape* tape = t_tape;
    if (!tape || !TapedOperator::wants(*tape, kKind)) return Operator::redispatch(below, arguments...);
    std::uint64_t inputs = 0;
    ((inputs = inputs * 31 + hash_of_argument(arguments)), ...);
    return TapedOperator(*tape, Operator::name, inputs)([&] { return Operator::redispatch(below, arguments...); });
  }
};

template <class Operator, KeptResults kKind>
void add(torch::Library& library) {
  library.impl(Operator::name, TORCH_FN((Kernel<Operator, kKind>::run)));
}

/// Kernels for the rest of the program's life, which pass every call on while there is no tape.
void register_kernels() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  static const bool once = [] {
    using namespace at::_ops;
    add<_scaled_dot_product_flash_attention_for_cpu, KeptResults::kAttention>(library);
    add<mm, KeptResults::kProducts>(library);
    add<addmm, KeptResults::kProducts>(library);
    add<bmm, KeptResults::kProducts>(library);
    add<baddbmm, KeptResults::kProducts>(library);
    add<convolution, KeptResults::kProducts>(library);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

ResultTape::ResultTape(KeptResults keep) : keep_(keep), outer_(t_tape) {
  if (keep != KeptResults::kNone) register_kernels();
  t_tape = keep == KeptResults::kNone ? nullptr : this;
}

ResultTape::ResultTape(KeptResults keep, std::vector<TapedResult> results, std::vector<at::Tensor> values)
    : keep_(keep), gives_(true), results_(std::move(results)), values_(std::move(values)), outer_(t_tape) {
  t_tape = keep == KeptResults::kNone ? nullptr : this;
}

ResultTape::~ResultTape() { t_tape = outer_; }

void ResultTape::check_end() const {
  if (next_ != results_.size()) is_another_run("ran fewer operators");
}

bool ResultTape::is_there(std::size_t at) const {
  return values_[at].defined() && results_[at].version.current_version() == results_[at].version_then;
}

bool is_given_next(std::string_view name) {
  return t_tape && t_tape->gives_ && t_tape->next_ < t_tape->results_.size() &&
         name == t_tape->results_[t_tape->next_].name && t_tape->is_there(t_tape->next_);
}

std::vector<at::Tensor> ResultTape::take_values() {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].defined() && results_[i].version.current_version() != results_[i].version_then) values_[i].reset();
  }
  return std::move(values_);
}

}  // namespace zero::intercept
