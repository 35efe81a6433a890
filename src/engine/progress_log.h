#pragma once
// What the JSON asks to be said while training: steps_per_print, wall_clock_breakdown, memory_breakdown,
// dump_state, on rank 0.
#include "engine/engine_impl.h"

namespace zero::engine {

/// The resolved configuration, when dump_state asks for it. Local.
void log_configuration(const Engine::Impl& impl);

/// After an optimizer step. Local.
void log_step(const Engine::Impl& impl);

}  // namespace zero::engine
