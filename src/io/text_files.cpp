// Small files, whole trees and paths, on top of FileSystem.
#include <fmt/format.h>

#include <string_view>

#include "io/file_system.h"
#include "zero/errors.h"

namespace zero::io {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// What was half made is in nobody's way.
void remove_quietly(FileSystem& files, const std::string& path) {
  try {
    files.remove(path);
  } catch (const IoError&) {
  }
}

}  // namespace

std::string read_text(FileSystem& files, const std::string& path, std::uint64_t max_nbytes) {
  const auto file = files.open(path);
  const std::uint64_t nbytes = file->size();
  if (nbytes > max_nbytes) {
    throw IoError(fmt::format("cannot read '{}': it has {} bytes, at most {} were expected", path, nbytes, max_nbytes));
  }
  std::string text(nbytes, '\0');
  file->read(0, std::as_writable_bytes(std::span(text.data(), text.size())));
  file->close();
  return text;
}

void write_text(FileSystem& files, const std::string& path, std::string_view text) {
  const auto file = files.create(path);
  file->write(0, bytes_of(text));
  file->sync();
  file->close();
}

void replace_text(FileSystem& files, const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp";
  // One of an earlier process that ended here.
  if (files.kind(temporary) != FileKind::kNone) files.remove(temporary);
  try {
    write_text(files, temporary, text);
    files.rename(temporary, path);
  } catch (const IoError&) {
    remove_quietly(files, temporary);
    throw;
  }
  files.sync_folder(parent_of(path));
}

void remove_all(FileSystem& files, const std::string& path) {
  switch (files.kind(path)) {
    case FileKind::kNone:
      return;
    case FileKind::kFile:
    case FileKind::kOther:
      files.remove(path);
      return;
    case FileKind::kFolder:
      break;
  }
  // Removing first and looking inside only then: of a link to a folder, the link goes, and what it leads to
  // stays.
  try {
    files.remove(path);
    return;
  } catch (const IoError&) {
    if (files.list(path).empty()) throw;
  }
  for (const std::string& name : files.list(path)) remove_all(files, join(path, name));
  files.remove(path);
}

std::string join(std::string_view folder, std::string_view name) {
  if (folder.empty() || folder.back() == '/') return fmt::format("{}{}", folder, name);
  return fmt::format("{}/{}", folder, name);
}

std::string parent_of(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const auto slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  path = path.substr(0, slash + 1);
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return std::string(path);
}

}  // namespace zero::io
