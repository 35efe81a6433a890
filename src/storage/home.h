#pragma once
// Home: where the memory of an engine lives. Chosen once, by the device; nobody above asks for the device again.
#include "comm/transport.h"
#include "storage/flat_buffer.h"

namespace zero::storage {

class Home {
 public:
  Home() = default;
  /// `transport`: of those who may read in place what is made readable; null: nobody.
  /// `module_device` copies from and to what is made readable.
  Home(c10::Device device, std::shared_ptr<comm::ShardTransport> transport, c10::Device module_device = c10::kCPU)
      : device_(device), module_device_(module_device), transport_(std::move(transport)) {}

  c10::Device device() const { return device_; }

  /// For this rank alone. Local. Throws IoError with got and wanted.
  FlatBuffer make_private(Ledger& ledger, MemoryKind kind, DType dtype, std::int64_t numel) const {
    return FlatBuffer::make_private(ledger, kind, dtype, numel, device_);
  }
  /// That the other ranks may read in place. Local.
  FlatBuffer make_readable(Ledger& ledger, MemoryKind kind, DType dtype, std::int64_t numel) const {
    return transport_ ? FlatBuffer::make_readable(ledger, kind, dtype, numel, *transport_, device_, module_device_)
                      : make_private(ledger, kind, dtype, numel);
  }
  /// True when take_block() hands out, of this home's memory, what activations have left (storage/cpu_allocator.h).
  bool reuses_blocks() const;

 private:
  c10::Device device_{c10::kCPU}, module_device_{c10::kCPU};
  std::shared_ptr<comm::ShardTransport> transport_;
};

}  // namespace zero::storage
