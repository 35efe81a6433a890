#include "monitor/tensorboard_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>

#include "zero/errors.h"

namespace zero::monitor {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
    table[i] = crc;
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

std::uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u; }

/// Little-endian bytes of an integer or the bits of a floating-point number.
template <class T>
void append_fixed(std::string& out, T value) {
  std::uint64_t bits = 0;
  if constexpr (std::is_same_v<T, double>) {
    bits = std::bit_cast<std::uint64_t>(value);
  } else if constexpr (std::is_same_v<T, float>) {
    bits = std::bit_cast<std::uint32_t>(value);
  } else {
    bits = value;
  }
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(bits >> (8 * i) & 0xFF);
}

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
}

enum WireType : std::uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_key(std::string& out, std::uint64_t field, WireType type) { append_varint(out, field << 3 | type); }

void append_bytes(std::string& out, std::uint64_t field, std::string_view bytes) {
  append_key(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

/// The fields every event has.
std::string event_at(std::int64_t step) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  append_key(event, 1, kFixed64);
  append_fixed(event, now.count());
  append_key(event, 2, kVarint);
  append_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

std::string host_name() {
  char name[256] = "host";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) crc = kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

TensorboardWriter::TensorboardWriter(const std::filesystem::path& file)
    : out_(std::make_unique<base::AppendFile>(file)) {}

TensorboardWriter TensorboardWriter::create(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError(fmt::format("{}: cannot create the folder: {}", folder.string(), error.message()));
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  TensorboardWriter writer(folder / fmt::format("events.out.tfevents.{:010}.{}.{}.0",
                                                std::chrono::duration_cast<std::chrono::seconds>(now).count(),
                                                host_name(), ::getpid()));
  std::string event = event_at(0);
  append_bytes(event, 3, "brain.Event:2");
  writer.write_record(event);
  return writer;
}

TensorboardWriter TensorboardWriter::resume(const std::filesystem::path& file, std::int64_t nbytes) {
  TensorboardWriter writer(file);
  writer.out_->cut(nbytes);
  return writer;
}

void TensorboardWriter::add_scalars(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    std::string entry;
    append_bytes(entry, 1, tag);
    append_key(entry, 2, kFixed32);
    append_fixed(entry, static_cast<float>(value));
    append_bytes(summary, 1, entry);
  }
  std::string event = event_at(step);
  append_bytes(event, 5, summary);
  write_record(event);
}

void TensorboardWriter::write_record(std::string_view data) {
  std::string length;
  append_fixed(length, static_cast<std::uint64_t>(data.size()));
  std::string frame = length;
  append_fixed(frame, masked_crc32c(length));
  frame += data;
  append_fixed(frame, masked_crc32c(data));
  out_->append(frame);
}

}  // namespace zero::monitor
