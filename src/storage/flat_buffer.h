#pragma once
// FlatBuffer: a flat run of elements of one dtype, and where it lives. Registered with the ledger.
#include <ATen/core/Tensor.h>

#include <memory>

#include "device/tensor_view.h"
#include "storage/ledger.h"
#include "zero/dtype.h"
#include "zero/group.h"

namespace zero::comm {
class Region;
class ShardTransport;
}  // namespace zero::comm

namespace zero::storage {

class FlatBuffer {
 public:
  FlatBuffer() = default;
  FlatBuffer(FlatBuffer&&) noexcept = default;
  FlatBuffer& operator=(FlatBuffer&&) noexcept;
  FlatBuffer(const FlatBuffer&) = delete;
  ~FlatBuffer();

  /// Private memory on `device`: on the CPU page-aligned and zero on first touch (huge pages where the
  /// system grants them), elsewhere a zero-filled tensor. Local. Throws IoError with got and wanted.
  static FlatBuffer make_private(Ledger& ledger, MemoryKind kind, DType dtype, std::int64_t numel,
                                 c10::Device device = c10::kCPU);
  /// The transport's memory, of `device`, that the other ranks of this host can read in place; on the CPU pinned for
  /// `copies_by` where that is an accelerator. Local.
  static FlatBuffer make_readable(Ledger& ledger, MemoryKind kind, DType dtype, std::int64_t numel,
                                  comm::ShardTransport& transport, c10::Device device = c10::kCPU,
                                  c10::Device copies_by = c10::kCPU);
  /// One CPU mapping for all ranks of the host, pinned as in make_readable(); the ledger is charged `charged_numel`.
  /// *Collective.*
  static FlatBuffer make_node_shared(Ledger& ledger, MemoryKind kind, DType dtype, std::int64_t numel,
                                     std::int64_t charged_numel, Group& group, std::string_view label,
                                     c10::Device copies_by = c10::kCPU);

  /// [numel] elements at `data`, which is somebody else's, and in nobody's ledger by this. Local.
  static FlatBuffer borrow(void* data, DType dtype, std::int64_t numel, c10::Device device);

  bool empty() const { return numel_ == 0; }
  std::int64_t numel() const { return numel_; }
  DType dtype() const { return dtype_; }
  c10::Device device() const { return device_; }
  std::size_t nbytes() const { return static_cast<std::size_t>(numel_) * element_nbytes(dtype_); }

  void* data() const { return data_; }
  void* data_at(std::int64_t offset_numel) const {
    return static_cast<char*>(data_) + offset_numel * static_cast<std::int64_t>(element_nbytes(dtype_));
  }
  template <class T>
  T* data_as() const {
    return static_cast<T*>(data_);
  }
  /// A tensor over [offset, offset+numel), contiguous, not owning.
  at::Tensor view(std::int64_t offset_numel, std::int64_t numel) const;
  /// Keeps the memory alive beyond this buffer.
  std::shared_ptr<void> keep_alive() const { return memory_; }
  /// Of make_node_shared() on a host without accelerators: what this process writes from here on is its own.
  void unshare();

 private:
  FlatBuffer(Ledger& ledger, MemoryKind kind, DType dtype, std::int64_t numel, std::int64_t charged_numel,
             c10::Device device, std::shared_ptr<void> memory, void* data);

  Ledger* ledger_ = nullptr;
  MemoryKind kind_ = MemoryKind::kStaging;
  DType dtype_ = DType::kByte;
  std::int64_t numel_ = 0;
  std::int64_t charged_nbytes_ = 0;
  c10::Device device_{c10::kCPU};
  std::shared_ptr<void> memory_;
  std::shared_ptr<comm::Region> shared_;  ///< with all ranks of the host, and nobody has pinned it
  void* data_ = nullptr;
};

}  // namespace zero::storage
