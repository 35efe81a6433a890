#pragma once
// Colours of a terminal.
#include <cstdio>
#include <string>
#include <string_view>

namespace zero::app {

enum class Tone { kBad, kWarning, kGood, kHead };

/// `text` in the colour of `tone` where `stream` is a terminal that has colours, else as it is. NO_COLOR (not empty)
/// and TERM=dumb switch them off, FORCE_COLOR (not empty, not 0) on. Local.
std::string painted(Tone tone, std::string_view text, std::FILE* stream = stdout);

}  // namespace zero::app
