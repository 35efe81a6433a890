#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/append_file.h"
#include "base/log.h"
#include "io/file_system.h"
#include "monitor/tensorboard_writer.h"
#include "zero/errors.h"
#include "zero/train.h"

namespace zero {

namespace fs = std::filesystem;

void replace_text(const std::string& path, std::string_view text) {
  io::replace_text(io::system_files(), path, std::string(text));
}

struct MetricsRecord::Impl {
  Impl(const fs::path& run_folder, const std::string& tensorboard_folder)
      : folder(run_folder),
        events_folder(tensorboard_folder),
        lock(io::system_files().try_lock((folder / ".lock").string())),
        lines(folder / "metrics.jsonl"),
        end(lines.sync()) {}

  /// Writes the lines that wait. A disk that is full keeps them waiting, and no half of one behind.
  void write_waiting() {
    if (waiting.empty()) return;
    try {
      lines.append(waiting);
      end += static_cast<std::int64_t>(waiting.size());
      waiting.clear();
    } catch (const IoError&) {
      lines.cut(end);
      throw;
    }
  }

  /// Of a file of so many bytes of lines, and of the events, which are durable then.
  MetricsPosition position_at(std::int64_t lines_nbytes) {
    MetricsPosition position{.lines_nbytes = lines_nbytes};
    if (!events) return position;
    position.events_file = events->file().filename().string();
    position.events_nbytes = events->sync();
    return position;
  }

  fs::path folder, events_folder;
  std::unique_ptr<io::Lock> lock;
  base::AppendFile lines;
  std::int64_t end = 0;  ///< of what is in the file
  std::string waiting;   ///< whole lines that the disk has not taken yet
  std::optional<monitor::TensorboardWriter> events;
};

MetricsRecord::MetricsRecord(const std::string& folder, const std::string& tensorboard_folder)
    : impl_(std::make_unique<Impl>(folder, tensorboard_folder)) {
  if (impl_->lock) return;
  throw ConfigError(fmt::format("{}: another process is writing this run; wait for it or stop it first", folder));
}

MetricsRecord::~MetricsRecord() = default;

void MetricsRecord::add_line(std::string_view json) {
  const bool waited = !impl_->waiting.empty();
  impl_->waiting += std::string(json) + "\n";
  try {
    impl_->write_waiting();
    if (waited) base::log_warning("{}: written again", impl_->lines.path().string());
  } catch (const IoError& error) {
    if (!waited) base::log_warning("{}; its lines are kept in memory until there is room", error.what());
  }
}

void MetricsRecord::add_events(std::int64_t step, const Scalars& scalars) {
  if (impl_->events_folder.empty()) return;
  try {
    if (!impl_->events) impl_->events.emplace(monitor::TensorboardWriter::create(impl_->events_folder));
    impl_->events->add_scalars(step, scalars);
  } catch (const IoError& error) {
    base::log_warning("{}; no event files for TensorBoard from here on", error.what());
    impl_->events_folder.clear();
    impl_->events.reset();
  }
}

MetricsPosition MetricsRecord::sync() {
  impl_->write_waiting();
  return impl_->position_at(impl_->lines.sync());
}

MetricsPosition MetricsRecord::copy_to(const std::string& path) {
  std::string text = io::read_text(io::system_files(), impl_->lines.path().string(), std::uint64_t{1} << 40);
  text.resize(static_cast<std::size_t>(impl_->end));
  text += impl_->waiting;
  replace_text(path, text);
  return impl_->position_at(static_cast<std::int64_t>(text.size()));
}

void MetricsRecord::go_back_to(const MetricsPosition& position) {
  impl_->lines.cut(position.lines_nbytes);
  impl_->end = position.lines_nbytes;
  if (impl_->events_folder.empty() || position.events_file.empty()) return;
  const fs::path file = impl_->events_folder / position.events_file;
  if (!fs::exists(file)) return;  // removed by the user
  impl_->events.emplace(monitor::TensorboardWriter::resume(file, position.events_nbytes));
}

void MetricsRecord::start_over(const std::string& kept) {
  const fs::path lines = impl_->lines.path();
  std::error_code error;
  if (fs::file_size(lines, error) > 0 && !error) {
    fs::create_directories(kept);
    fs::copy_file(lines, fs::path(kept) / lines.filename());
  }
  impl_->lines.cut(0);
  impl_->end = 0;
  // Else it is a folder of other runs, too.
  if (!impl_->events_folder.string().starts_with(impl_->folder.string())) return;
  const fs::path kept_events = fs::path(kept) / impl_->events_folder.filename();
  for (const auto& entry : fs::directory_iterator(impl_->events_folder, error)) {
    if (!entry.path().filename().string().starts_with("events.out.tfevents.")) continue;
    fs::create_directories(kept_events);
    fs::rename(entry.path(), kept_events / entry.path().filename());
  }
}

}  // namespace zero
