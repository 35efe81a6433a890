#pragma once
// A parameter store whose units may be late (late_units.h): each way that units are read or written completes them
// first.
#include <unistd.h>

#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sharding/late_units.h"
#include "sharding/parameter_store.h"

namespace zero::sharding {

/// `Store` with such units; a derived class says how their values come, and when.
template <class Store>
class LateStore : public Store, protected LateUnits::Source {
 public:
  void quiesce() override {
    Store::quiesce();
    late_.complete_all();
  }
  void finish_publication() override { late_.complete_all(); }
  void pin(std::span<const int> units) override {
    for (const int index : units) late_.complete(index);
    Store::pin(units);
  }
  void reattach(int p) override {
    if (!late_.is_late(this->model_.parameters[static_cast<std::size_t>(p)].unit)) Store::reattach(p);
  }
  std::shared_ptr<void> keep_alive(int index) override {
    try {
      // All of them: other ranks of a host may need what this one has to fetch.
      if (::getpid() == this->process_) late_.complete_all();
    } catch (const std::exception&) {  // of a group that has failed: the parameter throws on access
    }
    return Store::keep_alive(index);
  }
  void before_use(intercept::ParameterHandle& handle) override {
    late_.before_use(handle.unit());
    Store::before_use(handle);
  }

 protected:
  template <class... Options>
  LateStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline, Options&&... options)
      : Store(model, ledger, timeline, std::forward<Options>(options)...), late_(model, timeline, *this) {}

  LateUnits late_;
};

}  // namespace zero::sharding
