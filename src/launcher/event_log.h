#pragma once
// launch.jsonl: what happened to a job, an event per line.
#include <nlohmann/json.hpp>
#include <string>

#include "comm/memory.h"

namespace zero::launcher {

class EventLog {
 public:
  /// `folder` empty: records nothing. Throws IoError.
  explicit EventLog(const std::string& folder);
  /// Adds "time" (UTC, ISO 8601) and "event" to `facts`.
  void add(const char* event, const nlohmann::json& facts = nlohmann::json::object());

 private:
  comm::FileDescriptor file_;
};

}  // namespace zero::launcher
