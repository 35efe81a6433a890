#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

namespace zero::base {
namespace {

std::atomic<int> g_rank{-1};

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& logger() {
  // Leaked on purpose: destructors of other statics may still log at exit.
  static spdlog::logger* instance = [] {
    auto* made = new spdlog::logger("zerotorch", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("zerotorch %L %v");
    made->flush_on(spdlog::level::debug);
    const char* wanted = std::getenv("ZERO_LOG_LEVEL");
    const auto level = wanted ? spdlog::level::from_str(wanted) : spdlog::level::info;
    const bool known = level != spdlog::level::off || wanted == std::string_view("off");
    made->set_level(known ? level : spdlog::level::info);
    if (!known) {
      made->warn("ZERO_LOG_LEVEL: got '{}', wanted debug, info, warning, error or off; info is used", wanted);
    }
    return made;
  }();
  return *instance;
}

}  // namespace

void set_log_rank(int rank) { g_rank = rank; }

void set_log_level(LogLevel level) {
  if (!std::getenv("ZERO_LOG_LEVEL")) logger().set_level(to_spdlog(level));
}

void log_line(LogLevel level, std::string_view text) noexcept {
  try {
    // `zero launch` begins each line of a rank with its number.
    static const bool is_prefixed = std::getenv("ZERO_LINES_ARE_PREFIXED") != nullptr;
    const int rank = is_prefixed ? -1 : g_rank.load();
    if (rank < 0) {
      logger().log(to_spdlog(level), "{}", text);
    } else {
      logger().log(to_spdlog(level), "[rank {}] {}", rank, text);
    }
  } catch (...) {
    // A log line is never worth an exception.
  }
}

}  // namespace zero::base
