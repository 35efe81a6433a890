#pragma once
// Counts what libtorch allocates on the CPU: activations, temporaries, inputs. The engine's own buffers
// come from elsewhere and are not in it.
#include "zero/memory.h"

namespace zero::storage {

/// Puts a counting layer over libtorch's CPU allocator. Idempotent, process-wide, thread-safe; memory
/// allocated before is not counted. Left in place when a foreign allocator was set after it.
void install_activation_meter();

/// Bytes now and at most; zeros before install_activation_meter().
MemoryUse activation_use();

/// Starts a new peak at the current value.
void reset_activation_peak();

/// Tells glibc to keep freed blocks instead of returning them to the system, so that activations do not fault
/// the same pages in again at every step (fresh pages cost about five times a warm copy). Process-wide.
void keep_freed_memory();

/// Gives what is free in the heap back to the system now, also after keep_freed_memory(). For the moment when
/// much was freed that will not be needed again. Process-wide.
void give_back_freed_memory();

}  // namespace zero::storage
