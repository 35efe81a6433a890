#include "offload/disk_store.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "io/aligned_buffer.h"
#include "layout/state_slots.h"
#include "zero/errors.h"
#include "zero/memory.h"

namespace zero::offload {
namespace {

using layout::Range;
using Columns = std::uint32_t;  ///< bit c: column c

class FileStore final : public DiskStore {
 public:
  FileStore(const DiskOptions& options, storage::Ledger& ledger, std::vector<StoreColumn> columns)
      : DiskStore(std::move(columns)), options_(options), ledger_(ledger) {
    ZERO_CHECK(columns_.size() <= kMostColumns, "{} columns", columns_.size());
    for (const StoreColumn& column : columns_) shapes_.push_back({column.block_nbytes, column.block_numel});
    ZERO_CHECK(options_.cuts.slot_numel > 0 && options_.buffers >= 3, "{} slots of {} elements", options_.buffers,
               options_.cuts.slot_numel);
    most_nbytes_ = layout::slot_nbytes(shapes_, all(), options_.cuts.slot_numel);
  }

  ~FileStore() override {
    file_.reset();  // drains: nothing touches the buffers any more
    if (memory_.nbytes() > 0) ledger_.add(MemoryKind::kOffload, -static_cast<std::int64_t>(memory_.nbytes()));
    ledger_.add_nvme(-reserved_nbytes_);
  }

  void add_units(std::span<const StorePart> parts) override {
    std::vector<Slot> slots = slots_;
    std::vector<std::vector<int>> of_unit = of_unit_;
    std::int64_t end = reserved_nbytes_;
    for (const StorePart& part : parts) {
      const auto unit = static_cast<std::size_t>(part.unit);
      if (unit >= of_unit.size()) of_unit.resize(unit + 1);
      const Columns columns = part.columns & all();
      for (std::int64_t begin = part.range.begin; begin < part.range.end;) {
        const Range range{begin, layout::slot_end(options_.cuts, {part.range, columns, part.piece_numel}, begin)};
        begin = range.end;
        of_unit[unit].push_back(static_cast<int>(slots.size()));
        const std::int64_t nbytes = layout::slot_nbytes(shapes_, columns, range.numel());
        slots.push_back({part.unit, range, columns, {end, options_.has_two_places ? end + nbytes : -1}});
        end += options_.has_two_places ? 2 * nbytes : nbytes;
      }
    }
    if (end > reserved_nbytes_) {
      if (!file_) open();
      file_->reserve(static_cast<std::uint64_t>(end));
      ledger_.add_nvme(end - std::exchange(reserved_nbytes_, end));
    }
    slots_ = std::move(slots);
    of_unit_ = std::move(of_unit);
  }

  void for_each(int unit, Range range, std::int64_t most_numel, Access access, Columns wanted, Visit visit) override {
    for (const int index : slots_in(unit, range)) {
      const Slot& slot = slots_[index];
      const Columns columns = wanted & slot.columns;
      const Buffer* const buffer = columns == 0 ? nullptr : &go_to(index, columns, access == Access::kUpdate);
      const Range here = layout::intersect(range, slot.range);
      visit_pieces(
          here, most_numel, columns,
          [&](std::size_t c, std::int64_t element) { return address(*buffer, slot, c, element); }, visit);
    }
  }

  void read(std::size_t column, int unit, Range range, void* out) const override {
    // Reading moves buffers, and changes nothing that anybody sees.
    auto& self = const_cast<FileStore&>(*this);
    self.each_part(
        column, unit, range, /*for_update=*/false, [&](void* memory, std::int64_t begin, std::size_t nbytes) {
          std::memcpy(static_cast<char*>(out) + columns_[column].nbytes(begin - range.begin), memory, nbytes);
        });
  }
  void write(std::size_t column, int unit, Range range, const void* in) override {
    each_part(column, unit, range, /*for_update=*/true, [&](void* memory, std::int64_t begin, std::size_t nbytes) {
      std::memcpy(memory, static_cast<const char*>(in) + columns_[column].nbytes(begin - range.begin), nbytes);
    });
  }
  void* in_memory(std::size_t, int, Range) const override { return nullptr; }

  std::optional<DiskTraffic> disk_traffic() const override {
    return DiskTraffic{read_nbytes_, written_nbytes_, waited_seconds_};
  }

  int slot_count() const override { return static_cast<int>(slots_.size()); }
  DiskSlot slot(int index) const override {
    const Slot& slot = slots_[index];
    return {slot.unit, slot.range, slot.offsets[0]};
  }
  std::uint64_t checksum(int slot, std::size_t column) const override {
    return slots_[slot].checksums[place_of(slots_[slot], column)][column];
  }

  void flush(int unit) override {
    if (!broken_.empty()) throw IoError(broken_);
    const auto is_its = [&](const Buffer& buffer) { return buffer.slot >= 0 && slots_[buffer.slot].unit == unit; };
    for (Buffer& buffer : buffers_) {
      if (is_its(buffer) && buffer.changed != 0) write_back(buffer);
    }
    for (Buffer& buffer : buffers_) {
      if (is_its(buffer)) finish(buffer.writing);
    }
  }

  void begin_try() override {
    ZERO_CHECK(options_.has_two_places && !is_try_, "states with one place");
    if (!broken_.empty()) throw IoError(broken_);
    // Of before it, so it belongs to where it is.
    for (Buffer& buffer : buffers_) {
      if (buffer.slot >= 0 && buffer.changed != 0) write_back(buffer);
    }
    is_try_ = true;
  }
  void keep_try() override {
    ZERO_CHECK(is_try_, "nothing was tried");
    for (Slot& slot : slots_) slot.in_second ^= std::exchange(slot.tried, 0);
    is_try_ = false;
  }
  void forget_try() override {
    ZERO_CHECK(is_try_, "nothing was tried");
    is_try_ = false;
    for (Slot& slot : slots_) {
      if (slot.tried == 0) continue;
      if (slot.buffer >= 0) {
        Buffer& buffer = buffers_[slot.buffer];
        try {
          if (!buffer.reading.empty()) finish_reading(buffer);
          finish(buffer.writing);
        } catch (const IoError& error) {
          if (broken_.empty()) broken_ = error.what();
          buffer.reading.clear();
          buffer.writing.clear();
        }
        buffer.valid &= ~slot.tried;
        buffer.changed &= ~slot.tried;
      }
      slot.tried = 0;
    }
    if (!broken_.empty()) throw IoError(broken_);
  }

  void release() override { clear(); }
  void clear() override {
    ZERO_CHECK(!is_try_, "what is tried, and discarded");
    if (!broken_.empty()) throw IoError(broken_);
    for (Buffer& buffer : buffers_) {
      buffer.changed = 0;
      try {
        finish(buffer.reading);
      } catch (const IoError&) {  // nobody wants what was read ahead
        buffer.reading.clear();
      }
      empty(buffer);
    }
    for (Slot& slot : slots_) slot.on_disk = {};
    current_ = -1;
  }

  std::string path_for_others() const override { return file_ ? file_->path_for_others() : std::string(); }

  std::string disk_description(std::string_view what) const override {
    if (!file_) return {};
    return fmt::format("{} on NVMe: {} of '{}' reserved by this rank, {}, {} buffers of {}", what,
                       human_nbytes(reserved_nbytes_), options_.folder, file_->description(), buffers_.size(),
                       human_nbytes(most_nbytes_));
  }

 private:
  struct Slot {
    int unit = 0;
    Range range;
    Columns columns = 0;
    std::array<std::int64_t, 2> offsets{};  ///< of its places in the file; -1: it has one
    Columns in_second = 0;                  ///< are in the second place
    Columns tried = 0;                      ///< are in the other one than that, since begin_try()
    std::array<Columns, 2> on_disk{};       ///< were written; others are zeros
    int buffer = -1;                        ///< where it is, or is going, in memory
    int next = -1;                          ///< was updated after it, the last time
    std::array<std::array<std::uint64_t, kMostColumns>, 2> checksums{};
  };
  struct Transfer {
    io::File::Request request = 0;
    Columns columns = 0;
  };
  struct Buffer {
    std::byte* memory = nullptr;
    int slot = -1;
    Columns valid = 0;    ///< hold what they should, or will when `reading` is done
    Columns changed = 0;  ///< are not on the disk like this
    std::vector<Transfer> reading, writing;
    std::uint64_t used = 0;  ///< when a pass was here last
  };

  static bool has(Columns columns, std::size_t column) { return (columns >> column & 1u) != 0; }
  Columns all() const { return columns_.empty() ? 0 : ~0u >> (32 - columns_.size()); }

  static std::size_t place_of(const Slot& slot, std::size_t column) {
    return (slot.in_second ^ slot.tried) >> column & 1u;
  }

  void open() {
    options_.files->make_folders(options_.folder);
    auto file = options_.files->create_scratch(options_.folder, options_.scratch);
    io::AlignedBuffer memory(static_cast<std::size_t>(most_nbytes_) * static_cast<std::size_t>(options_.buffers),
                             io::AlignedBuffer::Pages::kHuge);
    memory_ = std::move(memory);
    buffers_.resize(static_cast<std::size_t>(options_.buffers));
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
      buffers_[b].memory = memory_.data() + static_cast<std::int64_t>(b) * most_nbytes_;
      buffers_[b].reading.reserve(kMostColumns);
      buffers_[b].writing.reserve(kMostColumns);
    }
    file_ = std::move(file);
    file_->use_memory(memory_.span());
    ledger_.add(MemoryKind::kOffload, static_cast<std::int64_t>(memory_.nbytes()));
  }

  /// Of a unit, those that have elements of `range`, in their order.
  std::span<const int> slots_in(int unit, Range range) const {
    ZERO_CHECK(unit < static_cast<int>(of_unit_.size()), "states of unit {}", unit);
    const auto& all_of_unit = of_unit_[static_cast<std::size_t>(unit)];
    if (range.empty()) return {};
    const auto first =
        std::ranges::upper_bound(all_of_unit, range.begin, {}, [&](int s) { return slots_[s].range.end; });
    const auto last = std::lower_bound(first, all_of_unit.end(), range.end,
                                       [&](int s, std::int64_t end) { return slots_[s].range.begin < end; });
    return {first, last};
  }

  /// Bytes of the slot before the column.
  std::int64_t offset_in(const Slot& slot, std::size_t column) const {
    return layout::slot_nbytes(shapes_, slot.columns & ((1u << column) - 1u), slot.range.numel());
  }
  std::byte* address(const Buffer& buffer, const Slot& slot, std::size_t column, std::int64_t element) const {
    return buffer.memory + offset_in(slot, column) + columns_[column].nbytes(element - slot.range.begin);
  }
  std::span<std::byte> column_in(const Buffer& buffer, const Slot& slot, std::size_t column) const {
    return {buffer.memory + offset_in(slot, column),
            static_cast<std::size_t>(layout::column_nbytes(shapes_[column], slot.range.numel()))};
  }

  template <class Copy>
  void each_part(std::size_t column, int unit, Range range, bool for_update, Copy copy) {
    std::int64_t next = range.begin;
    for (const int index : slots_in(unit, range)) {
      const Slot& slot = slots_[index];
      const Range part = layout::intersect(range, slot.range);
      ZERO_CHECK(has(slot.columns, column) && part.begin == next, "unit {} in [{}, {}) has no {}", unit, range.begin,
                 range.end, columns_[column].name);
      const Buffer& buffer = go_to(index, 1u << column, for_update);
      copy(address(buffer, slot, column, part.begin), part.begin,
           static_cast<std::size_t>(columns_[column].nbytes(part.numel())));
      next = part.end;
    }
    ZERO_CHECK(next == std::max(range.begin, range.end), "states of unit {} in [{}, {})", unit, range.begin, range.end);
  }

  /// The slot with these columns in memory, the last one on its way to the disk and the next ones on theirs from it.
  Buffer& go_to(int index, Columns columns, bool for_update) {
    try {
      if (!broken_.empty()) throw IoError(broken_);
      if (current_ != index) leave(index, for_update);
      keep_next(index, for_update);
      Buffer& buffer = bring(index, columns);
      if (for_update) {
        finish(buffer.writing);
        buffer.changed |= columns;
        if (is_try_) slots_[index].tried |= columns;
      }
      buffer.used = ++clock_;
      if (std::exchange(current_, index) != index) read_ahead(index, columns, for_update);
      return buffer;
    } catch (const IoError& error) {
      const Slot& slot = slots_[index];
      throw IoError(fmt::format("{} (at elements [{}, {}) of unit {})", error.what(), slot.range.begin, slot.range.end,
                                slot.unit));
    }
  }

  void leave(int next, bool for_update) {
    if (current_ < 0) return;
    Slot& slot = slots_[current_];
    if (slot.buffer < 0) return;
    Buffer& buffer = buffers_[slot.buffer];
    if (for_update) slot.next = next;
    if (buffer.changed != 0) write_back(buffer);
  }

  /// Calls `start(memory, offset in file, columns, place)` for columns that follow each other in a place.
  template <class Start>
  void in_runs(const Buffer& buffer, const Slot& slot, Columns columns, Start start) {
    for (std::size_t c = 0; c < columns_.size();) {
      if (!has(columns, c)) {
        ++c;
        continue;
      }
      const std::int64_t begin = offset_in(slot, c);
      const std::size_t place = place_of(slot, c);
      std::int64_t end = begin;
      Columns run = 0;
      // Columns that the slot has not are no gap.
      for (; c < columns_.size() && (has(columns, c) || !has(slot.columns, c)); ++c) {
        if (!has(columns, c)) continue;
        if (place_of(slot, c) != place) break;
        run |= 1u << c;
        end += static_cast<std::int64_t>(column_in(buffer, slot, c).size());
      }
      start(std::span(buffer.memory + begin, static_cast<std::size_t>(end - begin)),
            static_cast<std::uint64_t>(slot.offsets[place] + begin), run, place);
    }
  }

  Buffer& bring(int index, Columns columns) {
    Slot& slot = slots_[index];
    if (slot.buffer < 0) {
      Buffer& taken = free_buffer();
      put(index, taken);
    }
    Buffer& buffer = buffers_[slot.buffer];
    if ((columns & ~buffer.valid) != 0) start_reading(buffer, columns & ~buffer.valid);
    if (!buffer.reading.empty()) finish_reading(buffer);
    return buffer;
  }

  void put(int index, Buffer& buffer) {
    buffer.slot = index;
    buffer.valid = buffer.changed = 0;
    buffer.used = clock_;
    slots_[index].buffer = static_cast<int>(&buffer - buffers_.data());
  }

  /// One whose slot is not needed soon, emptied.
  Buffer& free_buffer() {
    Buffer* best = nullptr;
    for (Buffer& buffer : buffers_) {
      if (buffer.slot == current_ && current_ >= 0) continue;
      if (!best || rank_of(buffer) < rank_of(*best)) best = &buffer;
    }
    empty(*best);
    return *best;
  }
  bool moves(const Buffer& buffer) const {
    return buffer.changed != 0 || !are_done(buffer.reading) || !are_done(buffer.writing);
  }
  /// Which to give up first: empty ones, those used longest ago, those that still move; last those that are
  /// needed next.
  std::pair<int, std::uint64_t> rank_of(const Buffer& buffer) const {
    if (buffer.slot < 0) return {0, 0};
    return {buffer.used == clock_ ? 3 : moves(buffer) ? 2 : 1, buffer.used};
  }

  void empty(Buffer& buffer) {
    if (buffer.slot < 0) return;
    finish(buffer.reading);
    if (buffer.changed != 0) write_back(buffer);
    finish(buffer.writing);
    slots_[buffer.slot].buffer = -1;
    buffer.slot = -1;
    buffer.valid = 0;
  }

  void start_reading(Buffer& buffer, Columns columns) {
    Slot& slot = slots_[buffer.slot];
    const Columns written = on_disk(slot);
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (!has(columns & ~written, c)) continue;
      const auto memory = column_in(buffer, slot, c);
      std::memset(memory.data(), 0, memory.size());
    }
    in_runs(buffer, slot, columns & written,
            [&](std::span<std::byte> memory, std::uint64_t offset, Columns run, std::size_t) {
              buffer.reading.push_back({file_->read(offset, memory), run});
              read_nbytes_ += static_cast<std::int64_t>(memory.size());
            });
    buffer.valid |= columns;
  }

  void finish_reading(Buffer& buffer) {
    Columns read = 0;
    for (const Transfer& transfer : buffer.reading) read |= transfer.columns;
    finish(buffer.reading);
    const Slot& slot = slots_[buffer.slot];
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (!has(read, c) || checksum_of(buffer, slot, c) == slot.checksums[place_of(slot, c)][c]) continue;
      broken_ = fmt::format(
          "'{}' gave back other bytes than were written to it: the checksum of {} differs; the disk, its cable or the "
          "memory of this machine is not reliable: go on from the last checkpoint, on another disk",
          options_.folder, columns_[c].name);
      throw IoError(broken_);
    }
  }

  std::uint64_t checksum_of(const Buffer& buffer, const Slot& slot, std::size_t column) const {
    const auto memory = column_in(buffer, slot, column);
    const std::int64_t whole = layout::round_up(slot.range.numel(), columns_[column].block_numel);
    return XXH3_64bits(memory.data(), static_cast<std::size_t>(columns_[column].nbytes(whole)));
  }

  void write_back(Buffer& buffer) {
    Slot& slot = slots_[buffer.slot];
    finish(buffer.writing);
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (has(buffer.changed, c)) slot.checksums[place_of(slot, c)][c] = checksum_of(buffer, slot, c);
    }
    in_runs(buffer, slot, buffer.changed,
            [&](std::span<std::byte> memory, std::uint64_t offset, Columns run, std::size_t place) {
              buffer.writing.push_back({file_->write(offset, memory), run});
              written_nbytes_ += static_cast<std::int64_t>(memory.size());
              slot.on_disk[place] |= run;
            });
    buffer.changed = 0;
  }

  /// Columns of which something was written where they are.
  static Columns on_disk(const Slot& slot) {
    const Columns second = slot.in_second ^ slot.tried;
    return (slot.on_disk[0] & ~second) | (slot.on_disk[1] & second);
  }

  bool are_done(const std::vector<Transfer>& transfers) const {
    return std::ranges::all_of(transfers, [&](const Transfer& t) { return file_->done(t.request); });
  }

  void finish(std::vector<Transfer>& transfers) {
    if (transfers.empty()) return;
    const double begin = base::seconds_now();
    for (const Transfer& transfer : transfers) file_->wait(transfer.request);
    transfers.clear();
    waited_seconds_ += base::seconds_now() - begin;
  }

  std::size_t window() const { return buffers_.size() - 2; }

  /// What comes after a slot and is in memory counts as used now: it must not be read twice.
  void keep_next(int index, bool for_update) {
    int next = index;
    for (std::size_t ahead = 0; ahead < window(); ++ahead) {
      next = after(next, for_update);
      if (slots_[next].buffer >= 0) buffers_[slots_[next].buffer].used = clock_;
    }
  }

  /// Gets what comes after a slot on its way into buffers that are free without waiting. One stays for what is
  /// written next.
  void read_ahead(int index, Columns columns, bool for_update) {
    keep_next(index, for_update);
    int next = index;
    for (std::size_t ahead = 0; ahead < window(); ++ahead) {
      next = after(next, for_update);
      if (next == index) return;
      Slot& slot = slots_[next];
      if (slot.buffer < 0) {
        Buffer* const buffer = idle_buffer();
        if (!buffer) return;
        empty(*buffer);
        put(next, *buffer);
      }
      Buffer& there = buffers_[slot.buffer];
      const Columns missing = columns & slot.columns & ~there.valid;
      if (missing != 0) start_reading(there, missing);
    }
  }

  /// The one used longest ago of those that have nothing to wait for and are not of this moment.
  Buffer* idle_buffer() {
    Buffer* best = nullptr;
    for (Buffer& buffer : buffers_) {
      if (buffer.slot >= 0 && (buffer.used == clock_ || moves(buffer))) continue;
      if (!best || rank_of(buffer) < rank_of(*best)) best = &buffer;
    }
    return best;
  }

  int after(int index, bool for_update) const {
    const int next = for_update ? slots_[index].next : -1;
    return next >= 0 ? next : (index + 1) % static_cast<int>(slots_.size());
  }

  const DiskOptions options_;
  storage::Ledger& ledger_;
  std::vector<layout::ColumnShape> shapes_;
  std::int64_t most_nbytes_ = 0;  ///< of a slot
  std::vector<Slot> slots_;
  std::vector<std::vector<int>> of_unit_;  ///< its slots, in the order of their elements
  io::AlignedBuffer memory_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<io::File> file_;
  std::int64_t reserved_nbytes_ = 0;
  int current_ = -1;  ///< the slot that was visited last
  std::uint64_t clock_ = 0;
  bool is_try_ = false;
  std::string broken_;
  std::atomic<std::int64_t> read_nbytes_{0}, written_nbytes_{0};  ///< any thread may ask for them
  std::atomic<double> waited_seconds_{0};
};

}  // namespace

std::unique_ptr<DiskStore> make_disk_store(const DiskOptions& options, storage::Ledger& ledger,
                                           std::vector<StoreColumn> columns) {
  return std::make_unique<FileStore>(options, ledger, std::move(columns));
}

}  // namespace zero::offload
