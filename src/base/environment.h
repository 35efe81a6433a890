#pragma once
// Settings that come from environment variables.
#include <string_view>

namespace zero::base {

/// The seconds that `variable` says, `least` to `most`; `fallback` where it is not set. Throws ConfigError that ends
/// with `wanted`. Local.
double seconds_from(const char* variable, double fallback, double least, double most, std::string_view wanted);

}  // namespace zero::base
