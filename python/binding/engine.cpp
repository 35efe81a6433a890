// zero::Engine for Python: what zerotorch/core/engine.py stands on. Every call leaves the GIL.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>

#include "engine.h"
#include "python_model.h"
#include "python_optimizer.h"
#include "zero/engine.h"
#include "zero/errors.h"

namespace zerotorch {
namespace py = pybind11;
using namespace py::literals;
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

/// An engine, and what goes with the Python module it was made of. Ends without the GIL, as its other ranks may be
/// waiting in Python code of this process.
class PythonEngine {
 public:
  PythonEngine(zero::Engine engine, BufferWatch buffers)
      : engine_(std::make_unique<zero::Engine>(std::move(engine))), buffers_(std::move(buffers)) {}
  ~PythonEngine() { destroy(); }
  PythonEngine(const PythonEngine&) = delete;
  PythonEngine& operator=(const PythonEngine&) = delete;

  zero::Engine& get() {
    if (!engine_) throw zero::ModelError("this engine was destroyed");
    return *engine_;
  }
  zero::Engine& with_buffers() {
    zero::Engine& engine = get();
    const py::gil_scoped_acquire gil;
    buffers_.take_back();
    return engine;
  }
  bool is_destroyed() const { return !engine_; }
  void destroy() {
    if (!engine_) return;
    if (PyGILState_Check()) {
      const py::gil_scoped_release no_gil;
      engine_.reset();
    } else {
      engine_.reset();
    }
  }

 private:
  std::unique_ptr<zero::Engine> engine_;
  BufferWatch buffers_;
};

template <class T>
void take(const py::dict& from, const char* key, std::optional<T>& to) {
  if (from.contains(key) && !from[key].is_none()) to = py::cast<T>(from[key]);
}

zero::ParameterGroup group_of(const py::dict& from) {
  zero::ParameterGroup group;
  if (from.contains("names")) group.names = py::cast<std::vector<std::string>>(from["names"]);
  take(from, "lr", group.lr);
  take(from, "weight_decay", group.weight_decay);
  take(from, "eps", group.eps);
  if (from.contains("betas") && !from["betas"].is_none()) {
    const auto betas = py::cast<std::vector<double>>(from["betas"]);
    if (betas.size() != 2 && betas.size() != 3) throw zero::ConfigError("betas: want two numbers, or three");
    group.betas = {betas[0], betas[1]};
    if (betas.size() == 3) group.beta3 = betas[2];
  }
#define ZERO_TAKE(where, type, name, value, range, meaning) ZERO_IF_GROUP(where, take(from, #name, group.name);)
  ZERO_HYPER_PARAMETERS(ZERO_TAKE)
#undef ZERO_TAKE
  take(from, "use_muon", group.use_muon);
  return group;
}

std::unique_ptr<PythonEngine> initialize(const py::object& module, const std::string& config, const zero::Group& group,
                                         const std::vector<py::dict>& groups, bool evaluation_only,
                                         const std::optional<py::function>& optimizer_factory,
                                         const std::string& optimizer_name, const std::optional<std::string>& device) {
  zero::InitializeOptions options;
  options.group = group;
  for (const py::dict& one : groups) options.parameter_groups.push_back(group_of(one));
  options.evaluation_only = evaluation_only;
  if (optimizer_factory) options.optimizer_factory = python_optimizer_factory(*optimizer_factory);
  options.optimizer_name = optimizer_name;
  if (device) options.device = at::Device(*device);
  options.zero_grad_keeps_window = true;
  zero::ModelView view = view_of(module);
  BufferWatch buffers(module);
  auto parsed = zero::Config::from_text(config, "config");
  zero::Engine engine = [&] {
    const py::gil_scoped_release no_gil;
    return zero::initialize(std::move(view), std::move(parsed), std::move(options));
  }();
  zero::detail::thaw(engine);  // Python says whether an engine evaluates; the program may freeze what it likes
  return std::make_unique<PythonEngine>(std::move(engine), std::move(buffers));
}

py::dict to_dict(const zero::LoadReport& report) {
  py::dict dict;
  dict["folder"] = report.folder;
  dict["tag"] = report.tag;
  dict["client_state"] = report.client_state;
  dict["global_steps"] = report.global_steps;
  dict["micro_batches"] = report.micro_batches;
  dict["missing"] = report.missing;
  dict["unexpected"] = report.unexpected;
  dict["mismatched"] = report.mismatched;
  dict["notices"] = report.notices;
  return dict;
}

py::dict save_full_weights(PythonEngine& engine, const std::string& folder, const std::string& dtype) {
  zero::checkpoint::ExportReport report;
  {
    const py::gil_scoped_release no_gil;
    report = engine.with_buffers().save_full_weights(folder, {.dtype = dtype});
  }
  py::dict dict;
  dict["files"] = report.files;
  dict["tensors"] = report.tensors;
  dict["nbytes"] = report.nbytes;
  return dict;
}

py::dict memory(const zero::MemoryReport& report) {
  py::dict dict;
  for (int k = 0; k < zero::kMemoryKinds; ++k) {
    const auto kind = static_cast<zero::MemoryKind>(k);
    const auto& use = report.kinds[k];
    py::dict one;
    one["held"] = use.current_nbytes;
    one["in_use"] = use.in_use_nbytes;
    one["peak"] = use.peak_nbytes;
    dict[py::str(std::string(zero::memory_kind_name(kind)))] = one;
  }
  return dict;
}

/// This rank's collectives, and how unevenly the ranks came to them.
py::tuple comms_summary(PythonEngine& engine) {
  zero::CommsSummary summary;
  {
    const py::gil_scoped_release no_gil;
    summary = engine.get().comms_summary();
  }
  py::list records, stragglers;
  for (const auto& one : summary.records) {
    records.append(py::dict("operation"_a = one.operation, "label"_a = one.label, "nbytes"_a = one.nbytes,
                            "calls"_a = one.calls, "seconds"_a = one.seconds,
                            "algorithm_bandwidth"_a = one.algorithm_bandwidth(),
                            "bus_bandwidth"_a = one.bus_bandwidth()));
  }
  for (const auto& one : summary.stragglers) {
    stragglers.append(py::dict("operation"_a = one.operation, "label"_a = one.label, "nbytes"_a = one.nbytes,
                               "calls"_a = one.calls, "communication_seconds"_a = one.communication_seconds,
                               "straggler_seconds"_a = one.straggler_seconds, "slowest_rank"_a = one.slowest_rank));
  }
  return py::make_tuple(records, stragglers);
}

/// A scope in which parameters are whole; see zero::GatheredParameters.
class Gathered {
 public:
  Gathered(PythonEngine& engine, std::vector<at::Tensor> parameters, std::optional<int> modifier_rank)
      : scope_(std::make_unique<zero::GatheredParameters>(engine.get(), std::move(parameters), modifier_rank,
                                                          zero::GatheredParameters::ReadersWrites::kDropped)) {}
  /// `failed`: the scope ends by an exception, and nothing is spread.
  void close(bool failed) {
    if (!scope_) return;
    if (!failed) {
      scope_->close();
      scope_.reset();
      return;
    }
    try {
      const auto ends_here = std::move(scope_);
      throw zero::ModelError("");  // as it would end in C++
    } catch (const zero::ModelError&) {
    }
  }
  ~Gathered() {
    const py::gil_scoped_release no_gil;
    scope_.reset();
  }
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;

 private:
  std::unique_ptr<zero::GatheredParameters> scope_;
};

void bind_training(py::class_<PythonEngine>& engine) {
  engine
      .def(
          "begin_forward",
          [](PythonEngine& self) {
            self.get().check_module();
            zero::detail::begin_forward(self.get());
          },
          NoGil())
      .def(
          "cast_input",
          [](PythonEngine& self, const at::Tensor& input) -> std::optional<at::Tensor> {
            at::Tensor cast = zero::detail::cast_input(self.get(), input);
            return cast.defined() ? std::optional(cast) : std::nullopt;
          },
          NoGil())
      .def(
          "backward",
          [](PythonEngine& self, const at::Tensor& loss, bool retain_graph, double weight) {
            self.with_buffers().backward(loss, {.retain_graph = retain_graph, .weight = weight});
          },
          py::arg("loss"), py::arg("retain_graph") = false, py::arg("weight") = 1.0, NoGil())
      .def(
          "scale", [](PythonEngine& self, const at::Tensor& loss) { return self.get().scale(loss); }, NoGil())
      .def(
          "zero_grad", [](PythonEngine& self) { self.get().zero_grad(); }, NoGil())
      .def(
          "step", [](PythonEngine& self) { self.with_buffers().step(); }, NoGil())
      .def(
          "finish_update", [](PythonEngine& self) { self.get().finish_update(); }, NoGil())
      .def(
          "wait_for_parameters", [](PythonEngine& self) { self.get().wait_for_parameters(); }, NoGil())
      .def("set_gradient_accumulation_steps",
           [](PythonEngine& self, std::int64_t steps) { self.get().set_gradient_accumulation_steps(steps); })
      .def("set_train_batch_size",
           [](PythonEngine& self, std::int64_t samples) { self.get().set_train_batch_size(samples); })
      .def("set_gradient_accumulation_boundary",
           [](PythonEngine& self, std::optional<bool> is_boundary) {
             self.get().set_gradient_accumulation_boundary(is_boundary);
           })
      .def("is_gradient_accumulation_boundary",
           [](PythonEngine& self) { return self.get().is_gradient_accumulation_boundary(); })
      .def_property_readonly("device", [](PythonEngine& self) { return self.get().device().str(); })
      .def_property_readonly("global_steps", [](PythonEngine& self) { return self.get().global_steps(); })
      .def_property_readonly("skipped_steps", [](PythonEngine& self) { return self.get().skipped_steps(); })
      .def_property_readonly("micro_steps", [](PythonEngine& self) { return self.get().micro_steps(); })
      .def_property_readonly("was_step_applied", [](PythonEngine& self) { return self.get().was_step_applied(); })
      .def_property_readonly("grad_norm", [](PythonEngine& self) { return self.get().grad_norm(); })
      .def_property_readonly("loss_scale", [](PythonEngine& self) { return self.get().loss_scale(); })
      .def_property_readonly("parameter_groups", [](PythonEngine& self) { return self.get().parameter_groups(); })
      .def("learning_rate", [](PythonEngine& self, int group) { return self.get().learning_rate(group); })
      .def("set_parameter_group", [](PythonEngine& self, int group, const py::dict& values) {
        self.get().set_parameter_group(group, group_of(values));
      });
}

void bind_values(py::class_<PythonEngine>& engine) {
  const auto part = [](const zero::Engine::LocalPart& local) { return py::make_tuple(local.begin, local.values); };
  engine
      .def(
          "full_weight", [](PythonEngine& self, const std::string& name) { return self.get().full_weight(name); },
          NoGil())
      .def(
          "set_full_weight",
          [](PythonEngine& self, const std::string& name, const at::Tensor& value) {
            self.get().set_full_weight(name, value);
          },
          NoGil())
      .def(
          "full_gradient", [](PythonEngine& self, const std::string& name) { return self.get().full_gradient(name); },
          NoGil())
      .def(
          "set_full_gradient",
          [](PythonEngine& self, const std::string& name, const at::Tensor& value) {
            self.get().set_full_gradient(name, value);
          },
          NoGil())
      .def(
          "full_optimizer_state",
          [](PythonEngine& self, const std::string& name, const std::string& state) {
            return self.get().full_optimizer_state(name, state);
          },
          NoGil())
      .def("optimizer_states",
           [](PythonEngine& self, const std::string& name) { return self.get().optimizer_states(name); })
      .def("parameter_group_of",
           [](PythonEngine& self, const std::string& name) { return self.get().parameter_group_of(name); })
      .def(
          "set_progress",
          [](PythonEngine& self, std::int64_t global_steps, std::int64_t skipped_steps,
             const std::map<std::string, std::int64_t>& updates, std::optional<double> loss_scale) {
            self.get().set_progress({global_steps, skipped_steps, updates, loss_scale});
          },
          py::arg("global_steps"), py::arg("skipped_steps"), py::arg("updates"), py::arg("loss_scale"), NoGil())
      .def(
          "set_full_optimizer_state",
          [](PythonEngine& self, const std::string& name, const std::string& state, const at::Tensor& value) {
            self.get().set_full_optimizer_state(name, state, value);
          },
          NoGil())
      .def("local_range",
           [](PythonEngine& self, const std::string& name) {
             const auto mine = self.get().local_range(name);
             return std::pair(mine.begin, mine.end);
           })
      .def("local_weight",
           [part](PythonEngine& self, const std::string& name) { return part(self.get().local_weight(name)); })
      .def("local_optimizer_state", [part](PythonEngine& self, const std::string& name, const std::string& state) {
        return part(self.get().local_optimizer_state(name, state));
      });
}

void bind_files(py::class_<PythonEngine>& engine) {
  engine
      .def(
          "save_checkpoint",
          [](PythonEngine& self, const std::string& folder, const std::string& tag, const std::string& client_state,
             bool save_latest) {
            self.with_buffers().save_checkpoint(folder, tag, client_state, {.save_latest = save_latest});
          },
          py::arg("folder"), py::arg("tag"), py::arg("client_state"), py::arg("save_latest") = true, NoGil())
      .def(
          "load_checkpoint",
          [](PythonEngine& self, const std::string& folder, const std::string& tag, bool module_only,
             bool load_optimizer_states, bool load_lr_scheduler_states, bool strict) {
            zero::LoadReport report;
            {
              const py::gil_scoped_release no_gil;
              zero::LoadOptions options;
              options.module_only = module_only;
              options.load_optimizer_states = load_optimizer_states;
              options.load_lr_scheduler_states = load_lr_scheduler_states;
              options.strict = strict;
              report = self.with_buffers().load_checkpoint(folder, tag, options);
            }
            return to_dict(report);
          },
          py::arg("folder"), py::arg("tag"), py::arg("module_only") = false, py::arg("load_optimizer_states") = true,
          py::arg("load_lr_scheduler_states") = true, py::arg("strict") = true)
      .def(
          "load_full_weights",
          [](PythonEngine& self, const std::string& path, bool strict) {
            zero::LoadReport report;
            {
              const py::gil_scoped_release no_gil;
              zero::FullWeightsOptions options;
              options.strict = strict;
              report = self.with_buffers().load_full_weights(path, options);
            }
            return to_dict(report);
          },
          py::arg("path"), py::arg("strict") = true)
      .def("save_full_weights", &save_full_weights, py::arg("folder"), py::arg("dtype") = "module");
}

}  // namespace

void bind_engine(py::module_& module) {
  py::class_<PythonEngine> engine(module, "Engine");
  engine.def("destroy", &PythonEngine::destroy)
      .def_property_readonly("is_destroyed", &PythonEngine::is_destroyed)
      .def_property_readonly("train_batch_size",
                             [](PythonEngine& self) { return self.get().config().train_batch_size; })
      .def_property_readonly("train_micro_batch_size_per_gpu",
                             [](PythonEngine& self) { return self.get().config().train_micro_batch_size_per_gpu; })
      .def_property_readonly("gradient_accumulation_steps",
                             [](PythonEngine& self) { return self.get().config().gradient_accumulation_steps; })
      .def_property_readonly("rank", [](PythonEngine& self) { return self.get().rank(); })
      .def_property_readonly("world_size", [](PythonEngine& self) { return self.get().world_size(); })
      .def_property_readonly("local_rank", [](PythonEngine& self) { return self.get().local_rank(); })
      .def(
          "memory_summary", [](PythonEngine& self) { return self.get().memory_summary(); }, NoGil())
      .def("memory_report", [](PythonEngine& self) { return memory(self.get().memory_report()); })
      .def("communication_report", [](PythonEngine& self) { return self.get().communication_report().to_string(); })
      .def("comms_summary", &comms_summary);
  bind_training(engine);
  bind_values(engine);
  bind_files(engine);
  module.def("initialize", &initialize, py::arg("module"), py::arg("config"), py::arg("group"), py::arg("groups"),
             py::arg("evaluation_only") = false, py::arg("optimizer_factory") = py::none(),
             py::arg("optimizer_name") = "", py::arg("device") = py::none());
  module.def("hyper_parameters_of_groups", [] {
    std::vector<std::string_view> names;
    for (const auto& one : zero::kHyperParameters) {
      if (one.in_groups) names.push_back(one.name);
    }
    return names;
  });
  module.def("belongs_to_engine",
             [](const at::Tensor& tensor) { return tensor.key_set().has(c10::DispatchKey::DeferredInit); });
  py::class_<Gathered>(module, "Gathered")
      .def(py::init<PythonEngine&, std::vector<at::Tensor>, std::optional<int>>(), py::arg("engine"),
           py::arg("parameters"), py::arg("modifier_rank"), NoGil())
      .def("close", &Gathered::close, py::arg("failed") = false, NoGil());
}

}  // namespace zerotorch
