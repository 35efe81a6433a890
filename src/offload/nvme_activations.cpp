// Activations in a scratch file: the last ones that were kept are the first that are wanted.
//
// A tensor is copied into a buffer, from which it is written while the program goes on; wanted before the buffer has
// another use, it is taken from there. Taking one begins to read the one that was kept before it.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "io/aligned_buffer.h"
#include "io/file_system.h"
#include "offload/activations.h"
#include "zero/activations.h"
#include "zero/errors.h"
#include "zero/memory.h"

namespace zero::offload {
namespace {

constexpr std::uint64_t kPage = 4096;

std::uint64_t padded(std::uint64_t nbytes) { return (nbytes + kPage - 1) / kPage * kPage; }

/// What is free of a file that grows, lowest first.
class FileRoom {
 public:
  std::uint64_t take(std::uint64_t nbytes) {
    for (auto free = free_.begin(); free != free_.end(); ++free) {
      if (free->second < nbytes) continue;
      const auto [offset, size] = *free;
      free_.erase(free);
      if (size > nbytes) free_[offset + nbytes] = size - nbytes;
      return offset;
    }
    return std::exchange(end_, end_ + nbytes);
  }
  void give(std::uint64_t offset, std::uint64_t nbytes) {
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && offset + nbytes == next->first) {
      nbytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        nbytes += before->second;
        free_.erase(before);
      }
    }
    if (offset + nbytes == end_) {
      end_ = offset;
    } else {
      free_[offset] = nbytes;
    }
  }
  std::uint64_t end() const { return end_; }

 private:
  std::map<std::uint64_t, std::uint64_t> free_;  // offset, size
  std::uint64_t end_ = 0;
};

/// A tensor that is kept.
struct Item {
  std::vector<std::int64_t> sizes, strides;
  at::ScalarType dtype{};
  std::uint64_t offset = 0, nbytes = 0, checksum = 0;
  std::uint64_t number = 0;  ///< for people
  int buffer = -1;           ///< where its bytes are, or are going
};

struct Buffer {
  io::AlignedBuffer memory;
  Item* item = nullptr;
  std::optional<io::File::Request> request;
  bool is_read = false;       ///< from the file, and not looked at yet
  std::uint64_t used_at = 0;  ///< the one used longest ago is used next
};

class Activations final : public NvmeActivations {
 public:
  Activations(const NvmeActivationOptions& options, io::FileSystem& files, std::function<void(std::int64_t)> count)
      : options_(options), count_buffers_(std::move(count)) {
    if (options.folder.empty()) throw ConfigError("activations on NVMe: want a folder");
    if (options.buffers < 2)
      throw ConfigError(fmt::format("activations on NVMe: got {} buffers, want 2 at least", options.buffers));
    if (options.block_nbytes < 1 || options.queue_depth < 1) {
      throw ConfigError(fmt::format("activations on NVMe: got blocks of {} bytes and a queue of {}, want 1 at least",
                                    options.block_nbytes, options.queue_depth));
    }
    files.make_folders(options.folder);
    file_ = files.create_scratch(options.folder, {.block_nbytes = static_cast<std::uint64_t>(options.block_nbytes),
                                                  .queue_depth = static_cast<unsigned>(options.queue_depth)});
    buffers_.resize(static_cast<std::size_t>(options.buffers));
  }
  ~Activations() override {
    file_.reset();  // drains: nothing touches the buffers any more
    for (Buffer& buffer : buffers_) resize(buffer, 0);
  }

  std::shared_ptr<Kept> keep(const at::Tensor& tensor) override;
  at::Tensor take(std::list<Item>::iterator item);
  void drop(std::list<Item>::iterator item);

  std::string description() const override {
    return fmt::format("activations on NVMe: in '{}', {}, {} buffers", options_.folder, file_->description(),
                       buffers_.size());
  }
  ActivationTraffic traffic() const override {
    const std::lock_guard lock(mutex_);
    return traffic_;
  }

 private:
  /// A buffer of that size at least; what it held is in the file.
  int free_buffer(std::uint64_t nbytes);
  void resize(Buffer& buffer, std::uint64_t nbytes);
  void finish(Buffer& buffer);
  void begin_reading(Item& item);
  /// That the bytes which were read are those that were written. Throws IoError.
  void check(Buffer& buffer);
  [[noreturn]] void fail(const Item& item, const std::string& what) const {
    throw IoError(fmt::format("activations in '{}': tensor {} of {} at byte {} of the scratch file: {}",
                              options_.folder, item.number, human_nbytes(static_cast<std::int64_t>(item.nbytes)),
                              item.offset, what));
  }
  template <class Do>
  void named(const Item& item, const Do& work) {
    try {
      work();
    } catch (const IoError& error) {
      fail(item, error.what());
    }
  }

  const NvmeActivationOptions options_;
  const std::function<void(std::int64_t)> count_buffers_;
  mutable std::mutex mutex_;
  std::unique_ptr<io::File> file_;
  FileRoom room_;
  std::uint64_t reserved_ = 0;
  std::vector<Buffer> buffers_;
  std::list<Item> items_;  ///< as they were kept
  std::uint64_t count_ = 0, uses_ = 0;
  ActivationTraffic traffic_;
};

/// An item of its home.
class KeptItem final : public ActivationHome::Kept {
 public:
  KeptItem(std::shared_ptr<Activations> home, std::list<Item>::iterator item) : home_(std::move(home)), item_(item) {}
  ~KeptItem() override { home_->drop(item_); }
  KeptItem(const KeptItem&) = delete;
  KeptItem& operator=(const KeptItem&) = delete;
  at::Tensor take() override { return home_->take(item_); }

 private:
  std::shared_ptr<Activations> home_;
  std::list<Item>::iterator item_;
};

std::shared_ptr<ActivationHome::Kept> Activations::keep(const at::Tensor& tensor) {
  if (!can_leave_memory(tensor, options_.min_nbytes)) return nullptr;
  const std::lock_guard lock(mutex_);
  Item item{.sizes = tensor.sizes().vec(),
            .strides = tensor.strides().vec(),
            .dtype = tensor.scalar_type(),
            .nbytes = tensor.nbytes(),
            .number = ++count_};
  named(item, [&] {
    const int at = free_buffer(item.nbytes);
    item.offset = room_.take(padded(item.nbytes));
    if (room_.end() > reserved_) {
      try {
        file_->reserve(room_.end());
      } catch (...) {
        room_.give(item.offset, padded(item.nbytes));
        throw;
      }
      reserved_ = room_.end();
    }
    Buffer& buffer = buffers_[static_cast<std::size_t>(at)];
    std::memcpy(buffer.memory.data(), tensor.const_data_ptr(), item.nbytes);
    item.checksum = XXH3_64bits(buffer.memory.data(), item.nbytes);
    item.buffer = at;
    items_.push_back(item);
    buffer.item = &items_.back();
    buffer.used_at = ++uses_;
    try {
      buffer.request = file_->write(item.offset, buffer.memory.span().first(padded(item.nbytes)));
    } catch (...) {
      buffer.item = nullptr;
      items_.pop_back();
      throw;
    }
    file_->done(*buffer.request);  // gets it on its way
    traffic_.written_nbytes += static_cast<std::int64_t>(item.nbytes);
  });
  return std::make_shared<KeptItem>(std::static_pointer_cast<Activations>(shared_from_this()), std::prev(items_.end()));
}

at::Tensor Activations::take(std::list<Item>::iterator item) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  at::Tensor tensor = at::empty_strided(item->sizes, item->strides, at::TensorOptions(item->dtype));
  named(*item, [&] {
    if (item->buffer < 0) begin_reading(*item);
    Buffer& buffer = buffers_[static_cast<std::size_t>(item->buffer)];
    if (buffer.is_read) {
      const double begin = base::seconds_now();
      finish(buffer);
      traffic_.waited_seconds += base::seconds_now() - begin;
      check(buffer);
    } else {
      traffic_.from_memory_nbytes += static_cast<std::int64_t>(item->nbytes);  // perhaps on its way to the file
    }
    std::memcpy(tensor.mutable_data_ptr(), buffer.memory.data(), item->nbytes);
    buffer.used_at = ++uses_;
  });
  if (item != items_.begin()) {
    Item& before = *std::prev(item);
    if (before.buffer < 0) named(before, [&] { begin_reading(before); });
  }
  return tensor;
}

void Activations::drop(std::list<Item>::iterator item) {
  const std::lock_guard lock(mutex_);
  if (item->buffer >= 0) {
    Buffer& buffer = buffers_[static_cast<std::size_t>(item->buffer)];
    try {
      finish(buffer);
    } catch (const IoError&) {  // is heard of at the next use of the file
    }
    buffer.item = nullptr;
    buffer.used_at = 0;
  }
  room_.give(item->offset, padded(item->nbytes));
  items_.erase(item);
}

int Activations::free_buffer(std::uint64_t nbytes) {
  const auto least = std::min_element(buffers_.begin(), buffers_.end(),
                                      [](const Buffer& a, const Buffer& b) { return a.used_at < b.used_at; });
  const double begin = base::seconds_now();
  finish(*least);
  traffic_.waited_seconds += base::seconds_now() - begin;
  if (least->item) std::exchange(least->item, nullptr)->buffer = -1;
  least->is_read = false;
  if (least->memory.nbytes() < padded(nbytes)) resize(*least, padded(nbytes));
  return static_cast<int>(least - buffers_.begin());
}

void Activations::resize(Buffer& buffer, std::uint64_t nbytes) {
  const auto before = static_cast<std::int64_t>(buffer.memory.nbytes());
  buffer.memory = {};
  if (nbytes > 0) buffer.memory = io::AlignedBuffer(nbytes, io::AlignedBuffer::Pages::kHuge);
  if (count_buffers_) count_buffers_(static_cast<std::int64_t>(nbytes) - before);
}

void Activations::finish(Buffer& buffer) {
  if (!buffer.request) return;
  file_->wait(*buffer.request);
  buffer.request.reset();
}

void Activations::begin_reading(Item& item) {
  const int at = free_buffer(item.nbytes);
  Buffer& buffer = buffers_[static_cast<std::size_t>(at)];
  buffer.item = &item;
  buffer.is_read = true;
  buffer.used_at = ++uses_;
  item.buffer = at;
  buffer.request = file_->read(item.offset, buffer.memory.span().first(padded(item.nbytes)));
  file_->done(*buffer.request);
  traffic_.read_nbytes += static_cast<std::int64_t>(item.nbytes);
}

void Activations::check(Buffer& buffer) {
  if (XXH3_64bits(buffer.memory.data(), buffer.item->nbytes) != buffer.item->checksum)
    throw IoError("the disk gave back other bytes than were written");
  buffer.is_read = false;
}

}  // namespace
}  // namespace zero::offload

namespace zero {

bool offload::is_plain(const at::Tensor& tensor, std::int64_t min_nbytes) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_conj() &&
         !tensor.is_neg() && tensor.is_non_overlapping_and_dense() && tensor.nbytes() > 0 &&
         static_cast<std::int64_t>(tensor.nbytes()) >= min_nbytes;
}

bool offload::can_leave_memory(const at::Tensor& tensor, std::int64_t min_nbytes) {
  return is_plain(tensor, min_nbytes) && tensor.is_cpu();
}

std::shared_ptr<NvmeActivations> offload::activations_on_nvme(const NvmeActivationOptions& options,
                                                              io::FileSystem& files,
                                                              std::function<void(std::int64_t)> count) {
  return std::make_shared<Activations>(options, files, std::move(count));
}

std::shared_ptr<NvmeActivations> activations_on_nvme(const NvmeActivationOptions& options) {
  return offload::activations_on_nvme(options, io::system_files());
}

}  // namespace zero
