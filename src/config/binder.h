#pragma once
// Walks a parsed document along the schema, which honours, notes or refuses every key; and back.
#include <map>
#include <string>

#include "config/jsonc.h"
#include "config/problems.h"
#include "config/schema.h"

namespace zero::config {

/// A key that was in the file, under its current name.
struct Given {
  std::string path;  // as written
  int line = 0;
  Value value;
};
using GivenKeys = std::map<std::string, Given>;

/// Fills `config` (fields and notices) from the document and says what was given. Every problem goes to
/// `problems`; the config is only meaningful when there are none.
GivenKeys bind(const Document& document, Config& config, Problems& problems);

/// The way back: DeepSpeed's keys with the fields' values, NaN and infinities included.
nlohmann::ordered_json unbind(const Config& config);

/// After bind(): checks keys against each other and resolves defaults that depend on others.
void cross_check(const GivenKeys& given, Config& config, Problems& problems);

}  // namespace zero::config
