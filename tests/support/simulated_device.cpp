#include "support/simulated_device.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/from_blob.h>
#include <ATen/TensorOperators.h>
#include <fcntl.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/device_sharing.h"
#include "support/simulated_queues.h"
#include "zero/errors.h"

namespace zero::testing::simulated {
namespace {

using torch::jit::Stack;

/// A tensor that a task will use: where it lies, without keeping it alive.
struct Place {
  char* address = nullptr;  // that the simulation can access
  c10::DimVector sizes, strides;
  at::ScalarType dtype = at::kFloat;
  bool wrapped_number = false;

  static Place of(const at::Tensor& tensor) {
    TORCH_CHECK(tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg(),
                "simulated device: tensors of this kind are not supported");
    Place place{nullptr, c10::DimVector(tensor.sizes()), c10::DimVector(tensor.strides()), tensor.scalar_type(),
                tensor.unsafeGetTensorImpl()->is_wrapped_number()};
    if (tensor.numel() == 0) return place;
    const c10::StorageImpl& storage = *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    const auto offset = static_cast<std::size_t>(tensor.storage_offset());
    TORCH_CHECK(
        at::detail::computeStorageNbytes(place.sizes, place.strides, tensor.itemsize(), offset) <= storage.nbytes() &&
            storage.data() != nullptr,
        "simulated device: a tensor of sizes ", tensor.sizes(), " whose memory was released");
    char* const address =
        static_cast<char*>(const_cast<void*>(storage.data())) + offset * static_cast<std::size_t>(tensor.itemsize());
    place.address = tensor.device().type() == kSim ? the_device().arena().access(address) : address;
    return place;
  }
  at::Tensor tensor() const {
    at::Tensor made = at::for_blob(address, sizes)
                          .strides(strides)
                          .options(at::TensorOptions(dtype))
                          .target_device(c10::Device(at::kCPU))
                          .make_tensor();
    if (wrapped_number) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
  }
};

enum class Make { kAliases, kMeta, kZeros };

/// One argument of an operator, as a task keeps it.
struct Argument {
  struct Element {
    std::optional<Place> place;  // of the device
    at::Tensor host;             // of the host, a copy; or undefined
  };
  enum class Form { kValue, kTensor, kTensors, kOptionalTensors };

  Form form = Form::kValue;
  c10::IValue value;
  std::vector<Element> elements;
  bool out = false;

  static at::Tensor make(const Element& element, Make how, bool out) {
    if (!element.place) {
      if (how != Make::kMeta || !element.host.defined() || element.host.dim() == 0) return element.host;
      return at::detail::empty_strided_meta(element.host.sizes(), element.host.strides(), element.host.scalar_type());
    }
    const Place& place = *element.place;
    if (how == Make::kAliases && !out) return place.tensor();
    at::Tensor made = how == Make::kMeta ? at::detail::empty_strided_meta(place.sizes, place.strides, place.dtype)
                                         : at::detail::empty_strided_cpu(place.sizes, place.strides, place.dtype);
    if (how == Make::kZeros) made.zero_();
    if (place.wrapped_number) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
  }
  /// `resizable_out`: an output is made as a new tensor.
  c10::IValue make(Make how, bool resizable_out = false) const {
    const bool fresh = out && resizable_out;
    switch (form) {
      case Form::kTensor:
        return make(elements[0], how, fresh);
      case Form::kTensors: {
        c10::List<at::Tensor> list;
        for (const Element& element : elements) list.push_back(make(element, how, fresh));
        return list;
      }
      case Form::kOptionalTensors: {
        c10::List<std::optional<at::Tensor>> list;
        for (const Element& element : elements) {
          const at::Tensor made = make(element, how, fresh);
          list.push_back(made.defined() ? std::optional(made) : std::nullopt);
        }
        return list;
      }
      case Form::kValue:
        break;
    }
    if (value.isDevice() && value.toDevice().type() == kSim)
      return c10::Device(how == Make::kMeta ? at::kMeta : at::kCPU);
    return value;
  }
};

/// How an operator is carried out.
enum class Way {
  kView,     ///< gives another tensor of the same memory
  kMeta,     ///< late; outputs as the operator makes them from tensors without memory
  kZeros,    ///< late; outputs as the operator makes them from zeros
  kInPlace,  ///< late, without outputs of its own
  kPrompt,   ///< at once: what it gives depends on values, or it is random
};

struct Traits {
  Way way = Way::kPrompt;
  int generator = -1;  ///< which argument
  bool seeded = false;
  bool takes_host_tensors = false;
};

bool is_out(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_tensors(const c10::TypePtr& type) {
  return type->isSubtypeOf(*c10::TensorType::get()) || type->isSubtypeOf(*c10::ListType::ofTensors());
}

Traits traits_of(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  Traits traits;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].name() == "generator") traits.generator = static_cast<int>(i);
  }
  traits.seeded = op.hasTag(at::Tag::nondeterministic_seeded);
  // As in libtorch, indices may come from the host.
  traits.takes_host_tensors = schema.name().find("index") != std::string::npos;
  bool own_outputs = false, values = false;
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) {
      traits.way = Way::kView;
      return traits;
    }
    values |= !is_tensors(result.type());
    own_outputs |= result.alias_info() == nullptr;
  }
  bool outs = false;
  for (const c10::Argument& argument : schema.arguments()) outs |= is_out(argument);
  const bool depends = op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output) ||
                       schema.name() == "aten::_unique";  // without that tag in libtorch 2.11
  if (values || traits.seeded || traits.generator >= 0 || depends) {
    traits.way = Way::kPrompt;
  } else if (op.hasKernelForDispatchKey(DispatchKey::Meta)) {
    traits.way = Way::kMeta;
  } else {
    traits.way = own_outputs || outs ? Way::kZeros : Way::kInPlace;
  }
  return traits;
}

Argument::Element element_of(const at::Tensor& tensor, const c10::FunctionSchema& schema, const Traits& traits,
                             bool written) {
  if (!tensor.defined()) return {};
  if (tensor.device().type() == kSim) return {Place::of(tensor), {}};
  TORCH_CHECK(tensor.is_cpu() && !written && (tensor.dim() == 0 || traits.takes_host_tensors), schema.name(),
              ": Expected all tensors to be on the same device, but found at least two devices, sim:0 and ",
              tensor.device());
  const CleanState clean;
  at::Tensor copy = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return {std::nullopt, copy};
}

std::vector<Argument> arguments_of(const c10::FunctionSchema& schema, const Traits& traits,
                                   c10::ArrayRef<c10::IValue> values) {
  std::vector<Argument> made(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const c10::IValue& value = values[i];
    Argument& argument = made[i];
    const auto* alias = schema.arguments()[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    argument.out = is_out(schema.arguments()[i]);
    if (value.isTensor()) {
      argument.form = Argument::Form::kTensor;
      argument.elements.push_back(element_of(value.toTensor(), schema, traits, written));
    } else if (value.isTensorList()) {
      argument.form = Argument::Form::kTensors;
      for (const at::Tensor& tensor : value.toTensorVector())
        argument.elements.push_back(element_of(tensor, schema, traits, written));
    } else if (value.isOptionalTensorList()) {
      argument.form = Argument::Form::kOptionalTensors;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
        argument.elements.push_back(element_of(tensor.value_or(at::Tensor()), schema, traits, written));
    } else if (static_cast<int>(i) == traits.generator) {
      const at::Generator generator = value.isNone() ? default_generator() : value.toGenerator();
      argument.value = generator.device().type() == kSim
                           ? static_cast<SimGenerator*>(generator.unsafeGetGeneratorImpl())->inner()
                           : generator;
    } else {
      argument.value = value;
    }
  }
  return made;
}

Stack stack_of(const std::vector<Argument>& arguments, Make how, bool resizable_out) {
  Stack stack;
  stack.reserve(arguments.size());
  for (const Argument& argument : arguments) stack.push_back(argument.make(how, resizable_out));
  return stack;
}

/// Which argument an operator gives back as a result; -1: none.
int returned_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr) return -1;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) return static_cast<int>(i);
  }
  return -1;
}

at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  return at::Tensor(at::detail::empty_strided_generic(sizes, strides, &allocator(), kKeys, dtype));
}

void resize_tensor(const at::Tensor& tensor, at::IntArrayRef sizes, at::OptionalIntArrayRef strides) {
  auto* const impl = tensor.unsafeGetTensorImpl();
  if (impl->sizes() == sizes && (!strides || impl->strides() == *strides)) return;
  if (strides) {
    impl->set_sizes_and_strides(sizes, *strides);
  } else {
    impl->set_sizes_contiguous(sizes);
  }
  if (impl->numel() == 0) return;
  const std::size_t nbytes = at::detail::computeStorageNbytes(impl->sizes(), impl->strides(), tensor.itemsize(),
                                                              static_cast<std::size_t>(impl->storage_offset()));
  c10::StorageImpl* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (nbytes > storage->nbytes()) resize_storage(storage, nbytes);
}

/// As a new tensor on the device, or elements of a list of them. Places of defined tensors are added to `places`.
c10::IValue new_like(const c10::IValue& result, std::vector<std::optional<Place>>& places) {
  const auto one = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) {
      places.emplace_back();
      return at::Tensor();
    }
    at::Tensor made = new_tensor(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    places.emplace_back(Place::of(made));
    return made;
  };
  if (result.isTensor()) return one(result.toTensor());
  if (result.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : result.toTensorVector()) list.push_back(one(tensor));
    return list;
  }
  return result;
}

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  return {};
}

/// Puts values of the host into memory of the device; the task owns them.
void write_later(const at::Tensor& holder, const Place& to) {
  Locked()->add_work([holder, to] { to.tensor().copy_(holder); });
}

/// What operators without a generator among their arguments draw from is the device's generator as well.
class DrawsFromDevice {
 public:
  explicit DrawsFromDevice(bool needed) : needed_(needed) {
    if (needed_) exchange();
  }
  ~DrawsFromDevice() {
    if (needed_) exchange();
  }
  DrawsFromDevice(const DrawsFromDevice&) = delete;
  DrawsFromDevice& operator=(const DrawsFromDevice&) = delete;

 private:
  static void exchange() {
    at::Generator host = at::detail::getDefaultCPUGenerator();
    at::Generator& device = static_cast<SimGenerator*>(default_generator().unsafeGetGeneratorImpl())->inner();
    const std::lock_guard lock(host.mutex());
    const at::Tensor state = host.get_state();
    host.set_state(device.get_state());
    device.set_state(state);
  }
  const bool needed_;
};

Stack run_now(const c10::OperatorHandle& op, const Traits& traits, c10::ArrayRef<c10::IValue> values) {
  const c10::FunctionSchema& schema = op.schema();
  const auto arguments = arguments_of(schema, traits, values);
  const Locked device;
  ++device->counts().prompt;
  if (schema.name() == "aten::_local_scalar_dense") ++device->counts().copies_to_host;
  if (device->on_prompt) device->on_prompt(schema.name().c_str());
  device->run_until({device->end_of(device->current())});
  Stack results, outs;
  {
    const CleanState clean;
    const DrawsFromDevice draws(traits.seeded && traits.generator < 0);
    results = stack_of(arguments, Make::kAliases, true);
    outs = results;
    op.callBoxed(results);
    for (c10::IValue& result : results) {
      // Memory of the device does not leave it.
      if (result.isTensor() && result.toTensor().defined() && result.toTensor().is_cpu()) {
        const bool given = std::any_of(outs.begin(), outs.end(), [&](const c10::IValue& argument) {
          return argument.isTensor() && argument.toTensor().defined() &&
                 argument.toTensor().is_alias_of(result.toTensor());
        });
        if (given) result = result.toTensor().clone();
      }
    }
  }
  Stack given;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const int argument = returned_argument(schema, schema.returns()[i]);
    if (argument >= 0) {
      given.push_back(values[argument]);
      continue;
    }
    std::vector<std::optional<Place>> places;
    given.push_back(new_like(results[i], places));
    const auto tensors = tensors_in(results[i]);
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      if (places[k]) write_later(tensors[k], *places[k]);
    }
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].out) continue;
    const auto written = tensors_in(outs[i]), targets = tensors_in(values[i]);
    for (std::size_t k = 0; k < written.size(); ++k) {
      if (targets[k].sizes() != written[k].sizes()) resize_tensor(targets[k], written[k].sizes(), std::nullopt);
      write_later(written[k], Place::of(targets[k]));
    }
  }
  return given;
}

/// The results of an operator, without values.
Stack shapes_of(const c10::OperatorHandle& op, Traits& traits, const std::vector<Argument>& arguments) {
  const CleanState clean;
  if (traits.way == Way::kMeta) {
    try {
      Stack stack = stack_of(arguments, Make::kMeta, true);
      op.callBoxed(stack);
      return stack;
    } catch (const c10::NotImplementedError&) {
      traits.way = Way::kZeros;
    }
  }
  Stack stack = stack_of(arguments, Make::kZeros, true);
  op.callBoxed(stack);
  return stack;
}

Stack run_later(const c10::OperatorHandle& op, Traits& traits, c10::ArrayRef<c10::IValue> values) {
  const c10::FunctionSchema& schema = op.schema();
  auto arguments = arguments_of(schema, traits, values);
  const Locked device;
  Stack given;
  std::vector<std::optional<Place>> places;  // of all tensors that are made here
  if (traits.way != Way::kInPlace) {
    const Stack shapes = shapes_of(op, traits, arguments);
    bool resized = false;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const int argument = returned_argument(schema, schema.returns()[i]);
      if (argument < 0) {
        given.push_back(new_like(shapes[i], places));
        continue;
      }
      given.push_back(values[argument]);
      if (!arguments[argument].out || !values[argument].isTensor()) continue;
      const at::Tensor out = values[argument].toTensor(), shape = shapes[i].toTensor();
      if (out.sizes() == shape.sizes()) continue;
      resize_tensor(out, shape.sizes(), shape.strides());
      resized = true;
    }
    if (resized) arguments = arguments_of(schema, traits, values);
  } else {
    for (const c10::Argument& result : schema.returns()) given.push_back(values[returned_argument(schema, result)]);
  }
  device->add_work([op, arguments = std::move(arguments), places = std::move(places)] {
    const c10::FunctionSchema& schema = op.schema();
    Stack stack = stack_of(arguments, Make::kAliases, false);
    op.callBoxed(stack);
    std::size_t next = 0;
    for (std::size_t i = 0; i < stack.size(); ++i) {
      if (returned_argument(schema, schema.returns()[i]) >= 0) continue;
      for (const at::Tensor& tensor : tensors_in(stack[i])) {
        const auto& place = places.at(next++);
        if (!place || !tensor.defined()) continue;
        TORCH_CHECK(tensor.sizes() == at::IntArrayRef(place->sizes) && tensor.scalar_type() == place->dtype,
                    schema.name(), ": its results depend on values: ", tensor.sizes(), " instead of ", place->sizes);
        place->tensor().copy_(tensor);
      }
    }
  });
  return given;
}

/// Carries out any operator: most of them late.
void issue(const c10::OperatorHandle& op, Stack* stack) {
  const Locked device;
  static auto& known = *new std::unordered_map<const c10::FunctionSchema*, Traits>;
  auto found = known.find(&op.schema());
  if (found == known.end()) found = known.emplace(&op.schema(), traits_of(op)).first;
  Traits& traits = found->second;
  if (traits.way == Way::kView) {
    // Kernels of views look at sizes and strides only.
    op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), stack);
    return;
  }
  const std::size_t count = op.schema().arguments().size();
  const auto values = torch::jit::last(*stack, count);
  Stack results = traits.way == Way::kPrompt ? run_now(op, traits, values) : run_later(op, traits, values);
  torch::jit::drop(*stack, count);
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

c10::OperatorHandle find(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

void convolution(const c10::OperatorHandle&, Stack* stack) {
  static const auto op = find("aten::convolution");
  issue(op, stack);
}

void convolution_backward(const c10::OperatorHandle&, Stack* stack) {
  static const auto op = find("aten::convolution_backward");
  const auto first = stack->end() - 10;
  const std::vector<std::int64_t> bias_sizes{first->toTensor().size(1)};
  stack->insert(first + 3, c10::IValue(bias_sizes));
  issue(op, stack);
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!layout || *layout == at::kStrided, "simulated device: dense tensors only");
  return at::Tensor(at::detail::empty_generic(sizes, &allocator(), kKeys, at::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return new_tensor(sizes, strides, at::dtype_or_default(dtype));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  resize_tensor(self, sizes, std::nullopt);
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_memory(at::Tensor& self, at::Storage storage, std::int64_t offset, at::IntArrayRef sizes,
                       at::IntArrayRef strides) {
  at::native::checkSetStorage(self, std::move(storage), offset, sizes, strides);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  resize_tensor(self, sizes, strides.data() != nullptr ? at::OptionalIntArrayRef(strides) : std::nullopt);
  return self;
}

at::Tensor& set_to_storage(at::Tensor& self, at::Storage storage) {
  const auto numel = static_cast<std::int64_t>(storage.nbytes() / self.itemsize());
  return set_memory(self, std::move(storage), 0, {numel}, {});
}

at::Tensor& set_to_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_memory(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_to_nothing(at::Tensor& self) {
  return set_memory(self, at::Storage(at::Storage::use_byte_size_t(), 0, &allocator(), true), 0, {0}, {});
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  TORCH_CHECK(at::is_expandable_to(source.sizes(), self.sizes()), "The size of tensor a ", self.sizes(),
              " must match the size of tensor b ", source.sizes());
  if (self.numel() == 0) return self;
  const Locked device;
  const Place to = Place::of(self);
  if (source.device().type() != kSim) {
    TORCH_CHECK(source.is_cpu(), "simulated device: a copy from ", source.device());
    ++device->counts().copies_to_device;
    if (!non_blocking) {
      at::Tensor values;
      {
        const CleanState clean;
        values = source.clone();
      }
      write_later(values, to);
      return self;
    }
  }
  const Place from = Place::of(source);
  device->add_work([to, from] { to.tensor().copy_(from.tensor()); });
  if (self.device().type() != kSim) {
    TORCH_CHECK(self.is_cpu(), "simulated device: a copy to ", self.device());
    ++device->counts().copies_to_host;
    if (!non_blocking) device->run_until({device->end_of(device->current())});
  }
  return self;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& to, bool non_blocking) {
  at::Tensor target = to;
  return copy_(target, source, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& to) {
  if (to.device().type() == kSim) {
    resize_tensor(to, source.sizes(), std::nullopt);
  } else {
    to.resize_(source.sizes());
  }
  return copy_from(source, to, false);
}

void record_stream(at::Tensor& self, at::Stream stream) { allocator().recordStream(self.storage().data_ptr(), stream); }

/// A module's parameters may move between the host and the device.
bool has_compatible_type(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.device().type() == kSim);
  };
  return dense(self) && dense(from);
}

/// Attention is taken apart, here and in autograd.
std::int64_t math_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                            double, bool, std::optional<double>, bool) {
  return 0;  // sdp::SDPBackend::math
}

/// What LSTM layers call on accelerators, from operators that autograd knows.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                         const at::Tensor& cx, const std::optional<at::Tensor>& b_ih,
                                                         const std::optional<at::Tensor>& b_hh) {
  at::Tensor gates = input_gates + hidden_gates;
  if (b_ih && b_ih->defined()) gates = gates + *b_ih;
  if (b_hh && b_hh->defined()) gates = gates + *b_hh;
  const auto parts = gates.chunk(4, 1);
  const at::Tensor cy = parts[1].sigmoid() * cx + parts[0].sigmoid() * parts[2].tanh();
  return {parts[3].sigmoid() * cy.tanh(), cy, gates.detach()};
}

std::atomic<Sharing> sharing_of_memory = Sharing::kWorks;

/// Blocks are files of memory, which other processes open by the number that they have here.
class SimSharing final : public device::DeviceSharing {
  struct Block {
    pid_t process = 0;
    int file = -1;
  };

 public:
  std::shared_ptr<void> allocate(c10::Device, std::size_t nbytes, device::SharedHandle& handle) override {
    const Block block{getpid(), memory_file(nbytes)};
    std::memcpy(handle.bytes.data(), &block, sizeof(block));
    return {Locked()->share(block.file, nbytes), [file = block.file](void* address) {
              Locked()->no_longer(address);
              close(file);
            }};
  }
  std::shared_ptr<void> open(c10::Device, const device::SharedHandle& handle, std::size_t nbytes) override {
    if (sharing_of_memory == Sharing::kRefusesToMap) throw IoError("simulated device: it maps nothing of others");
    if (sharing_of_memory == Sharing::kMapsOtherMemory) {
      device::SharedHandle mine;
      return allocate(device(), nbytes, mine);
    }
    Block block;
    std::memcpy(&block, handle.bytes.data(), sizeof(block));
    const std::string path = "/proc/" + std::to_string(block.process) + "/fd/" + std::to_string(block.file);
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    TORCH_CHECK(file >= 0, "simulated device: ", path, ": ", std::strerror(errno));
    void* const address = Locked()->share(file, nbytes);
    close(file);
    return {address, [](void* mapped) { Locked()->no_longer(mapped); }};
  }
};

void register_backend() {
  device::register_device_sharing(kSim, std::make_shared<SimSharing>());
  c10::register_privateuse1_backend("sim");
  c10::SetAllocator(kSim, &allocator());
  c10::impl::registerDeviceGuard(kSim, new SimGuard);
  at::RegisterPrivateUse1HooksInterface(new SimHooks);
  using torch::CppFunction;
  using torch::Library;
  static auto& rest = *new Library(Library::IMPL, "_", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  rest.fallback(CppFunction::makeFromBoxedFunction<&issue>());
  static auto& autograd = *new Library(Library::IMPL, "aten", DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  autograd.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  static auto& own = *new Library(Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  own.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  own.impl("empty.memory_format", TORCH_FN(empty));
  own.impl("empty_strided", TORCH_FN(empty_strided));
  own.impl("resize_", TORCH_FN(resize_));
  own.impl("set_.source_Storage_storage_offset", TORCH_FN(set_memory));
  own.impl("set_.source_Storage", TORCH_FN(set_to_storage));
  own.impl("set_.source_Tensor", TORCH_FN(set_to_tensor));
  own.impl("set_", TORCH_FN(set_to_nothing));
  own.impl("copy_", TORCH_FN(copy_));
  own.impl("_copy_from", TORCH_FN(copy_from));
  own.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  own.impl("record_stream", TORCH_FN(record_stream));
  own.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_type));
  own.impl("_fused_sdp_choice", TORCH_FN(math_attention));
  own.impl("convolution_overrideable", CppFunction::makeFromBoxedFunction<&convolution>());
  own.impl("convolution_backward_overrideable", CppFunction::makeFromBoxedFunction<&convolution_backward>());
  // What the CPU does with a kernel of its own is one operator here, too, with the same bits.
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(DispatchKey::CPU) ||
        op->hasKernelForDispatchKey(DispatchKey::PrivateUse1)) {
      continue;
    }
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    own.impl(full.c_str(), CppFunction::makeFromBoxedFunction<&issue>());
  }
}

}  // namespace

void start(Options options) {
  static std::once_flag registered;
  std::call_once(registered, register_backend);
  the_device().start(std::move(options));
  at::Generator generator = default_generator();
  generator.set_current_seed(c10::default_rng_seed_val);
}

void share_memory(Sharing how) { sharing_of_memory = how; }

c10::Device device() { return kDevice; }

Counts counts() { return Locked()->counts(); }

std::uint64_t order() { return Locked()->order(); }

void on_prompt(std::function<void(const char* name)> seen) { Locked()->on_prompt = std::move(seen); }

void finish() { Locked()->run_all(); }

}  // namespace zero::testing::simulated
