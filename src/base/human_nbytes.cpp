#include <fmt/format.h>

#include "zero/memory.h"

namespace zero {

std::string human_nbytes(std::int64_t nbytes) {
  const auto value = static_cast<double>(nbytes);
  if (value >= 1e12) return fmt::format("{:.2f} TB", value / 1e12);
  if (value >= 1e9) return fmt::format("{:.2f} GB", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.1f} MB", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f} kB", value / 1e3);
  return fmt::format("{} byte{}", nbytes, nbytes == 1 ? "" : "s");
}

std::string megabytes(double nbytes) { return nbytes == 0 ? "-" : fmt::format("{:.1f}", nbytes / 1e6); }

}  // namespace zero
