#pragma once
// Mistral: one window of attention for all layers.
#include "models/families/family.h"

namespace zero::models {

const ModelFamily& mistral_family();

}  // namespace zero::models
