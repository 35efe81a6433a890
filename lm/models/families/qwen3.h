#pragma once
// Qwen3: norms of queries and keys, windows by layer.
#include "models/families/family.h"

namespace zero::models {

const ModelFamily& qwen3_family();

}  // namespace zero::models
