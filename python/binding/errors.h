#pragma once
// The library's exceptions as those of zerotorch.errors.

namespace zerotorch {

/// Call once, when the module is imported.
void register_errors();

}  // namespace zerotorch
