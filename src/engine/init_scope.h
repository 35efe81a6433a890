#pragma once
#include <string>

#include "engine/inventory.h"

namespace zero::engine {

/// Whether a zero::Init lives on this thread: a training there would miss its random numbers.
bool init_scope_is_open();

/// The model's tensors get the first rank's values. What else this thread has of values that a zero::Init left out, it
/// would compute with: says what; empty: there is nothing. Local.
std::string problem_with_values_left_out(const Inventory& inventory);

}  // namespace zero::engine
