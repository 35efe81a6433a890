#include "text/text_format.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numbers>
#include <sstream>
#include <string_view>
#include <utility>

namespace zero::app {
namespace {

namespace fs = std::filesystem;

/// Length of the UTF-8 character at the front of `text`, 0 when there is none.
std::size_t character_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xF0 && first < 0xF5 ? 4
                             : first >= 0xE0 && first < 0xF0 ? 3
                             : first >= 0xC2 && first < 0xE0 ? 2
                                                             : 0;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string with_commas(std::int64_t value) {
  const std::string digits = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string counted(std::int64_t count, const std::string& what) {
  return with_commas(count) + " " + what + (count == 1 ? "" : "s");
}

std::string human_count(double count) {
  if (count >= 1e9) return fmt::format("{:.2f} B", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.1f} M", count / 1e6);
  if (count >= 1e4) return fmt::format("{:.1f} k", count / 1e3);
  return fmt::format("{:.0f}", count);
}

std::string clock_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string duration(double seconds) {
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

double to_bits(double nats) { return nats / std::numbers::ln2; }

std::string printable(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_length(std::string_view(text).substr(i));
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool control = byte == 0x7F || (byte < 0x20 && byte != '\n' && byte != '\t');
    if (length == 0 || control) {
      result += '?';
      ++i;
    } else {
      result.append(text, i, length);
      i += length;
    }
  }
  return result;
}

namespace {

/// Where the word that begins at `from` ends: before a space or a line end, but not within backticks.
std::size_t end_of_word(const std::string& text, std::size_t from) {
  bool is_quoted = false;
  for (std::size_t i = from; i < text.size(); ++i) {
    if (text[i] == '`') is_quoted = !is_quoted && text.find('`', i + 1) != std::string::npos;
    if (text[i] == '\n' || (text[i] == ' ' && !is_quoted)) return i;
  }
  return text.size();
}

}  // namespace

std::string wrapped(const std::string& head, const std::string& text, std::size_t indent) {
  constexpr std::size_t kColumns = 80;
  const std::string margin(indent, ' ');
  std::string all, line = fmt::format("{:<{}}", head, indent);
  if (!head.empty() && head.size() >= indent) {
    all = head + '\n';
    line = margin;
  }
  bool is_begun = false;  // the line has a word
  const auto end_line = [&] {
    all += std::exchange(line, margin) + '\n';
    is_begun = false;
  };
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = end_of_word(text, from);
    const std::string word = text.substr(from, end - from);
    if (is_begun && line.size() + 1 + word.size() > kColumns) end_line();
    line += (is_begun ? " " : "") + word;
    is_begun = true;
    if (end < text.size() && text[end] == '\n') end_line();
    from = end + 1;
  }
  if (is_begun || text.empty()) end_line();
  return all;
}

std::string hanging(const std::string& label, const std::string& text) { return wrapped(label, text, 11); }

std::string program_name() {
  std::error_code error;
  const fs::path mine = fs::read_symlink("/proc/self/exe", error);
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path found = fs::path(folder) / "zero";
    if (::access(found.c_str(), X_OK) == 0 && fs::equivalent(found, mine, error)) return "zero";
    if (::access(found.c_str(), X_OK) == 0) break;  // another program of that name
  }
  const fs::path here = mine.lexically_relative(fs::current_path(error));
  return for_shell(error || here.empty() || *here.begin() == ".." ? mine.string() : here.string());
}

std::string for_shell(const std::string& path) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::strchr("_./~+-:,@=%", c);
  };
  if (!path.empty() && std::all_of(path.begin(), path.end(), plain)) return short_path(path);
  std::string quoted = "'";
  for (const char c : path) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string short_path(const std::string& path) {
  const char* home = std::getenv("HOME");
  const std::string_view prefix = home ? home : "";
  const bool inside =
      prefix.size() > 1 && path.starts_with(prefix) && (path.size() == prefix.size() || path[prefix.size()] == '/');
  return inside ? fmt::format("~{}", path.substr(prefix.size())) : path;
}

}  // namespace zero::app
