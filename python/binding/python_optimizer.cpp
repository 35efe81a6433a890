#include "python_optimizer.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <memory>
#include <utility>
#include <vector>

#include "python_model.h"

namespace zerotorch {
namespace py = pybind11;
namespace {

/// The learning rate of a group of the Python optimizer.
class GroupOptions final : public torch::optim::OptimizerOptions {
 public:
  GroupOptions(Shared optimizer, std::size_t group) : optimizer_(std::move(optimizer)), group_(group) {}

  double get_lr() const override {
    const py::gil_scoped_acquire gil;
    return py::float_(group()["lr"]);
  }
  void set_lr(const double lr) override {
    const py::gil_scoped_acquire gil;
    const py::dict mine = group();
    if (double(py::float_(mine["lr"])) != lr) mine["lr"] = lr;
  }
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<GroupOptions>(optimizer_, group_);
  }

 private:
  py::dict group() const { return py::list(optimizer_->attr("param_groups"))[group_]; }

  Shared optimizer_;
  std::size_t group_;
};

/// What the Python optimizer keeps of one parameter: its tensors and numbers by name.
class ParameterState final : public torch::optim::OptimizerParamState {
 public:
  ParameterState(Shared optimizer, at::Tensor parameter)
      : optimizer_(std::move(optimizer)), parameter_(std::move(parameter)) {}

  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override {
    return std::make_unique<ParameterState>(optimizer_, parameter_);
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    const py::gil_scoped_acquire gil;
    for (const auto& [key, value] : py::dict(state())) {
      const std::string name = py::str(key);
      if (value.is_none()) continue;
      if (THPVariable_Check(value.ptr())) {
        archive.write(name, c10::IValue(py::cast<at::Tensor>(value)));
      } else if (py::isinstance<py::bool_>(value)) {
        archive.write(name, c10::IValue(py::cast<bool>(value)));
      } else if (py::isinstance<py::int_>(value)) {
        archive.write(name, c10::IValue(py::cast<std::int64_t>(value)));
      } else if (py::isinstance<py::float_>(value)) {
        archive.write(name, c10::IValue(py::cast<double>(value)));
      } else {
        throw std::runtime_error("its state '" + name + "' is neither a tensor nor a number");
      }
    }
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    const py::gil_scoped_acquire gil;
    const py::object mine = state();
    for (const std::string& name : archive.keys()) {
      c10::IValue value;
      archive.read(name, value);
      mine[py::str(name)] = value.isTensor() ? py::cast(value.toTensor().clone())
                            : value.isBool() ? py::object(py::bool_(value.toBool()))
                            : value.isInt()  ? py::object(py::int_(value.toInt()))
                                             : py::object(py::float_(value.toDouble()));
    }
  }

 private:
  py::object state() const { return optimizer_->attr("state")[py::cast(parameter_)]; }

  Shared optimizer_;
  at::Tensor parameter_;
};

class PythonOptimizer final : public torch::optim::Optimizer {
 public:
  PythonOptimizer(Shared optimizer, std::vector<torch::optim::OptimizerParamGroup> groups)
      : Optimizer(std::move(groups), std::make_unique<GroupOptions>(optimizer, 0)), optimizer_(std::move(optimizer)) {}

  at::Tensor step(LossClosure) override {
    const py::gil_scoped_acquire gil;
    take_new_parameters();
    forget_erased_states();
    optimizer_->attr("step")();
    note_states();
    return {};
  }

 private:
  py::list groups() const { return optimizer_->attr("param_groups"); }

  /// Parameters that were unfrozen are in the C++ groups only.
  void take_new_parameters() {
    const py::list theirs = groups();
    for (std::size_t g = 0; g < param_groups().size(); ++g) {
      py::list list = theirs[g]["params"];
      const auto& mine = param_groups()[g].params();
      for (std::size_t i = py::len(list); i < mine.size(); ++i) list.append(py::cast(mine[i]));
    }
  }
  void forget_erased_states() {
    const py::object states = optimizer_->attr("state");
    for (const auto& group : param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const py::object key = py::cast(parameter);
        const bool is_kept = state().count(parameter.unsafeGetTensorImpl()) > 0;
        if (!is_kept && states.contains(key)) states.attr("pop")(key);
      }
    }
  }
  void note_states() {
    const py::object states = optimizer_->attr("state");
    for (const auto& group : param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (states.contains(py::cast(parameter)))
          state()[parameter.unsafeGetTensorImpl()] = std::make_unique<ParameterState>(optimizer_, parameter);
      }
    }
  }

  Shared optimizer_;
};

}  // namespace

zero::OptimizerFactory python_optimizer_factory(py::function make) {
  const Shared kept = share(std::move(make));
  return [kept](const std::vector<std::vector<at::Tensor>>& shards) -> std::unique_ptr<torch::optim::Optimizer> {
    const py::gil_scoped_acquire gil;
    const Shared optimizer = share((*kept)(py::cast(shards)));
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (std::size_t g = 0; g < shards.size(); ++g)
      groups.emplace_back(shards[g], std::make_unique<GroupOptions>(optimizer, g));
    return std::make_unique<PythonOptimizer>(optimizer, std::move(groups));
  };
}

}  // namespace zerotorch
