#pragma once
// Error types of the library. Every message names the place, the rank, the parameter or key, the value found, the value
// expected, and the remedy.
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace zero {

/// Base of every exception the library throws on purpose.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what);
};

/// A configuration (JSON, option or environment) that cannot be honoured. Nothing has been allocated yet.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A file, folder or memory mapping that could not be created, read or written.
class IoError : public Error {
 public:
  using Error::Error;
};

/// A collective that cannot complete: a dead, stopped, late or diverging rank.
class CommError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint that is missing, incomplete, damaged or does not fit.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// A module, parameter or tensor is used in a way that ZeRO cannot handle correctly.
class ModelError : public Error {
 public:
  using Error::Error;
};

/// A bug of this library: please report the message.
class InternalError : public Error {
 public:
  using Error::Error;
};

namespace detail {

/// For front ends in other languages, which have other names for what messages speak of: in the messages of errors made
/// from now on, every first text becomes the second one, pair after pair. Replaces those given before. Call it before
/// other threads use the library.
void set_error_words(std::vector<std::pair<std::string, std::string>> from_to);

}  // namespace detail
}  // namespace zero
