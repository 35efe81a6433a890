#pragma once
// Rank-prefixed log lines on standard error. The library never writes to standard output.
#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace zero::base {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Sets the rank that prefixes every line of this process (-1: none yet). Local, thread-safe.
void set_log_rank(int rank);

/// Drops lines below `level`. The environment variable ZERO_LOG_LEVEL (debug, info, warning, error) wins.
void set_log_level(LogLevel level);

/// Writes one line. Local, thread-safe, never throws.
void log_line(LogLevel level, std::string_view text) noexcept;

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace zero::base
