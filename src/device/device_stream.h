#pragma once
// DeviceStream: copies between host memory and a device, in a stream of their own beside the one that computes.
// Whatever the device: streams and events are libtorch's own (c10/core/Event.h).
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>

namespace zero::device {

/// One thread at a time. Where the backend has no streams, it is the one that computes.
class DeviceStream {
 public:
  explicit DeviceStream(c10::Device device);

  /// What is begun from here on waits for all that `stream`, or the caller's current one, has been given. Local.
  void wait_for(const c10::Stream& stream);
  void wait_for_caller() { wait_for(caller()); }
  /// What is begun from here on waits for `event`. Local.
  void wait_for(const c10::Event& event) { event.block(stream_); }
  /// Begins to copy; both must stay where they are until an event marked after it is over. Host memory that is not
  /// pinned may make it wait. Local.
  void copy(const at::Tensor& to, const at::Tensor& from) const;
  /// `event` is over when all that was begun so far is. Local.
  void mark(c10::Event& event) const { event.record(stream_); }
  /// Returns when all that was begun so far is over. Local.
  void finish();

  /// A new event of the device, over.
  c10::Event make_event() const { return c10::Event(stream_.device_type()); }
  const c10::Stream& stream() const { return stream_; }
  /// The stream that operators of this thread run in.
  c10::Stream caller() const;

 private:
  c10::Stream stream_;
  c10::Event others_, end_;  ///< recorded anew each time
};

/// The stream that operators of this thread run in.
c10::Stream current_stream(c10::Device device);
/// This thread's stream uses the tensor's memory, which may have been made in another one: whoever gets it when the
/// tensor is gone waits for that. Local.
void note_use(const at::Tensor& tensor);
/// Returns when all is over that this thread's stream of `device` has been given. Local.
void finish_current_stream(c10::Device device);

/// [numel], in host memory that libtorch has locked for CUDA, or any. Not initialised.
at::Tensor host_tensor_for(c10::Device device, std::int64_t numel, at::ScalarType type);

/// Lets a device read and write host memory while the processor goes on, where the device is CUDA's and its runtime is
/// there; otherwise does nothing, and copies take longer. Undone when the last pointer goes; keeps `memory` alive.
std::shared_ptr<void> pin_host_memory(std::shared_ptr<void> memory, void* data, std::size_t nbytes, c10::Device device);

}  // namespace zero::device
