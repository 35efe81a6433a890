#pragma once
#include <string>

#include "engine/inventory.h"

namespace zero::engine {

/// The name of a scope that lives on this thread and in which a training would miss its random numbers, or null.
const char* open_init_scope();

/// The model's tensors get the first rank's values. What else this thread has of values that a zero::Init left out, it
/// would compute with: says what; empty: there is nothing. Local.
std::string problem_with_values_left_out(const Inventory& inventory);

}  // namespace zero::engine
