#pragma once
// Error types of the library. Every message names the place, the rank, the parameter or key, the value found, the value
// expected, and the remedy.
#include <stdexcept>
#include <string>

namespace zero {

/// Base of every exception the library throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
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

}  // namespace zero
