// The pickle inside an archive of torch.save.
#include "checkpoint/safetensors.h"
#include "checkpoint/torch_pickle.h"
#include "fuzz/fuzz.h"

namespace zero::fuzz {
namespace {

using namespace checkpoint;

void check(const PickledTensor& tensor) {
  require(tensor.shape.size() == tensor.strides.size(), "as many strides as sizes");
  std::int64_t last = tensor.offset;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) last += (tensor.shape[d] - 1) * tensor.strides[d];
  if (checked_numel(tensor.shape, "shape") > 0) {
    require(tensor.offset >= 0 && last < tensor.storage_numel, "a view lies inside its storage");
  }
}

void run(std::string_view text) {
  PickledPointer value;
  if (!accepted([&] { value = parse_torch_pickle(text, "pickle"); })) return;
  accepted([&] {
    for (const auto& [name, tensor] : tensors_of_state_dict(*value, "pickle")) check(tensor);
  });
}

}  // namespace

const char* const kTarget = "pickle";

}  // namespace zero::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zero::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
