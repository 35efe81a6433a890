#include "storage/flat_buffer.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "comm/memory.h"
#include "comm/transport.h"
#include "device/device_stream.h"

namespace zero::storage {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Anonymous pages, aligned to a huge page when large enough to use one.
std::shared_ptr<void> map_private(std::size_t nbytes) {
  const std::size_t slack = nbytes >= kHugePage ? kHugePage : 0;
  const std::size_t mapped = nbytes + slack;
  void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    throw IoError(
        fmt::format("cannot map {} bytes of memory: {}; use more ranks, a higher ZeRO stage or a "
                    "smaller model",
                    nbytes, std::strerror(errno)));
  }
  auto address = reinterpret_cast<std::uintptr_t>(raw);
  if (slack) address = (address + slack - 1) / slack * slack;
  if (slack) madvise(reinterpret_cast<void*>(address), nbytes, MADV_HUGEPAGE);
  return {reinterpret_cast<void*>(address), [raw, mapped](void*) { munmap(raw, mapped); }};
}

}  // namespace

FlatBuffer::FlatBuffer(Ledger& ledger, MemoryKind kind, DType dtype, std::int64_t numel, std::int64_t charged_numel,
                       c10::Device device, std::shared_ptr<void> memory, void* data)
    : ledger_(&ledger),
      kind_(kind),
      dtype_(dtype),
      numel_(numel),
      charged_nbytes_(charged_numel * static_cast<std::int64_t>(element_nbytes(dtype))),
      device_(device),
      memory_(std::move(memory)),
      data_(data) {
  ledger_->add(kind_, charged_nbytes_, !device_.is_cpu());
}

FlatBuffer& FlatBuffer::operator=(FlatBuffer&& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(kind_, other.kind_);
  std::swap(dtype_, other.dtype_);
  std::swap(numel_, other.numel_);
  std::swap(charged_nbytes_, other.charged_nbytes_);
  std::swap(device_, other.device_);
  std::swap(memory_, other.memory_);
  std::swap(shared_, other.shared_);
  std::swap(data_, other.data_);
  return *this;
}

FlatBuffer::~FlatBuffer() {
  if (memory_) ledger_->add(kind_, -charged_nbytes_, !device_.is_cpu());
}

FlatBuffer FlatBuffer::make_private(Ledger& ledger, MemoryKind kind, DType dtype, std::int64_t numel,
                                    c10::Device device) {
  if (numel == 0) return {};
  if (device.is_cpu()) {
    auto memory = map_private(static_cast<std::size_t>(numel) * element_nbytes(dtype));
    void* data = memory.get();
    return {ledger, kind, dtype, numel, numel, device, std::move(memory), data};
  }
  auto tensor = std::make_shared<at::Tensor>(
      at::zeros({numel}, at::TensorOptions().dtype(device::to_scalar_type(dtype)).device(device)));
  void* data = tensor->data_ptr();
  return {ledger, kind, dtype, numel, numel, device, std::move(tensor), data};
}

FlatBuffer FlatBuffer::make_readable(Ledger& ledger, MemoryKind kind, DType dtype, std::int64_t numel,
                                     comm::ShardTransport& transport, c10::Device device, c10::Device copies_by) {
  if (numel == 0) return {};
  const auto nbytes = static_cast<std::size_t>(numel) * element_nbytes(dtype);
  auto memory = transport.allocate(nbytes);
  void* const data = memory.get();
  if (device.is_cpu()) memory = device::pin_host_memory(std::move(memory), data, nbytes, copies_by);
  return {ledger, kind, dtype, numel, numel, device, std::move(memory), data};
}

FlatBuffer FlatBuffer::make_node_shared(Ledger& ledger, MemoryKind kind, DType dtype, std::int64_t numel,
                                        std::int64_t charged_numel, Group& group, std::string_view label,
                                        c10::Device copies_by) {
  if (numel == 0) return {};
  const auto nbytes = static_cast<std::size_t>(numel) * element_nbytes(dtype);
  auto memory = std::make_shared<SharedMemory>(group.allocate_node_shared(nbytes, label));
  void* data = memory->data();
  std::shared_ptr<comm::Region> region = copies_by.is_cpu() ? memory->region() : nullptr;
  FlatBuffer buffer(ledger, kind, dtype, numel, charged_numel, c10::kCPU,
                    device::pin_host_memory(std::move(memory), data, nbytes, copies_by), data);
  buffer.shared_ = std::move(region);
  return buffer;
}

void FlatBuffer::unshare() {
  if (shared_) shared_->unshare();
}

FlatBuffer FlatBuffer::borrow(void* data, DType dtype, std::int64_t numel, c10::Device device) {
  FlatBuffer buffer;
  buffer.dtype_ = dtype;
  buffer.numel_ = numel;
  buffer.device_ = device;
  buffer.data_ = data;
  return buffer;
}

at::Tensor FlatBuffer::view(std::int64_t offset_numel, std::int64_t numel) const {
  ZERO_CHECK(offset_numel >= 0 && numel >= 0 && offset_numel + numel <= numel_, "[{}, +{}) of {}", offset_numel, numel,
             numel_);
  return device::view_of(data_at(offset_numel), dtype_, numel, device_);
}

}  // namespace zero::storage
