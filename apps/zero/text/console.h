#pragma once
// Standard output of the one process that talks to the user.
#include <cstdio>
#include <string>

namespace zero::app {

class Console {
 public:
  explicit Console(bool enabled) : enabled_(enabled) {}

  /// Writes `text` as it is and flushes; nothing when not enabled.
  void print(const std::string& text) const {
    if (!enabled_) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  bool enabled() const { return enabled_; }

 private:
  bool enabled_;
};

/// Says so on standard error where standard output has not taken all that was printed. Returns the exit code: 0 or 1.
int exit_code_of_output();

/// What to say where standard output has not taken all that was printed; empty: it has.
std::string lost_output();

/// Writes to standard error what it can: errors are said while other things go wrong. "zero: error:" and
/// "zero train: warning:" are in colour where there are colours.
void print_error(const std::string& text);

}  // namespace zero::app
