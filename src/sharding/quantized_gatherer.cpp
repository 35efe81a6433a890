#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "comm/transport.h"
#include "optim/kernels.h"
#include "sharding/buffer_pool.h"
#include "sharding/unit_gatherer.h"
#include "sharding/unit_window.h"
#include "sharding/widened.h"

namespace zero::sharding {
namespace {

using optim::StateFormat;
using storage::FlatBuffer;

/// Units whose shards have a second form in few bits, made of them when they are published, which is what other ranks
/// fetch. This rank's own part comes from there, too, so that all ranks compute with the same values. What is not
/// quantised, and units in scopes, come from a gatherer of exact values.
class QuantizedGatherer final : public UnitGatherer {
 public:
  QuantizedGatherer(ShardedModel& model, storage::Ledger& ledger, const std::vector<bool>& resident,
                    const GatherForm& form)
      : model_(model),
        form_(form),
        exact_(make_window_gatherer(model, ledger, resident)),
        places_(model.units.size()),
        pool_(ledger, MemoryKind::kGather,
              [this, &ledger](auto numel) {
                return model_.home.make_private(ledger, MemoryKind::kGather, model_.param_dtype, numel);
              }),
        codes_pool_(ledger, MemoryKind::kGather, [this, &ledger](auto nbytes) {
          return model_.home.make_private(ledger, MemoryKind::kGather, DType::kByte, nbytes);
        }) {
    std::vector<comm::Parcel> parcels;
    std::vector<const void*> mine;
    for (std::size_t u = 0; u < places_.size(); ++u) {
      const Unit& unit = model_.units[u];
      const bool has_codes = !resident[u] && (form_.of_trained || !unit.trainable);
      const Range shard = has_codes ? model_.shard_of(static_cast<int>(u)) : Range{};
      std::vector<std::int64_t> counts = layout::shard_counts(unit.cuts, has_codes ? unit.whole() : Range{});
      for (std::int64_t& count : counts) count = nbytes_of(count);
      parcels.push_back({"codes of parameters of " + unit.name, std::move(counts)});
      Place& place = places_[u];
      place.has_codes = has_codes;
      if (!shard.empty())
        place.codes =
            model_.home.make_readable(ledger, MemoryKind::kParameters, DType::kByte, nbytes_of(shard.numel()));
      mine.push_back(place.codes.empty() ? nullptr : place.codes.data());
    }
    window_ = make_unit_window(model_, "codes of parameters", std::move(parcels), mine, DType::kByte);
  }

  ~QuantizedGatherer() override {
    for (Place& place : places_) {
      if (place.coming) wait_or_fail(place.work, *place.coming, process_);
    }
  }

  offload::ShardStore& shards() override { return exact_->shards(); }

  void* gather(int unit, std::string_view for_what) override {
    Place& place = places_[unit];
    if (!place.has_codes) return exact_->gather(unit, for_what);
    place.whole = pool_.take(model_.units[unit].numel);
    try {
      fetch(unit, for_what);
    } catch (...) {
      pool_.give_back(std::exchange(place.whole, nullptr));
      throw;
    }
    return place.whole->data();
  }
  double wait(int unit) override {
    Place& place = places_[unit];
    if (!place.has_codes) return exact_->wait(unit);
    place.work.wait();
    const double seconds = std::exchange(place.work, {}).moving_seconds(), begin = base::seconds_now();
    widen(*place.coming, *place.whole, model_.units[unit].numel);
    codes_pool_.give_back(std::exchange(place.coming, nullptr));
    return seconds + base::seconds_now() - begin;
  }
  void drop(int unit) override {
    Place& place = places_[unit];
    if (!place.has_codes) return exact_->drop(unit);
    pool_.give_back(std::exchange(place.whole, nullptr));
  }
  Moved make_exact(int unit) override {
    Place& place = places_[unit];
    if (!place.has_codes) return {};
    void* const values = exact_->gather(unit, "(scope)");
    exact_->wait(unit);
    model_.passes->copy(place.whole->data(), values,
                        static_cast<std::size_t>(model_.units[unit].numel) * element_nbytes(model_.param_dtype));
    exact_->drop(unit);
    return exact_->moved(unit);
  }
  Moved end_exact(int unit) override {
    if (!places_[unit].has_codes) return {};
    fetch(unit, "(end of a scope)");
    wait(unit);
    return moved(unit);
  }

  void publish(bool frozen_too) override {
    exact_->publish(frozen_too);
    make_codes(frozen_too);
    window_->publish();
  }
  void publish_gathered() override {
    exact_->publish_gathered();
    make_codes(/*frozen_too=*/true);
    window_->publish();
  }
  bool one_sided() const override { return exact_->one_sided() && window_->one_sided(); }
  Moved moved(int unit) const override {
    Moved moved = exact_->moved(unit);
    if (places_[unit].has_codes) moved.received_nbytes = nbytes_of(moved.received_numel);
    return moved;
  }

 private:
  struct Place {
    bool has_codes = false;       ///< the unit is quantised, also if it is trained later: when depends on the ranks
    FlatBuffer codes;             ///< of this rank's shard
    FlatBuffer* whole = nullptr;  ///< while gathering or gathered
    FlatBuffer* coming = nullptr;
    Work work;
  };

  std::int64_t nbytes_of(std::int64_t numel) const { return optim::nbytes_of(form_.format, numel); }

  void fetch(int unit, std::string_view for_what) {
    Place& place = places_[unit];
    FlatBuffer* const codes = codes_pool_.take(nbytes_of(model_.units[unit].numel));
    try {
      place.work = window_->fetch(unit, codes->data(), for_what);
    } catch (...) {
      codes_pool_.give_back(codes);
      throw;
    }
    place.coming = codes;
  }

  void widen(const FlatBuffer& codes, const FlatBuffer& out, std::int64_t numel) {
    for (std::int64_t begin = 0; begin < numel; begin += kChunkNumel) {
      const std::int64_t count = std::min(kChunkNumel, numel - begin);
      const void* const from = codes.data_at(nbytes_of(begin));
      if (out.dtype() == DType::kFloat32) {
        kernels_.widen_state(form_.format, from, static_cast<float*>(out.data_at(begin)), count);
        continue;
      }
      kernels_.widen_state(form_.format, from, wide_.data(), count);
      model_.passes->round(wide_.data(), out.data_at(begin), out.dtype(), count);
    }
  }

  void make_codes(bool frozen_too) {
    for (std::size_t u = 0; u < places_.size(); ++u) {
      const int index = static_cast<int>(u);
      const FlatBuffer& codes = places_[u].codes;
      if (codes.empty() || !(model_.units[u].trainable || frozen_too)) continue;
      const Range shard = model_.shard_of(index);
      shards().for_each(index, shard, kChunkNumel, offload::ShardStore::Access::kRead, offload::kAllColumns,
                        [&](Range piece, std::span<void* const> memory) {
                          void* const out = codes.data_at(nbytes_of(piece.begin - shard.begin));
                          const float* const values = wide_.of(memory[0], model_.param_dtype, piece.numel());
                          kernels_.narrow_state(form_.format, values, out, piece.numel());
                        });
    }
  }
  ShardedModel& model_;
  const int process_ = ::getpid();
  const GatherForm form_;
  const optim::Kernels& kernels_ = optim::kernels();
  const std::unique_ptr<UnitGatherer> exact_;
  std::vector<Place> places_;  ///< by unit
  Widened wide_;
  std::shared_ptr<comm::ShardWindow> window_;
  BufferPool pool_, codes_pool_;
};

}  // namespace

std::unique_ptr<UnitGatherer> make_quantized_gatherer(ShardedModel& model, storage::Ledger& ledger,
                                                      const std::vector<bool>& resident, const GatherForm& form) {
  return std::make_unique<QuantizedGatherer>(model, ledger, resident, form);
}

}  // namespace zero::sharding
