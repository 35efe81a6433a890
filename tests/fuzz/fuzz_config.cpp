// The configuration's reader.
#include "fuzz/fuzz.h"
#include "zero/config.h"

namespace zero::fuzz {
namespace {

void run(std::string_view text) {
  Config config;
  if (!accepted([&] { config = Config::from_text(text); })) return;
  require(accepted([&] { config.validate(); }), "what was read is valid");
  const std::string written = config.to_json();
  require(Config::from_text(written).to_json() == written, "what was read can be written and read");
  for (const int ranks : {1, 2, 3, 1 << 30}) {
    Config resolved = config;
    if (!accepted([&] { resolved.resolve_batch(ranks); })) continue;
    require(resolved.train_batch_size ==
                resolved.train_micro_batch_size_per_gpu * resolved.gradient_accumulation_steps * ranks,
            "batch = micro-batch * accumulation * ranks");
  }
}

}  // namespace

const char* const kTarget = "config";

}  // namespace zero::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zero::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
