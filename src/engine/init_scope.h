#pragma once

namespace zero::engine {

/// Whether a zero::Init lives on this thread: a training there would miss its random numbers.
bool init_scope_is_open();

}  // namespace zero::engine
