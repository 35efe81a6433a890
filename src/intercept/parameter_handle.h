#pragma once
// ParameterHandle: one parameter whose memory ZeRO owns.
//
// The parameter keeps its TensorImpl (every handle the user holds stays valid) but gets a storage of its
// own, whose DataPtr we point at gathered memory and take away again. The handle travels as the DataPtr's
// context, so that an operator's argument leads to it in O(1) and without a global table: views, detached
// copies and tensors saved for backward all share the storage.
//
//   attached   data() is the parameter's memory; nobody may free it before release()
//   released   the storage has no memory; a raw access throws an error that names the parameter
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>

namespace zero::intercept {

class ParameterHandle;

/// Told about every use of a parameter by an operator. Called on the thread that runs the operator.
class UseObserver {
 public:
  virtual ~UseObserver() = default;
  /// The operator is about to read the parameter's values: attach them and keep them until after_use.
  /// May throw; then the operator does not run and the caller of the operator sees the exception.
  virtual void before_use(ParameterHandle& handle) = 0;
  virtual void after_use(ParameterHandle& handle) noexcept = 0;
  /// The operator is about to write the parameter in place. Throws to refuse.
  virtual void before_write(ParameterHandle& handle, const char* op_name) = 0;
};

class ParameterHandle : public c10::intrusive_ptr_target {
 public:
  ParameterHandle(std::string name, int parameter, int unit)
      : name_(std::move(name)), parameter_(parameter), unit_(unit) {}

  const std::string& name() const { return name_; }
  int parameter() const { return parameter_; }
  int unit() const { return unit_; }
  UseObserver* observer() const { return observer_; }

  /// Gives `parameter` a storage of `nbytes` bytes that belongs to this handle, with dtype, sizes and
  /// strides as said and released; sets the dispatch key. The old storage is dropped. Local.
  void adopt(const at::Tensor& parameter, at::ScalarType dtype, at::IntArrayRef strides, std::size_t nbytes,
             c10::Device device, UseObserver* observer);

  /// Points the storage at `data`; 64-byte aligned, valid until release().
  void attach(void* data);
  /// Takes the memory away; raw access throws from now on, with `message` (empty: that values are not gathered).
  void release(const std::string& message = {});
  bool attached() const { return attached_; }
  /// What attach() was given; null when released.
  void* data() const { return attached_ ? data_ : nullptr; }

  /// Ends the observation: the parameter becomes an ordinary tensor. If attached it keeps its memory alive
  /// through `keep_alive`; if released it throws `why` on access.
  void retire(const at::Tensor& parameter, std::shared_ptr<void> keep_alive, const std::string& why);

  /// True while `parameter` still has our storage and key (module.to() replaces them).
  bool owns(const at::Tensor& parameter) const;

  /// The handle behind a tensor's storage; null for tensors that are none of ours.
  static ParameterHandle* of(const at::Tensor& tensor);

 private:
  c10::DataPtr data_ptr(void* data);

  std::string name_;
  int parameter_;
  int unit_;
  UseObserver* observer_ = nullptr;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_{c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(nullptr)};
  c10::Device device_{c10::kCPU};
  bool attached_ = false;
  void* data_ = nullptr;
  std::string released_message_;
  std::shared_ptr<void> keep_alive_;
};

}  // namespace zero::intercept
