#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "comm/gather_values.h"
#include "layout/state_slots.h"
#include "sharding/unit_gatherer.h"
#include "storage/host_units.h"
#include "zero/errors.h"
#include "zero/memory.h"

namespace zero::sharding {
namespace {

using offload::DiskSlot;
using storage::HostUnits;

/// A rank that needs a part leaves it so long to its owner to begin reading it; and so long without any part to the one
/// that has begun.
constexpr double kGraceSeconds = 0.005, kPatienceSeconds = 1;

class DiskGatherer final : public UnitGatherer {
 public:
  DiskGatherer(ShardedModel& model, storage::Ledger& ledger, const std::vector<bool>& resident,
               const offload::DiskOptions& disk)
      : model_(model), folder_(disk.folder), units_(model.units.size()) {
    std::string problem;
    try {
      mine_ = offload::make_disk_store(disk, ledger, {parameter_column(model)});
      std::vector<offload::StorePart> parts;
      for (std::size_t u = 0; u < units_.size(); ++u) {
        const Range shard = model.shard_of(static_cast<int>(u));
        if (!resident[u] && !shard.empty()) parts.push_back({static_cast<int>(u), shard});
      }
      mine_->add_units(parts);
    } catch (const IoError& error) {
      problem = error.what();
    }
    throw_together(problem);
    tell_parts(ledger, resident);
    try {
      open_files(*disk.files);
    } catch (const IoError& error) {
      problem = error.what();
    }
    throw_together(problem);
  }

  ~DiskGatherer() override {
    for (auto& file : files_) file.reset();  // drains: nothing touches the units' memory any more
  }

  offload::ShardStore& shards() override { return shards_; }

  void* gather(int unit, std::string_view) override {
    Gathered& one = units_[unit];
    ZERO_CHECK(!one.memory, "unit {} is gathered", unit);
    one.memory = static_cast<std::byte*>(units_in_memory_->join(unit, one.version));
    one.began = base::seconds_now();
    named(unit, [&] {
      for (const int slot : own_slots(unit)) {
        if (units_in_memory_->claim(part_of_slot(slot))) begin_reading(unit, part_of_slot(slot));
      }
    });
    return one.memory;
  }

  double wait(int unit) override {
    named(unit, [&] {
      double begin = base::seconds_now(), patience_until = begin + kPatienceSeconds;
      for (int missing = -1;;) {
        take_what_is_read();
        const int left = missing_parts(unit);
        if (left == 0) break;
        const double now = base::seconds_now();
        if (std::exchange(missing, left) != left) patience_until = now + kPatienceSeconds;
        if (now > begin + kGraceSeconds) help(unit, now > patience_until);
        if (Reading* const own = first_reading(unit)) {
          finish(*own);
        } else {
          std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
      }
      while (Reading* const late = first_reading(unit)) finish(*late);
    });
    return base::seconds_now() - units_[unit].began;
  }

  void drop(int unit) override {
    units_[unit].memory = nullptr;
    units_in_memory_->leave(unit);
  }

  void progress() override {
    if (!readings_.empty()) take_what_is_read();
  }

  void publish(bool frozen_too) override {
    tell_what_changed();
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (model_.units[u].trainable || frozen_too) ++units_[u].version;
    }
  }
  void publish_gathered() override { tell_what_changed(); }
  Moved moved(int) const override { return {}; }

 private:
  /// mine_ as others see it: what they change is marked, errors name the unit, and what gathers read is counted.
  class Shards final : public offload::ShardStore {
   public:
    explicit Shards(DiskGatherer& gatherer) : ShardStore({parameter_column(gatherer.model_)}), gatherer_(gatherer) {}

    void add_units(std::span<const offload::StorePart> parts) override { gatherer_.mine_->add_units(parts); }
    void for_each(int unit, Range range, std::int64_t most_numel, Access access, std::uint32_t wanted,
                  Visit visit) override {
      gatherer_.named(unit, [&] {
        if (access == Access::kUpdate) gatherer_.mark_changed(unit, range);
        gatherer_.mine_->for_each(unit, range, most_numel, access, wanted, visit);
      });
    }
    void read(std::size_t column, int unit, Range range, void* out) const override {
      gatherer_.named(unit, [&] { gatherer_.mine_->read(column, unit, range, out); });
    }
    void write(std::size_t column, int unit, Range range, const void* in) override {
      gatherer_.named(unit, [&] {
        gatherer_.mark_changed(unit, range);
        gatherer_.mine_->write(column, unit, range, in);
      });
    }
    void* in_memory(std::size_t, int, Range) const override { return nullptr; }
    void clear() override { ZERO_CHECK(false, "parameters are cleared"); }
    std::optional<offload::DiskTraffic> disk_traffic() const override {
      offload::DiskTraffic all = *gatherer_.mine_->disk_traffic();
      all.read_nbytes += gatherer_.read_nbytes_;
      return all;
    }
    std::string disk_description(std::string_view what) const override {
      return gatherer_.mine_->disk_description(what);
    }

   private:
    DiskGatherer& gatherer_;
  };

  struct Gathered {
    std::uint64_t version = 0;    ///< counts publications
    std::byte* memory = nullptr;  ///< while gathering or gathered
    double began = 0;
  };
  /// Where a part is: in the file of `owner`.
  struct Part {
    int owner = 0;
    Range range;
    std::int64_t offset = 0;
  };
  struct Reading {
    int unit = -1, part = -1;
    io::File::Request request = 0;
  };

  /// Before anything of it is on its way to the file.
  void mark_changed(int unit, Range range) {
    for (const int slot : own_slots(unit)) {
      const auto s = static_cast<std::size_t>(slot);
      if (changed_[s] || layout::intersect(slots_[s].range, range).empty()) continue;
      changed_[s] = true;
      units_in_memory_->set_changing(part_of_slot(slot), true);
    }
  }

  /// *Collective.*
  void throw_together(const std::string& problem) {
    const auto failed = comm::gather_values(group_, problem.empty() ? 0 : 1, "parameters on disk");
    if (!problem.empty()) throw IoError(problem);
    const auto first = std::ranges::find(failed, 1);
    if (first == failed.end()) return;
    throw IoError(fmt::format("rank {} could not make its file in '{}'; see there", first - failed.begin(), folder_));
  }

  /// *Collective.* What every rank's file holds, in the order of elements.
  void tell_parts(storage::Ledger& ledger, const std::vector<bool>& resident) {
    slots_.resize(static_cast<std::size_t>(mine_->slot_count()));
    changed_.assign(slots_.size(), false);
    std::vector<std::int64_t> own;
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      slots_[s] = mine_->slot(static_cast<int>(s));
      for (const std::int64_t value :
           {std::int64_t{slots_[s].unit}, slots_[s].range.begin, slots_[s].range.end, slots_[s].offset})
        own.push_back(value);
    }
    const auto counts = comm::gather_values(group_, static_cast<std::int64_t>(own.size()), "parts of parameters");
    std::vector<std::int64_t> gathered(
        static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})));
    group_.all_gather(own.data(), gathered.data(), counts, DType::kInt64, {.label = "parts of parameters"}).wait();

    std::vector<std::vector<Part>> of_unit(units_.size());
    std::size_t next = 0;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      for (std::int64_t i = 0; i < counts[rank]; i += 4, next += 4) {
        const std::int64_t* const row = gathered.data() + next;
        of_unit[static_cast<std::size_t>(row[0])].push_back({static_cast<int>(rank), {row[1], row[2]}, row[3]});
      }
    }
    std::vector<storage::HostUnitSize> sizes;
    slots_of_unit_.resize(units_.size());
    part_of_slot_.resize(slots_.size());
    std::size_t slot = 0;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      sizes.push_back({resident[u] ? 0 : model_.units[u].numel, static_cast<int>(of_unit[u].size())});
      for (const Part& part : of_unit[u]) {
        if (part.owner == group_.rank()) {
          slots_of_unit_[u].push_back(static_cast<int>(slot));
          part_of_slot_[slot++] = static_cast<int>(parts_.size());
        }
        parts_.push_back(part);
      }
    }
    ZERO_CHECK(slot == slots_.size(), "{} of {} slots", slot, slots_.size());
    units_in_memory_ = std::make_unique<HostUnits>(group_, ledger, model_.param_dtype, std::move(sizes));
    readings_.reserve(parts_.size());
  }

  /// *Collective.* Every rank's, to read from.
  void open_files(io::FileSystem& files) {
    std::array<char, 256> path{};
    const std::string own = mine_->path_for_others();
    ZERO_CHECK(own.size() < path.size(), "{}", own);
    std::copy(own.begin(), own.end(), path.begin());
    const auto paths = comm::gather_values(group_, path, "files of parameters");
    files_.resize(paths.size());
    for (std::size_t rank = 0; rank < files_.size(); ++rank) {
      const bool needed =
          std::ranges::any_of(parts_, [&](const Part& part) { return part.owner == static_cast<int>(rank); });
      if (!needed) continue;
      try {
        files_[rank] = files.open(paths[rank].data());
      } catch (const IoError& error) {
        throw IoError(
            fmt::format("the file that rank {} keeps parameters in cannot be opened here: {}; the ranks of a "
                        "host must be processes of one user and of one container",
                        rank, error.what()));
      }
    }
  }

  std::span<const int> own_slots(int unit) const { return slots_of_unit_[static_cast<std::size_t>(unit)]; }
  int part_of_slot(int slot) const { return part_of_slot_[static_cast<std::size_t>(slot)]; }

  std::span<std::byte> memory_of(const Reading& reading) const {
    const Range range = parts_[static_cast<std::size_t>(reading.part)].range;
    const auto element = static_cast<std::int64_t>(element_nbytes(model_.param_dtype));
    return {units_[reading.unit].memory + range.begin * element, static_cast<std::size_t>(range.numel() * element)};
  }
  io::File& file_of(int part) const {
    return *files_[static_cast<std::size_t>(parts_[static_cast<std::size_t>(part)].owner)];
  }

  void begin_reading(int unit, int part) {
    Reading reading{unit, part, 0};
    const auto memory = memory_of(reading);
    const Part& from = parts_[static_cast<std::size_t>(part)];
    // The end of a unit may be in the middle of a page, of which there is the rest, in the file and in memory.
    auto nbytes = static_cast<std::int64_t>(memory.size());
    const bool begins_a_page = (memory.data() - units_[unit].memory) % layout::kColumnAlignNbytes == 0;
    if (begins_a_page && from.range.end == model_.units[static_cast<std::size_t>(unit)].numel)
      nbytes = layout::round_up(nbytes, layout::kColumnAlignNbytes);
    const std::span<std::byte> whole{memory.data(), static_cast<std::size_t>(nbytes)};
    reading.request = file_of(part).read(static_cast<std::uint64_t>(from.offset), whole);
    read_nbytes_ += nbytes;
    readings_.push_back(reading);
  }

  int missing_parts(int unit) const {
    int missing = 0;
    for (const int part : units_in_memory_->parts_of(unit))
      missing += units_in_memory_->state(part) != HostUnits::Part::kThere;
    return missing;
  }

  /// Reads what nobody has begun to, and `also_claimed`, one part that somebody does not come to an end with.
  void help(int unit, bool also_claimed) {
    for (const int part : units_in_memory_->parts_of(unit)) {
      if (units_in_memory_->state(part) == HostUnits::Part::kThere) continue;
      if (std::ranges::find(readings_, part, &Reading::part) != readings_.end()) {
        also_claimed = false;  // this rank's own
      } else if (units_in_memory_->claim(part)) {
        begin_reading(unit, part);
      } else if (std::exchange(also_claimed, false)) {
        begin_reading(unit, part);
      }
    }
  }

  Reading* first_reading(int unit) {
    const auto found = std::ranges::find(readings_, unit, &Reading::unit);
    return found == readings_.end() ? nullptr : &*found;
  }

  void take_what_is_read() {
    for (std::size_t i = 0; i < readings_.size();) {
      if (file_of(readings_[i].part).done(readings_[i].request)) {
        named(readings_[i].unit, [&] { finish(readings_[i]); });
      } else {
        ++i;
      }
    }
  }

  /// Waits for it; it is none of readings_ afterwards, however this ends.
  void finish(Reading& reading) {
    const Reading done = reading;
    try {
      file_of(done.part).wait(done.request);
    } catch (...) {
      readings_.erase(readings_.begin() + (&reading - readings_.data()));
      throw;
    }
    readings_.erase(readings_.begin() + (&reading - readings_.data()));
    check(done);
    units_in_memory_->put(done.part);
  }

  /// Elements that are being changed are read by nobody before the next publication; the others are the same before and
  /// after.
  void check(const Reading& reading) const {
    const auto memory = memory_of(reading);
    if (XXH3_64bits(memory.data(), memory.size()) == units_in_memory_->checksum(reading.part)) return;
    if (units_in_memory_->is_changing(reading.part)) return;
    const Part& part = parts_[static_cast<std::size_t>(reading.part)];
    throw IoError(fmt::format(
        "the disk gave back other bytes than rank {} has written to it (elements [{}, {}) of the unit): it, its cable "
        "or the memory of this machine is not reliable: go on from the last checkpoint, on another disk",
        part.owner, part.range.begin, part.range.end));
  }

  /// *Collective.*
  void tell_what_changed() {
    for (std::size_t unit = 0; unit < units_.size(); ++unit)
      named(static_cast<int>(unit), [&] { mine_->flush(static_cast<int>(unit)); });
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (changed_[slot])
        units_in_memory_->set_checksum(part_of_slot_[slot], mine_->checksum(static_cast<int>(slot), 0));
    }
    // Until then others may compare what they have read of before; what is changing they take as it is.
    group_.barrier({.label = "publish parameters on disk"}).wait();
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (std::exchange(changed_[slot], false)) units_in_memory_->set_changing(part_of_slot_[slot], false);
    }
  }

  template <class Do>
  void named(int unit, Do act) const {
    try {
      act();
    } catch (const IoError& error) {
      constexpr std::string_view kWhat = "parameters of '";
      if (std::string_view(error.what()).starts_with(kWhat)) throw;
      throw IoError(fmt::format("{}{}' in '{}': {}", kWhat, model_.units[static_cast<std::size_t>(unit)].name, folder_,
                                error.what()));
    }
  }

  ShardedModel& model_;
  Group group_ = model_.data_ranks;
  const std::string folder_;
  std::vector<Gathered> units_;
  std::unique_ptr<offload::DiskStore> mine_;  ///< this rank's shards
  Shards shards_{*this};
  std::vector<DiskSlot> slots_;                  ///< of mine_
  std::vector<char> changed_;                    ///< by slot: since the last publication
  std::vector<std::vector<int>> slots_of_unit_;  ///< of mine_, by unit
  std::vector<int> part_of_slot_;
  std::vector<Part> parts_;  ///< of all ranks, by unit and elements
  std::unique_ptr<HostUnits> units_in_memory_;
  std::vector<Reading> readings_;                 ///< of this rank, under way
  std::vector<std::unique_ptr<io::File>> files_;  ///< by rank
  std::int64_t read_nbytes_ = 0;
};

}  // namespace

std::unique_ptr<UnitGatherer> make_disk_gatherer(ShardedModel& model, storage::Ledger& ledger,
                                                 const std::vector<bool>& resident, const offload::DiskOptions& disk) {
  return std::make_unique<DiskGatherer>(model, ledger, resident, disk);
}

}  // namespace zero::sharding
