#include "launcher/event_log.h"

#include <unistd.h>

#include <chrono>
#include <ctime>

#include "launcher/processes.h"

namespace zero::launcher {

EventLog::EventLog(const std::string& folder) : file_(open_log(folder, folder + "/launch.jsonl")) {}

void EventLog::add(const char* event, const nlohmann::json& facts) {
  if (!file_) return;
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32] = {};
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  nlohmann::ordered_json line = {{"time", text + ("." + std::to_string(1000 + ms).substr(1)) + "Z"}, {"event", event}};
  for (const auto& [name, value] : facts.items()) line[name] = value;
  const std::string written = line.dump() + "\n";
  [[maybe_unused]] const ssize_t wrote = ::write(file_.get(), written.data(), written.size());
}

}  // namespace zero::launcher
