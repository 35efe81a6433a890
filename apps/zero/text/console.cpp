#include "text/console.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "text/colour.h"

namespace zero::app {

std::string lost_output() {
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  return is_written ? "" : "standard output cannot be written: its disk is full, or it is closed";
}

int exit_code_of_output() {
  const std::string lost = lost_output();
  if (!lost.empty()) print_error(fmt::format("zero: error: {}\n", lost));
  return lost.empty() ? 0 : 1;
}

void print_error(const std::string& text) {
  std::string said = text;
  // The first words, up to what it is about.
  constexpr std::pair<std::string_view, Tone> kMarks[] = {{"error:", Tone::kBad}, {"warning:", Tone::kWarning}};
  for (const auto& [mark, tone] : kMarks) {
    const auto at = text.find(mark);
    if (!text.starts_with("zero") || at == std::string::npos || at > text.find(':') + 2) continue;
    const auto end = at + mark.size();
    said = painted(tone, text.substr(0, end), stderr) + text.substr(end);
    break;
  }
  std::fwrite(said.data(), 1, said.size(), stderr);
  std::fflush(stderr);
}

}  // namespace zero::app
