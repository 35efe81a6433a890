#include "model/token_text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/text_format.h"
#include "zero/lm/data.h"

namespace zero::app {
namespace {

/// The first byte of the character that `text` ends within; its size where it ends with a whole one.
std::size_t whole_characters(const std::string& text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // goes on
    const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

}  // namespace

TokenText::TokenText(const std::string& pieces) : pieces_(token_pieces(pieces)) {}

std::string TokenText::of(std::int64_t token) const {
  if (pieces_.empty()) return {static_cast<char>(token)};
  // A vocabulary may be padded.
  return token < static_cast<std::int64_t>(pieces_.size()) ? pieces_[static_cast<std::size_t>(token)] : "";
}

std::string TokenText::of(std::span<const std::int64_t> tokens) const {
  std::string text;
  for (const std::int64_t token : tokens) text += of(token);
  return text;
}

std::vector<std::int64_t> separator_of(const std::string& pieces) {
  std::ifstream file(std::filesystem::path(pieces).parent_path() / "tokens.json");
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("separator")) return {};
  return {json["separator"].get<std::int64_t>()};
}

std::string PrintableStream::add(const std::string& bytes) {
  kept_ += bytes;
  const std::size_t whole = whole_characters(kept_);
  std::string rest = kept_.substr(whole);
  kept_.resize(whole);
  return printable(std::exchange(kept_, std::move(rest)));
}

std::string PrintableStream::finish() { return printable(std::exchange(kept_, "")); }

}  // namespace zero::app
