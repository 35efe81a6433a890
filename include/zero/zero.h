#pragma once
// Everything a training program needs.
#include "zero/checkpoint.h"     // IWYU pragma: export
#include "zero/config.h"         // IWYU pragma: export
#include "zero/cpu_products.h"   // IWYU pragma: export
#include "zero/device_memory.h"  // IWYU pragma: export
#include "zero/disk.h"           // IWYU pragma: export
#include "zero/engine.h"         // IWYU pragma: export
#include "zero/errors.h"         // IWYU pragma: export
#include "zero/group.h"          // IWYU pragma: export
#include "zero/init.h"           // IWYU pragma: export
#include "zero/launch.h"         // IWYU pragma: export
#include "zero/memory.h"         // IWYU pragma: export
#include "zero/model_view.h"     // IWYU pragma: export
#include "zero/optimizers.h"     // IWYU pragma: export
#include "zero/recompute.h"      // IWYU pragma: export
#include "zero/report.h"         // IWYU pragma: export
#include "zero/train.h"          // IWYU pragma: export
