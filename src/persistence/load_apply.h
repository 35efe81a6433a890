#pragma once
// The engine follows what a load reads.
#include "engine/engine_impl.h"
#include "persistence/load_plan.h"

namespace zero::persistence {

/// Before anything is read: gradient sums start from zero, or get memory where the checkpoint has them. `is_repair`: an
/// earlier load failed and left sums of its own. Local.
void prepare_window(Engine::Impl& impl, const LoadPlan& plan, const LoadOptions& options, bool is_repair);

/// When everything is read: parameters follow their masters, counters what the plan says. *Collective.*
void apply_load(Engine::Impl& impl, const LoadPlan& plan, const LoadOptions& options);

}  // namespace zero::persistence
