// Activations of a device in host memory: they leave while forward goes on, and the last ones that were kept come back
// first, one ahead of backward.
//
// A tensor is copied within the device first, in the stream that computes, so that the program may change it or give
// its memory back at once. What leaves and what comes back goes in one stream of its own, in that order, so that memory
// of the host can be used again without a wait.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "device/device_stream.h"
#include "io/aligned_buffer.h"
#include "offload/activations.h"
#include "zero/activations.h"

namespace zero::offload {
namespace {

using Count = std::function<void(std::int64_t)>;

/// Memory of the host that the device reads and writes by itself.
class HostBlock {
 public:
  HostBlock(std::size_t nbytes, c10::Device device, Count count) : nbytes_(nbytes), count_(std::move(count)) {
    auto memory = std::make_shared<io::AlignedBuffer>(nbytes, io::AlignedBuffer::Pages::kHuge);
    data_ = memory->data();
    pinned_ = device::pin_host_memory(std::move(memory), data_, nbytes, device);
    if (count_) count_(static_cast<std::int64_t>(nbytes));
  }
  ~HostBlock() {
    if (count_) count_(-static_cast<std::int64_t>(nbytes_));
  }
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;

  std::size_t nbytes() const { return nbytes_; }
  at::Tensor view(std::int64_t numel, at::ScalarType type) const { return at::from_blob(data_, {numel}, type); }

 private:
  std::size_t nbytes_;
  Count count_;
  std::byte* data_ = nullptr;
  std::shared_ptr<void> pinned_;
};

/// A tensor that is kept.
struct HostItem {
  at::Tensor like;  ///< sizes, strides and dtype, without memory
  std::unique_ptr<HostBlock> block;
  at::Tensor back;  ///< has come back, or is on its way
  c10::Event arrived;
};

/// All elements of a dense tensor, in the order of its memory.
at::Tensor flat(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset()); }

/// What goes from a device and back.
class Lane {
 public:
  using Item = std::list<HostItem>::iterator;

  Lane(c10::Device device, Count count) : device_(device), count_(std::move(count)), stream_(device) {
    for (Leaving& leaving : leaving_) leaving.left.emplace(stream_.make_event());
  }
  ~Lane() {
    try {
      stream_.finish();                // copies under way read and write what goes now
    } catch (const std::exception&) {  // a device that has failed
    }
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  Item keep(const at::Tensor& tensor) {
    Leaving& leaving = leaving_[next_++ % leaving_.size()];
    const c10::Stream user = stream_.caller();
    leaving.left->block(user);
    if (!leaving.memory.defined() || leaving.memory.numel() < static_cast<std::int64_t>(tensor.nbytes()))
      leaving.memory =
          at::empty({static_cast<std::int64_t>(tensor.nbytes())}, at::TensorOptions(at::kByte).device(device_));
    const at::Tensor staged =
        leaving.memory.narrow(0, 0, static_cast<std::int64_t>(tensor.nbytes())).view(tensor.scalar_type());
    staged.copy_(flat(tensor));
    HostItem item{.like = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta)),
                  .block = take_block(tensor.nbytes()),
                  .back = {},
                  .arrived = stream_.make_event()};
    stream_.wait_for(user);
    device::note_use(leaving.memory);
    note_copy_of(leaving.memory);
    stream_.copy(item.block->view(tensor.numel(), tensor.scalar_type()), staged);
    stream_.mark(*leaving.left);
    items_.push_back(std::move(item));
    return std::prev(items_.end());
  }

  at::Tensor take(Item item) {
    if (!item->back.defined()) bring_back(*item);
    item->arrived.block(stream_.caller());
    at::Tensor back = std::exchange(item->back, {});
    if (item != items_.begin()) {
      if (HostItem& before = *std::prev(item); !before.back.defined()) bring_back(before);
    }
    return back;
  }

  void drop(Item item) {
    free_.push_back(std::move(item->block));
    items_.erase(item);
  }

 private:
  /// Memory of the device on the way to the host.
  struct Leaving {
    at::Tensor memory;
    std::optional<c10::Event> left;  ///< over when nothing reads it any more
  };

  void bring_back(HostItem& item) {
    item.back = at::empty_strided(item.like.sizes(), item.like.strides(), item.like.options().device(device_));
    stream_.wait_for_caller();  // whose memory it was before
    note_copy_of(item.back);
    stream_.copy(flat(item.back), item.block->view(item.like.numel(), item.like.scalar_type()));
    stream_.mark(item.arrived);
  }

  /// Whoever gets its memory next waits for the copy.
  void note_copy_of(const at::Tensor& tensor) {
    const c10::StreamGuard here(stream_.stream());
    device::note_use(tensor);
  }

  /// Steps of one shape use the same ones again; of another shape they go.
  std::unique_ptr<HostBlock> take_block(std::size_t nbytes) {
    auto best = free_.end();
    for (auto one = free_.begin(); one != free_.end(); ++one) {
      const std::size_t size = (*one)->nbytes();
      if (size >= nbytes && size <= 2 * nbytes && (best == free_.end() || size < (*best)->nbytes())) best = one;
    }
    if (best != free_.end()) {
      std::unique_ptr<HostBlock> block = std::move(*best);
      free_.erase(best);
      return block;
    }
    if (!free_.empty()) {
      stream_.finish();
      free_.clear();
    }
    return std::make_unique<HostBlock>(nbytes, device_, count_);
  }

  const c10::Device device_;
  const Count count_;
  std::vector<std::unique_ptr<HostBlock>> free_;
  std::list<HostItem> items_;  ///< as they were kept
  std::array<Leaving, 2> leaving_;
  std::size_t next_ = 0;
  device::DeviceStream stream_;
};

class HostActivations final : public ActivationHome {
 public:
  HostActivations(std::int64_t min_nbytes, Count count) : min_nbytes_(min_nbytes), count_(std::move(count)) {}

  std::shared_ptr<Kept> keep(const at::Tensor& tensor) override;
  std::string description() const override { return "activations in host memory"; }

  at::Tensor take(Lane& lane, Lane::Item item) {
    const std::lock_guard lock(mutex_);
    const at::NoGradGuard no_grad;
    return lane.take(item);
  }
  void drop(Lane& lane, Lane::Item item) {
    const std::lock_guard lock(mutex_);
    lane.drop(item);
  }

 private:
  const std::int64_t min_nbytes_;
  const Count count_;
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, Lane> lanes_;
};

class KeptOnHost final : public ActivationHome::Kept {
 public:
  KeptOnHost(std::shared_ptr<HostActivations> home, Lane& lane, Lane::Item item)
      : home_(std::move(home)), lane_(lane), item_(item) {}
  ~KeptOnHost() override { home_->drop(lane_, item_); }
  KeptOnHost(const KeptOnHost&) = delete;
  KeptOnHost& operator=(const KeptOnHost&) = delete;
  at::Tensor take() override { return home_->take(lane_, item_); }

 private:
  std::shared_ptr<HostActivations> home_;
  Lane& lane_;
  Lane::Item item_;
};

std::shared_ptr<ActivationHome::Kept> HostActivations::keep(const at::Tensor& tensor) {
  if (!is_plain(tensor, min_nbytes_) || tensor.is_cpu() || tensor.is_meta()) return nullptr;
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  const c10::Device device = tensor.device();
  Lane& lane = lanes_.try_emplace({device.type(), device.index()}, device, count_).first->second;
  return std::make_shared<KeptOnHost>(std::static_pointer_cast<HostActivations>(shared_from_this()), lane,
                                      lane.keep(tensor));
}

}  // namespace

std::shared_ptr<ActivationHome> activations_in_host_memory(std::int64_t min_nbytes, Count count) {
  return std::make_shared<HostActivations>(min_nbytes, std::move(count));
}

}  // namespace zero::offload

namespace zero {

std::shared_ptr<ActivationHome> activations_in_host_memory(std::int64_t min_nbytes) {
  return offload::activations_in_host_memory(min_nbytes, {});
}

}  // namespace zero
