#include "models/folder_files.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>

#include "zero/dtype.h"

namespace zero::models {

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  errno = 0;
  if (!in || !(text << in.rdbuf()))
    throw IoError(fmt::format("'{}' cannot be read: {}", path.string(), errno ? std::strerror(errno) : "it is empty"));
  return text.str();
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw IoError(fmt::format("'{}' cannot be written: {}", path.string(), std::strerror(errno)));
}

void agree_on_error(Group& group, const std::string& error) {
  auto length = static_cast<std::int64_t>(error.size());
  group.broadcast(&length, 1, DType::kInt64, 0, {.label = "model's files"}).wait();
  if (length == 0) return;
  std::string text = error;
  text.resize(static_cast<std::size_t>(length));
  group.broadcast(text.data(), length, DType::kByte, 0, {.label = "model's files"}).wait();
  throw IoError(text);
}

}  // namespace zero::models
