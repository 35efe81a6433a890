#pragma once
// Where zero::recompute() keeps what backward needs of a part; without one of these, in memory.
//
//   zero::recompute_with({.home = zero::activations_on_nvme("/scratch")}, block, x);
//
// docs/recompute.md explains it.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "zero/group.h"

namespace zero {

/// One of these keeps tensors of any number of parts and models. Values are the same wherever they are kept.
class ActivationHome : public std::enable_shared_from_this<ActivationHome> {
 public:
  /// One tensor; destroyed, it is no longer kept.
  class Kept {
   public:
    virtual ~Kept() = default;
    /// A new tensor with the values, sizes, strides and dtype of the one that was kept. May be called several times.
    virtual at::Tensor take() = 0;
  };

  virtual ~ActivationHome() = default;
  /// Keeps the values of `tensor` as they are now; null: it is not for this home, and stays in memory.
  virtual std::shared_ptr<Kept> keep(const at::Tensor& tensor) = 0;
  /// One line for people.
  virtual std::string description() const = 0;
};

struct ActivationTraffic {
  std::int64_t read_nbytes = 0, written_nbytes = 0;
  std::int64_t from_memory_nbytes = 0;  ///< were wanted before they had left
  double waited_seconds = 0;            ///< in which the program could not go on
};

struct NvmeActivationOptions {
  std::string folder;  ///< on a local disk; made where it is missing
  /// Smaller tensors stay in memory.
  std::int64_t min_nbytes = 64 << 10;
  /// Tensors that are on their way to the disk or back at a time, each in memory of the largest one's size; at least 2.
  int buffers = 4;
  std::int64_t block_nbytes = 1 << 20;  ///< of a disk request
  int queue_depth = 32;                 ///< requests under way
};

/// In a scratch file of this process, which has no name and is gone with it. Written while forward goes on, read while
/// backward is at the part after it; a checksum of every tensor is compared when it is read. Tensors of the CPU that
/// are dense. Calls throw IoError for a disk that is full or fails, and for bytes that are not what was written.
/// Local. Any thread, one at a time.
class NvmeActivations : public ActivationHome {
 public:
  virtual ActivationTraffic traffic() const = 0;
};
std::shared_ptr<NvmeActivations> activations_on_nvme(const NvmeActivationOptions& options);

/// In the host's memory, of tensors of a GPU or another device that are dense and have `min_nbytes`; those of the CPU
/// are there. They leave while forward goes on and come back one ahead of backward, in a stream of their own: the host
/// waits for nothing while shapes recur, and the device where the way to the host is slower than its computation. Takes
/// memory of the device for two tensors on their way. Pinned memory of the host is used again from step to step.
/// Local. Any thread.
std::shared_ptr<ActivationHome> activations_in_host_memory(std::int64_t min_nbytes = 64 << 10);

/// Each rank of `group` keeps its part of every tensor, which must be the same on all of them: model-parallel ranks,
/// whose parts have the same inputs. Keeping compares a checksum over the ranks, and throws ModelError where they
/// differ; taking gathers the parts. Both are *collective* over `group`, as running the part is. Tensors of the CPU
/// that are dense and have `min_nbytes`.
std::shared_ptr<ActivationHome> partitioned_activations(Group group, std::int64_t min_nbytes = 64 << 10);

}  // namespace zero
