#include "text/colour.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

namespace zero::app {
namespace {

std::string_view variable(const char* name) {
  const char* const text = std::getenv(name);
  return text ? text : "";
}

bool has_colours(std::FILE* stream) {
  if (!variable("NO_COLOR").empty()) return false;
  const std::string_view forced = variable("FORCE_COLOR");
  if (!forced.empty()) return forced != "0";
  const std::string_view term = variable("TERM");
  return ::isatty(::fileno(stream)) == 1 && !term.empty() && term != "dumb";
}

}  // namespace

std::string painted(Tone tone, std::string_view text, std::FILE* stream) {
  if (text.empty() || !has_colours(stream)) return std::string(text);
  const char* const code = tone == Tone::kBad       ? "1;31"
                           : tone == Tone::kWarning ? "33"
                           : tone == Tone::kGood    ? "32"
                                                    : "1";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

}  // namespace zero::app
