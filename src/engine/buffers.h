#pragma once
// Buffers: what a module registers beside its parameters. They stay the module's, whole on every rank; here is
// which kinds are taken, how checkpoints hold them, and how ranks that write their own are brought together.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/inventory.h"
#include "zero/config.h"
#include "zero/dtype.h"

namespace zero::engine {

// ---- what checkpoints hold -------------------------------------------------------------------------------

/// A buffer's values as files have them: dense, and of complex ones the real view with a last dimension of 2
/// (real part, imaginary part). Shares memory where that is possible.
at::Tensor stored_form(const at::Tensor& buffer);
/// Sizes of stored_form().
std::vector<std::int64_t> stored_shape(const at::Tensor& buffer);
/// Gives the buffer other values, in the form above. An expanded buffer stays one if the values allow it, and
/// gets memory for each of its elements if they do not. Local. `buffer` stays the module's tensor.
void write_stored(const at::Tensor& buffer, const at::Tensor& values);

// ---- initialize() ------------------------------------------------------------------------------------------

/// Refuses by name what could not be trained, saved or loaded as plain libtorch does: sparse, quantised and
/// nested buffers, dtypes that files do not have, buffers without memory (meta), buffers that share memory with
/// a parameter (whose memory becomes the engine's), and, with several ranks, buffers that are not on the CPU.
/// Local. Throws ModelError.
void check_buffers(const Inventory& inventory);

/// The precision buffers are to have beside parameters of `param_dtype`: with kParameters all that are floating
/// point take it; with kModule only those that go to kernels together with parameters. Buffers that share memory go
/// on sharing it. Returns the names of floating-point buffers that kept another dtype. Local. Throws ModelError.
std::vector<std::string> convert_buffers(const Inventory& inventory, DType param_dtype,
                                         Config::Zerotorch::BufferDtype wanted);

/// What the log says of these.
std::string kept_buffers_notice(const std::vector<std::string>& kept);

/// All ranks take rank 0's values. *Collective.*
void broadcast_buffers(const Inventory& inventory, Group& group);

// ---- training ----------------------------------------------------------------------------------------------

/// Brings buffers that forward writes back together, as DistributedDataParallel does. One thread at a time.
class BufferSync {
 public:
  using Mode = Config::Zerotorch::Buffers;

  BufferSync(std::vector<Inventory::Named> buffers, Mode mode);

  /// True when ranks could come apart at all: there are buffers, and they are not each rank's own.
  bool needed() const { return mode_ != Mode::kEach && !buffers_.empty(); }

  /// Local: was some buffer written since construction or the last synchronise()? Sees in-place operators,
  /// set_data(), and, by a fingerprint of at most 64 KiB of each buffer, writes that go past libtorch's version
  /// counters (data(), data_ptr()). Takes some microseconds a buffer.
  bool changed() const;

  /// Buffers that some rank wrote become the same on all: rank 0's, or the mean over the ranks (fp64 sums in
  /// the order of ranks). Call it on every rank when one has changed(). *Collective.* Throws ModelError on
  /// every rank when a buffer has other sizes or another dtype on one.
  void synchronise(Group& group);

 private:
  /// What tells one value of a buffer from another without keeping it.
  struct Mark {
    std::uint32_t version = 0;
    const void* storage = nullptr;
    std::uint64_t fingerprint = 0;
    at::ScalarType dtype = at::kFloat;
    std::vector<std::int64_t> sizes;
    bool operator==(const Mark&) const = default;
  };
  static Mark mark_of(const at::Tensor& buffer);
  void check_layouts(Group& group) const;
  void take_mean(const Inventory::Named& buffer, Group& group) const;

  std::vector<Inventory::Named> buffers_;
  std::vector<Mark> marks_;
  Mode mode_;
};

}  // namespace zero::engine
