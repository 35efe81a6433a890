#include "config/jsonc.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace zero::config {
namespace {

constexpr std::size_t kMaxDepth = 64;

/// One pass over the text that blanks comments and trailing commas in place (so that positions stay
/// right) and records keys. It never reports syntax errors but those it alone can explain: where the text
/// makes no sense it goes on, and the parser after it says what is wrong.
class Prepass {
 public:
  Prepass(std::string& text, Problems& problems, std::map<std::string, int>& lines)
      : text_(text), problems_(problems), lines_(lines) {}

  void run() {
    if (text_.starts_with("\xEF\xBB\xBF")) position_ = 3;
    while (position_ < text_.size() && !stopped_) step();
  }

 private:
  struct Level {
    bool object;
    std::string path;         // of the object or list itself
    std::string key;          // path of the member under way
    std::size_t index = 0;    // of the list element under way
    bool expects_key = true;  // object: the next string is a key
  };

  void step() {
    const char c = text_[position_];
    if (c == '\n') {
      ++line_;
      ++position_;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      ++position_;
    } else if (c == '/' && peek('/')) {
      blank_until_line_end();
    } else if (c == '/' && peek('*')) {
      blank_block_comment();
    } else if (c == '#') {
      stop(line_, "comments with '#' are not accepted; use // or /* */");
    } else if (c == '"') {
      read_string();
    } else {
      if (c != ',' && c != '}' && c != ']') comma_ = std::string::npos;
      read_structure(c);
      ++position_;
    }
  }

  bool peek(char wanted) const { return position_ + 1 < text_.size() && text_[position_ + 1] == wanted; }

  void stop(int line, std::string text) {
    problems_.add(line, std::move(text));
    stopped_ = true;
  }

  void blank_until_line_end() {
    while (position_ < text_.size() && text_[position_] != '\n') text_[position_++] = ' ';
  }

  void blank_block_comment() {
    const int start = line_;
    const std::size_t end = text_.find("*/", position_ + 2);
    if (end == std::string::npos) return stop(start, "this /* comment is never closed");
    for (; position_ < end + 2; ++position_) {
      if (text_[position_] == '\n') {
        ++line_;
      } else {
        text_[position_] = ' ';
      }
    }
  }

  void read_string() {
    comma_ = std::string::npos;
    const std::size_t start = position_++;
    while (position_ < text_.size() && text_[position_] != '"' && text_[position_] != '\n') {
      position_ += text_[position_] == '\\' ? 2 : 1;
    }
    if (position_ >= text_.size() || text_[position_] == '\n') {
      return stop(line_, "this string is never closed; want \" before the end of the line");
    }
    ++position_;
    if (levels_.empty() || !levels_.back().object || !levels_.back().expects_key) return;
    const auto key = nlohmann::json::parse(text_.substr(start, position_ - start), nullptr, false);
    if (key.is_string()) record(key.get<std::string>());
  }

  void record(const std::string& name) {
    Level& level = levels_.back();
    level.expects_key = false;
    level.key = level.path.empty() ? name : level.path + "." + name;
    const auto [at, inserted] = lines_.emplace(level.key, line_);
    if (!inserted) {
      problems_.add(line_, fmt::format("{}: given twice, first on line {}; remove one", level.key, at->second));
    }
  }

  void read_structure(char c) {
    if (c == '{' || c == '[') {
      if (levels_.size() >= kMaxDepth) return stop(line_, fmt::format("nested more than {} deep", kMaxDepth));
      levels_.push_back({.object = c == '{', .path = path_of_value(), .key = {}});
    } else if (c == '}' || c == ']') {
      if (comma_ != std::string::npos) text_[comma_] = ' ';
      comma_ = std::string::npos;
      if (!levels_.empty()) levels_.pop_back();
    } else if (c == ',') {
      // A comma after nothing or after another comma stays, for the parser to refuse.
      const std::size_t before = position_ == 0 ? std::string::npos : text_.find_last_not_of(" \t\r\n", position_ - 1);
      const bool after_value = before != std::string::npos && text_[before] != ',' && text_[before] != '{' &&
                               text_[before] != '[' && text_[before] != ':';
      comma_ = after_value ? position_ : std::string::npos;
      if (!levels_.empty()) {
        levels_.back().expects_key = true;
        ++levels_.back().index;
      }
    }
  }

  std::string path_of_value() const {
    if (levels_.empty()) return {};
    const Level& level = levels_.back();
    return level.object ? level.key : fmt::format("{}[{}]", level.path, level.index);
  }

  std::string& text_;
  Problems& problems_;
  std::map<std::string, int>& lines_;
  std::vector<Level> levels_;
  std::size_t position_ = 0;
  std::size_t comma_ = std::string::npos;  // a comma that is a trailing one if a bracket follows
  int line_ = 1;
  bool stopped_ = false;
};

/// nlohmann's message without its prefix "[json.exception...] parse error at line 3, column 5: ".
std::string cleaned(const std::string& what) {
  std::size_t start = what.find("column ");
  if (start != std::string::npos) start = what.find(": ", start);
  if (start == std::string::npos) start = what.find("] ");
  return start == std::string::npos ? what : what.substr(start + 2);
}

}  // namespace

int Document::line_of(const std::string& path) const {
  for (std::string at = path; !at.empty();) {
    const auto found = lines.find(at);
    if (found != lines.end()) return found->second;
    const std::size_t cut = at.find_last_of(".[");
    at = cut == std::string::npos ? std::string() : at.substr(0, cut);
  }
  return 0;
}

Document parse_jsonc(std::string_view text, Problems& problems) {
  Document document;
  if (text.size() > kMaxTextNbytes) {
    problems.add(0, fmt::format("{} bytes; a configuration has at most {}", text.size(), kMaxTextNbytes));
    return document;
  }
  std::string blanked(text);
  const bool clean_before = problems.empty();
  Prepass(blanked, problems, document.lines).run();
  if (clean_before && !problems.empty()) {
    // Keys given twice still leave a document to check; anything else does not.
    document.root = nlohmann::json::parse(blanked, nullptr, false);
    if (document.root.is_discarded()) document.root = nullptr;
    return document;
  }
  try {
    document.root = nlohmann::json::parse(blanked);
  } catch (const nlohmann::json::parse_error& error) {
    const std::size_t end = std::min(error.byte, blanked.size());
    const auto newlines = std::count(blanked.begin(), blanked.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    const bool blank = blanked.find_first_not_of(" \t\r\n") == std::string::npos;
    problems.add(static_cast<int>(newlines) + 1, blank
                                                     ? "empty; want a JSON object, at least {\"train_batch_size\": ...}"
                                                     : "not valid JSON: " + cleaned(error.what()));
  } catch (const nlohmann::json::exception& error) {
    problems.add(0, "not valid JSON: " + cleaned(error.what()));
  }
  return document;
}

}  // namespace zero::config
