#pragma once
// Qwen3-MoE: experts in some layers, norms of queries and keys.
#include "models/families/family.h"

namespace zero::models {

const ModelFamily& qwen3_moe_family();

}  // namespace zero::models
