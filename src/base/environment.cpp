#include "base/environment.h"

#include <fmt/format.h>

#include <cstdlib>

#include "zero/errors.h"

namespace zero::base {

double seconds_from(const char* variable, double fallback, double least, double most, std::string_view wanted) {
  const char* const text = std::getenv(variable);
  if (!text || *text == '\0') return fallback;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != '\0' || !(seconds >= least && seconds <= most))
    throw ConfigError(fmt::format("environment variable {}: got \"{}\", wanted {}", variable, text, wanted));
  return seconds;
}

}  // namespace zero::base
