#pragma once
// Tokens as text.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zero::app {

/// The bytes of tokens by number: a byte each, or what their tokenizer has written.
class TokenText {
 public:
  TokenText() = default;  ///< a token is a byte
  /// `pieces`: as TokenInfo's. Throws IoError.
  explicit TokenText(const std::string& pieces);
  std::string of(std::int64_t token) const;
  std::string of(std::span<const std::int64_t> tokens) const;

 private:
  std::vector<std::string> pieces_;
};

/// The token after each document, as the tokens of a run are described beside their `pieces`; none: not known.
std::vector<std::int64_t> separator_of(const std::string& pieces);

/// Bytes that come in pieces, which may end within a character, as a terminal can take them.
class PrintableStream {
 public:
  /// What can be printed by now.
  std::string add(const std::string& bytes);
  /// What is left at the end.
  std::string finish();

 private:
  std::string kept_;
};

}  // namespace zero::app
