#include "sharding/device_updates.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>

#include <exception>

#include "base/log.h"

namespace zero::sharding {

using storage::FlatBuffer;

DeviceUpdates::DeviceUpdates(const ShardedModel& model, storage::Ledger& ledger, std::int64_t most_numel)
    : model_(model),
      sums_(FlatBuffer::make_private(ledger, MemoryKind::kStaging, model.sum_dtype, most_numel, model.module_device)),
      low_(FlatBuffer::make_private(ledger, MemoryKind::kStaging, model.param_dtype, most_numel, model.module_device)),
      stream_(model.module_device) {
  stream_.wait_for_caller();  // which has filled them with zeros, and had the memory before
}

DeviceUpdates::~DeviceUpdates() {
  try {
    finish();
  } catch (const std::exception& error) {  // a device that has failed
    base::log_error("{}", error.what());
  }
}

void DeviceUpdates::begin(std::int64_t numel, Sums sums, void* low, bool reads_low, Update update) {
  const at::NoGradGuard no_grad;
  const at::Tensor own_low = low_.view(0, numel);
  const at::Tensor host_low = model_.view(low, model_.param_dtype, numel);
  const Sums own{sums_.data(), sums.dtype};
  stream_.copy(device::view_of(own.data, own.dtype, numel, model_.module_device),
               model_.view(sums.data, sums.dtype, numel));
  if (reads_low) stream_.copy(own_low, host_low);
  {
    const c10::StreamGuard here(stream_.stream());
    update(own, low_.data());
  }
  stream_.copy(host_low, own_low);
}

void DeviceUpdates::finish() { stream_.finish(); }

}  // namespace zero::sharding
