#pragma once
// A layer over libtorch's CPU allocator, which serves activations, temporaries and inputs. It counts, and
// keeps freed large blocks for the next step (storage/block_cache.h). The engine's own buffers come from
// elsewhere and are not in it.
#include <cstddef>

#include "zero/memory.h"

namespace zero::storage {

/// Puts the layer in place, once per process; later calls change nothing, but that the first with
/// `keep_blocks` starts the cache. Memory allocated before is not counted. Left as it is when a foreign
/// allocator was set before with a higher priority, or after. No cache where address space is limited (ulimit
/// -v) or the system reserves none, nor under AddressSanitizer, from which it would hide errors. Thread-safe.
void install_cpu_allocator(bool keep_blocks);

/// True when freed blocks are kept.
bool keeps_blocks();

/// A block for a large buffer of the engine that comes and goes with every step, out of the cache, at the end
/// away from activations; from the C library where the cache has none. Aligned to 64 bytes, of undefined
/// content, not counted as an activation. Null when the system refuses. Thread-safe.
void* take_block(std::size_t nbytes);
/// `block` from take_block().
void return_block(void* block);

/// What libtorch has on the CPU now and had at most; zeros before install_cpu_allocator(). Freed blocks that
/// are kept are not in it.
MemoryUse activation_use();

/// Starts a new peak at the current value.
void reset_activation_peak();

/// Tells glibc to keep freed blocks instead of returning them to the system: for what does not go through
/// libtorch's allocator, such as scratch memory of oneDNN. Fresh pages cost about five times a warm copy.
/// Process-wide.
void keep_freed_memory();

/// Gives what is free in the heap and in the cache back to the system now, also after keep_freed_memory().
/// For the moment when much was freed that will not be needed again. Process-wide.
void give_back_freed_memory();

}  // namespace zero::storage
