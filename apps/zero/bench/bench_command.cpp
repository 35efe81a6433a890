// `zero bench io FOLDER`: what a disk gives to offload, and the "aio" section that gets most of it.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "commands.h"
#include "text/console.h"
#include "text/options.h"
#include "text/quantity.h"
#include "zero/disk.h"
#include "zero/memory.h"

namespace zero::app {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::int64_t, 3> kBlockSizes = {256 << 10, 1 << 20, 4 << 20};
constexpr std::array<std::int64_t, 3> kQueueDepths = {4, 8, 32};
constexpr double kAsGood = 0.97;  ///< of the best: less queueing is chosen

struct BenchArguments {
  std::string folder;
  int ranks = 2;
  std::string size = "512MiB";
  double seconds = 2;
  bool json = false;
};

struct Row {
  DiskProbe probe;
  DiskSpeed speed;
  double mixed() const { return speed.mixed_read + speed.mixed_write; }
};

std::string speeds_text(const DiskSpeed& speed) {
  const auto gb = [](double rate) { return fmt::format("{:>8.2f}", rate / 1e9); };
  return gb(speed.read) + gb(speed.write) + gb(speed.mixed_read) + gb(speed.mixed_write) +
         gb(speed.mixed_read + speed.mixed_write);
}

ordered_json speeds_json(const DiskSpeed& speed) {
  return {{"read", speed.read},
          {"write", speed.write},
          {"mixed_read", speed.mixed_read},
          {"mixed_write", speed.mixed_write}};
}

ordered_json section_of(const Row& row) {
  return {{"aio", {{"block_size", row.probe.block_size}, {"queue_depth", row.probe.queue_depth}}}};
}

/// The smallest queue, then the smallest blocks, of those that are about as fast as the fastest.
const Row& choose(const std::vector<Row>& rows) {
  const Row* best = &rows.front();
  for (const Row& row : rows) best = row.mixed() > best->mixed() ? &row : best;
  const double enough = kAsGood * best->mixed();
  for (const Row& row : rows) {
    const auto in_flight = [](const Row& of) { return of.probe.block_size * of.probe.queue_depth; };
    if (row.mixed() >= enough && in_flight(row) < in_flight(*best)) best = &row;
  }
  return *best;
}

int bench_io(const BenchArguments& arguments) {
  DiskProbe probe;
  probe.ranks = arguments.ranks;
  probe.file_nbytes = parse_nbytes("--size", arguments.size);
  probe.seconds = arguments.seconds;
  const Console console(!arguments.json);
  std::vector<Row> rows;
  for (const std::int64_t block : kBlockSizes) {
    for (const std::int64_t depth : kQueueDepths) {
      probe.block_size = block, probe.queue_depth = depth;
      const DiskSpeed speed = measure_disk(arguments.folder, probe);
      if (rows.empty()) {
        console.print(fmt::format("{} rank{}, each a scratch file of {} in '{}': {}\n\n", probe.ranks,
                                  probe.ranks == 1 ? "" : "s", human_nbytes(probe.file_nbytes), arguments.folder,
                                  speed.description));
        console.print(fmt::format(
            "GB/s of all ranks          {:>8}{:>8}{:>16}\n{:>10}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}\n", "read", "write",
            "both at once", "block", "depth", "", "alone", "alone", "read", "write", "sum"));
      }
      rows.push_back({probe, speed});
      console.print(fmt::format("{:>9}K{:>8}{:>8}{}\n", block >> 10, depth, "", speeds_text(speed)));
    }
  }
  const Row& best = choose(rows);
  if (arguments.json) {
    ordered_json json = {{"folder", arguments.folder}, {"ranks", probe.ranks}, {"rows", ordered_json::array()}};
    for (const Row& row : rows) {
      ordered_json line = {{"block_size", row.probe.block_size}, {"queue_depth", row.probe.queue_depth}};
      line.update(speeds_json(row.speed));
      json["rows"].push_back(line);
    }
    json["best"] = section_of(best);
    Console(true).print(json.dump(2) + "\n");
    return 0;
  }
  console.print(fmt::format("\nfor the configuration, beside zero_optimization.offload_optimizer:\n\n{}\n",
                            section_of(best).dump(2)));
  return 0;
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("bench", "measure what this machine gives");
  command->require_subcommand(1);
  CLI::App* io =
      command->add_subcommand("io", "a disk as offload to NVMe uses it, in blocks and queues of several sizes");
  auto arguments = std::make_shared<BenchArguments>();
  add_options(*io, {{.names = "folder",
                     .to = &arguments->folder,
                     .values = {"FOLDER"},
                     .help = "on the disk; nothing stays there",
                     .is_required = true},
                    {"-n,--ranks", &arguments->ranks, whole(1, 256), "that use the disk at once"},
                    {"--size", &arguments->size, size_text(), "of each rank's file"},
                    {"--seconds", &arguments->seconds, real(0.05, 600, "S"), "of each of the 27 measurements"},
                    {"--json", &arguments->json, Values{}, "one JSON object in place of tables; bytes a second"}});
  io->callback([arguments, &exit_code] { exit_code = bench_io(*arguments); });
}

}  // namespace zero::app
