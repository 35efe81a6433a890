#pragma once
// Mixtral: every layer has experts.
#include "models/families/family.h"

namespace zero::models {

const ModelFamily& mixtral_family();

}  // namespace zero::models
