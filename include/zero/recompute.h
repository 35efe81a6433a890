#pragma once
// Activation checkpointing: part of a forward whose intermediate results are not kept, but computed again in backward.
//
//   for (auto& block : blocks) x = zero::recompute(block, x);
//
// docs/recompute.md explains it.
#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "zero/activations.h"
#include "zero/kept_results.h"

namespace zero {

struct RecomputeOptions {
  /// Compares the second run's outputs with the first's, bit for bit, on the CPU: ModelError where they differ. False:
  /// for functions whose results may differ from run to run; then gradients are those of the second run.
  bool compare = true;
  /// Gives the second run the random numbers of the first, so that dropout drops the same elements.
  bool preserve_random = true;
  /// Time for memory. What the program changes in place afterwards is computed again all the same. Needs `compare` and
  /// `preserve_random`.
  KeptResults keep = KeptResults::kNone;
  /// Where inputs that need a gradient, and results that are kept, are kept; null: where set_activation_home() says.
  std::shared_ptr<ActivationHome> home = nullptr;
};

/// For all parts from now on that name no home of their own; null: memory. Process-wide, any thread.
void set_activation_home(std::shared_ptr<ActivationHome> home);
std::shared_ptr<ActivationHome> activation_home();

namespace detail {

using Tensors = std::vector<at::Tensor>;

/// A function of tensors to tensors, and what it is to the user.
struct Recomputable {
  std::function<Tensors(const Tensors&)> run;
  Tensors buffers = {};  ///< the module's: a second run leaves them as they were
  RecomputeOptions options = {};
};

/// The outputs of `what.run(inputs)`, as described at recompute().
Tensors recompute_tensors(Recomputable what, const Tensors& inputs);

// What of an argument or a result is a tensor.
template <class T>
struct TensorsOf {  // none
  static void take(const T&, Tensors&) {}
  static T give(const T& value, const Tensors&, std::size_t&) { return value; }
};
template <>
struct TensorsOf<at::Tensor> {
  static void take(const at::Tensor& value, Tensors& all) { all.push_back(value); }
  static at::Tensor give(const at::Tensor&, const Tensors& all, std::size_t& next) { return all[next++]; }
};
template <class E>
struct TensorsOf<std::optional<E>> {
  using T = std::optional<E>;
  static void take(const T& value, Tensors& all) {
    if (value) TensorsOf<E>::take(*value, all);
  }
  static T give(const T& value, const Tensors& all, std::size_t& next) {
    return value ? T(TensorsOf<E>::give(*value, all, next)) : T();
  }
};
template <class E, std::size_t kSize>
struct TensorsOf<std::array<E, kSize>> {
  using T = std::array<E, kSize>;
  static void take(const T& value, Tensors& all) {
    for (const E& element : value) TensorsOf<E>::take(element, all);
  }
  static T give(const T& value, const Tensors& all, std::size_t& next) {
    T result = value;
    for (E& element : result) element = TensorsOf<E>::give(element, all, next);
    return result;
  }
};
template <class E>
struct TensorsOf<std::vector<E>> {
  static void take(const std::vector<E>& value, Tensors& all) {
    for (const auto& element : value) TensorsOf<E>::take(element, all);
  }
  static std::vector<E> give(const std::vector<E>& value, const Tensors& all, std::size_t& next) {
    std::vector<E> result;
    result.reserve(value.size());
    for (const auto& element : value) result.push_back(TensorsOf<E>::give(element, all, next));
    return result;
  }
};
template <class A, class B>
struct TensorsOf<std::pair<A, B>> {
  static void take(const std::pair<A, B>& value, Tensors& all) {
    TensorsOf<A>::take(value.first, all);
    TensorsOf<B>::take(value.second, all);
  }
  static std::pair<A, B> give(const std::pair<A, B>& value, const Tensors& all, std::size_t& next) {
    A first = TensorsOf<A>::give(value.first, all, next);
    return {std::move(first), TensorsOf<B>::give(value.second, all, next)};
  }
};
template <class... E>
struct TensorsOf<std::tuple<E...>> {
  static void take(const std::tuple<E...>& value, Tensors& all) {
    std::apply([&](const E&... element) { (TensorsOf<E>::take(element, all), ...); }, value);
  }
  static std::tuple<E...> give(const std::tuple<E...>& value, const Tensors& all, std::size_t& next) {
    return std::apply(  // braces: from left to right
        [&](const E&... element) { return std::tuple<E...>{TensorsOf<E>::give(element, all, next)...}; }, value);
  }
};

/// Whether what of a result is a tensor is known.
template <class T>
struct IsResult : std::bool_constant<std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, at::Tensor> ||
                                     std::is_same_v<T, std::string>> {};
template <class E>
struct IsResult<std::optional<E>> : IsResult<E> {};
template <class E>
struct IsResult<std::vector<E>> : IsResult<E> {};
template <class E, std::size_t kSize>
struct IsResult<std::array<E, kSize>> : IsResult<E> {};
template <class A, class B>
struct IsResult<std::pair<A, B>> : std::bool_constant<IsResult<A>::value && IsResult<B>::value> {};
template <class... E>
struct IsResult<std::tuple<E...>> : std::bool_constant<(IsResult<E>::value && ...)> {};

/// `value` with undefined tensors in the places of its own, of which there are `count`.
template <class T>
T without_tensors(const T& value, std::size_t count) {
  std::size_t next = 0;
  return TensorsOf<T>::give(value, Tensors(count), next);
}

template <class F, class... Inputs>
concept HasForward = requires(F& f, Inputs&... inputs) {
  f->forward(inputs...);
  f->buffers();
};

template <class F, class... Inputs>
decltype(auto) call(F& f, Inputs&... inputs) {
  if constexpr (HasForward<F, Inputs...>) {
    return f->forward(inputs...);
  } else {
    return f(inputs...);
  }
}

}  // namespace detail

/// Calls `f(inputs...)`, or the forward of `f` where that is a module (a holder or a pointer), and keeps only the
/// inputs for backward, which runs it again. Inputs and results: tensors, optionals, vectors, arrays, pairs and tuples
/// of them; other inputs are passed on as they are and copied. Copies of `f` are called, and must stay valid until
/// backward: a lambda captures by value what goes out of scope.
///
/// Gradients are those of a plain call, also of parameters and other tensors that `f` has captured, with hooks, several
/// backwards, and calls inside one another; the last bits may differ where a tensor is used several times in and
/// outside of parts, as sums are made part by part. The first run's intermediate results live until it returns, so that
/// they are there of one part at a time. Parameters of an engine are gathered for the second run as for any other use.
/// The second run gets the random numbers, autocast settings and inputs of the first; a module's buffers are left as
/// the first run has made them. Without gradients on this is a plain call.
///
/// Throws ModelError when `f` changes an input in place or runs a backward() of its own; backward throws it where the
/// second run is another one: other results (a captured value or a training flag has changed), another path, parameters
/// that were changed since. Results that share memory with one another or with an input cannot be changed in place.
/// Gradients of gradients (create_graph) are refused. Local, but where parameters are gathered: then *collective* as a
/// forward is, and once more in backward.
template <class F, class... Inputs>
auto recompute_with(const RecomputeOptions& options, F f, Inputs... inputs) {
  using Given = std::tuple<Inputs...>;
  using Result = std::decay_t<decltype(detail::call(f, inputs...))>;
  static_assert(std::copy_constructible<F>, "zero::recompute: backward calls f again: it must be copyable");
  static_assert(
      detail::IsResult<Result>::value,
      "zero::recompute: f must return tensors, numbers, or optionals, vectors, arrays, pairs, tuples of them");
  const Given given(std::move(inputs)...);
  detail::Tensors tensors;
  detail::TensorsOf<Given>::take(given, tensors);
  detail::Recomputable what{.options = options};
  if constexpr (detail::HasForward<F, Inputs...>) what.buffers = f->buffers();
  auto result = std::make_shared<std::optional<Result>>();  // what of it is no tensor comes from the first run
  what.run = [f, others = detail::without_tensors(given, tensors.size()), result](const detail::Tensors& all) mutable {
    std::size_t next = 0;
    Given arguments = detail::TensorsOf<Given>::give(others, all, next);
    F same = f;  // each run begins with the function as it was given
    const Result made =
        std::apply([&](auto&... argument) -> Result { return detail::call(same, argument...); }, arguments);
    detail::Tensors outputs;
    detail::TensorsOf<Result>::take(made, outputs);
    if (result) result->emplace(detail::without_tensors(made, outputs.size()));
    result.reset();
    return outputs;
  };
  const detail::Tensors outputs = detail::recompute_tensors(std::move(what), tensors);
  std::size_t next = 0;
  return detail::TensorsOf<Result>::give(**result, outputs, next);
}

template <class F, class... Inputs>
auto recompute(F f, Inputs... inputs) {
  return recompute_with(RecomputeOptions{}, std::move(f), std::move(inputs)...);
}

}  // namespace zero
