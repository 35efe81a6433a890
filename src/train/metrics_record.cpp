#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <system_error>

#include "base/append_file.h"
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
        lines(folder / "metrics.jsonl") {}

  fs::path folder, events_folder;
  std::unique_ptr<io::Lock> lock;
  base::AppendFile lines;
  std::optional<monitor::TensorboardWriter> events;
};

MetricsRecord::MetricsRecord(const std::string& folder, const std::string& tensorboard_folder)
    : impl_(std::make_unique<Impl>(folder, tensorboard_folder)) {
  if (impl_->lock) return;
  throw ConfigError(
      fmt::format("{}: another process is writing this run; wait for it or stop it first", folder));
}

MetricsRecord::~MetricsRecord() = default;

void MetricsRecord::add_line(std::string_view json) { impl_->lines.append(std::string(json) + "\n"); }

void MetricsRecord::add_events(std::int64_t step, const Scalars& scalars) {
  if (impl_->events_folder.empty()) return;
  if (!impl_->events) impl_->events.emplace(monitor::TensorboardWriter::create(impl_->events_folder));
  impl_->events->add_scalars(step, scalars);
}

MetricsPosition MetricsRecord::sync() {
  MetricsPosition position;
  position.lines_nbytes = impl_->lines.sync();
  if (impl_->events) {
    position.events_file = impl_->events->file().filename().string();
    position.events_nbytes = impl_->events->sync();
  }
  return position;
}

void MetricsRecord::go_back_to(const MetricsPosition& position) {
  impl_->lines.cut(position.lines_nbytes);
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
