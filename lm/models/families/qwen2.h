#pragma once
// Qwen2: biases of q, k and v, windows by layer.
#include "models/families/family.h"

namespace zero::models {

const ModelFamily& qwen2_family();

}  // namespace zero::models
