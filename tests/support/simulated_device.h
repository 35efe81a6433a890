#pragma once
// An accelerator without hardware, the backend "sim" of libtorch (PrivateUse1): its streams run late or at once, in
// random legal orders, its memory cannot be touched by the host, and what is freed is overwritten. A missing wait
// between streams, a buffer that is freed or used again too early, and what the host begins too early show as wrong
// bits for some seeds.
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

namespace zero::testing::simulated {

/// One wait, by the numbers of streams: 0 the default stream, then 1, 2, ... in the order in which they were first
/// handed out; -1: the host.
struct Wait {
  int waiting = 0;
  int awaited = 0;
};

struct Options {
  /// Of the order in which streams run: the same seed and the same calls give the same order.
  std::uint64_t seed = 0;
  /// A wait for which it is true does nothing. Asked at each wait of a stream for an event of another one, and at each
  /// explicit synchronization by the host (of an event, of a stream, of every stream of the device); not where a
  /// stream waits for itself, nor for polls, blocking copies and operators that give a value to the host. Called under
  /// the lock of the device, maybe in a thread of autograd.
  std::function<bool(const Wait&)> leave_out;
};

/// Registers the backend once per process, and begins anew: stream numbers, counts, the generators of the order and of
/// random operators. No operators may be pending (finish()). Of a process that forks, call it in the children; it must
/// come before the first backward pass of the process, when autograd starts its threads.
void start(Options options);

/// Whether the device has kernels of zerotorch's own (optim/device_kernels.h), for engines that are made from here on;
/// else libtorch's operators do their work. At first it has none.
void use_kernels(bool wanted);

/// What comes of other ranks' memory of the device, from here on.
enum class Sharing {
  kWorks,
  kRefusesToMap,     ///< an error
  kMapsOtherMemory,  ///< of the same size
};
void share_memory(Sharing how);

/// The device: sim:0.
c10::Device device();

/// Since start(). Memory counts the bytes that were asked for, of everything that is alive.
struct Counts {
  std::int64_t tasks = 0;             ///< operators and copies that were queued
  std::int64_t late_tasks = 0;        ///< those of them that ran after another one was queued
  std::int64_t prompt = 0;            ///< operators that ran at once, after what they need
  std::int64_t waits = 0;             ///< those that `leave_out` is asked for, left out or not
  std::int64_t copies_to_host = 0;    ///< copies to tensors of the host, and values by item()
  std::int64_t copies_to_device = 0;  ///< copies from tensors of the host
  std::int64_t live_nbytes = 0;
  std::int64_t peak_nbytes = 0;
};
Counts counts();

/// A hash of the order in which everything has run since start(), and of what was queued before it ran.
std::uint64_t order();

/// Calls `seen` with the name of each operator that runs at once; an empty function ends it.
void on_prompt(std::function<void(const char* name)> seen);

/// Runs everything that is pending. Throws what an operator has thrown.
void finish();

}  // namespace zero::testing::simulated
