#pragma once
// What the JSON asks to be said while training: steps_per_print, wall_clock_breakdown, memory_breakdown,
// dump_state, on rank 0; and where the threads run (bind_cores_to_rank).
#include "engine/engine_impl.h"

namespace zero::engine {

/// The resolved configuration, when dump_state asks for it. Local.
void log_configuration(const Engine::Impl& impl);

/// After an optimizer step. Local.
void log_step(const Engine::Impl& impl);

/// Pins the calling thread, and those it starts later, to this rank's share of the host's cores. Local.
void bind_cores(const Group& group);

}  // namespace zero::engine
