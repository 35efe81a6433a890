#pragma once
// Which observers an engine has: what its configuration asks for.
#include "zero/engine.h"

namespace zero::engine {

/// Before there are parts that it traces. Local.
void add_trace(Engine::Impl& impl);
/// When parameters are the engine's. Local.
void add_checks(Engine::Impl& impl);
/// The rest, and training begins. *Collective.*
void add_observers(Engine::Impl& impl);

}  // namespace zero::engine
