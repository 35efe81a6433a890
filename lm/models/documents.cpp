#include "models/documents.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace zero::models {

std::shared_ptr<const Documents> Documents::of(const at::Tensor& tokens, std::int64_t separator) {
  if (separator < 0) return nullptr;
  const at::NoGradGuard no_grad;
  const at::Tensor here = tokens.to(at::kCPU).contiguous();
  const std::int64_t sequences = here.size(0), length = here.size(1);
  const auto* token = here.const_data_ptr<std::int64_t>();
  auto documents = std::make_shared<Documents>();
  at::Tensor positions = at::empty({sequences, length}, at::kLong);
  auto* position = positions.mutable_data_ptr<std::int64_t>();
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    for (std::int64_t first = 0; first < length;) {
      const std::int64_t* const begin = token + sequence * length + first;
      const std::int64_t* const stop = token + (sequence + 1) * length;
      const std::int64_t count = std::find(begin + 1, stop, separator) - begin;
      for (std::int64_t i = 0; i < count; ++i) *position++ = i;
      documents->spans_.push_back({sequence, first, count});
      documents->longest_ = std::max(documents->longest_, count);
      first += count;
    }
  }
  if (static_cast<std::int64_t>(documents->spans_.size()) == sequences) return nullptr;
  documents->positions_ = positions.to(tokens.device());
  return documents;
}

at::Tensor Documents::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const Attend& attend) const {
  std::vector<at::Tensor> results;
  results.reserve(spans_.size());
  for (const Span& span : spans_) {
    const auto of = [&](const at::Tensor& x) {
      return x.narrow(0, span.sequence, 1).narrow(2, span.first, span.length);
    };
    results.push_back(attend(of(q), of(k), of(v)));
  }
  return at::cat(results, 1).view({q.size(0), q.size(2), -1});
}

}  // namespace zero::models
