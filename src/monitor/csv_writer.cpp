#include "monitor/csv_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "zero/errors.h"

namespace zero::monitor {
namespace {

namespace fs = std::filesystem;

/// What the file must get before a row: a header when it is new, the end of a row that a lost machine cut off.
std::string lead(const fs::path& path, const std::string& tag) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() <= 0) return fmt::format("step,{}\n", tag.substr(tag.rfind('/') + 1));
  file.seekg(-1, std::ios::end);
  return file.get() == '\n' ? "" : "\n";
}

}  // namespace

CsvWriter::CsvWriter(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) throw IoError(fmt::format("{}: cannot create the folder: {}", folder_.string(), error.message()));
}

base::AppendFile& CsvWriter::file_of(const std::string& tag) {
  auto& file = files_[tag];
  if (file) return *file;
  std::string name = tag;
  std::ranges::replace_if(
      name, [](char c) { return c == '/' || c == ' '; }, '_');
  const fs::path path = folder_ / (name + ".csv");
  const std::string before = lead(path, tag);
  auto opened = std::make_unique<base::AppendFile>(path);
  opened->append(before);
  file = std::move(opened);
  return *file;
}

void CsvWriter::add_scalars(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  for (const auto& [tag, value] : scalars) file_of(tag).append(fmt::format("{},{}\n", step, value));
}

}  // namespace zero::monitor
