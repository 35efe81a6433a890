#include "host/rank_setup.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "text/console.h"
#include "zero/errors.h"

namespace zero::app {

namespace {

/// Descriptor of a pipe with one byte, which the rank that reports takes out.
constexpr const char* kReportVariable = "ZERO_REPORT_FD";

/// Whether this rank is to say what it has thrown. `of_others`: perhaps only that another rank failed.
bool takes_the_report(bool of_others) {
  const char* const text = std::getenv(kReportVariable);
  if (!text) return true;
  if (of_others) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  char turn = 0;
  return ::read(std::atoi(text), &turn, 1) == 1;
}

void report(int rank, const std::string& text, bool of_others) {
  if (!takes_the_report(of_others)) return;
  print_error(fmt::format("zero: error: {}{}\n", rank == 0 ? "" : fmt::format("rank {}: ", rank), text));
}

}  // namespace

int stopped_limit_ms() {
  constexpr double kDefaultS = 3, kMoreS = 2;
  const char* const text = std::getenv("ZERO_STOPPED_LIMIT_S");
  const double wanted = text ? std::atof(text) : kDefaultS;
  return static_cast<int>(1e3 * ((wanted > 0 && wanted < 1e6 ? wanted : kDefaultS) + kMoreS));
}

void check_ranks_of_host(int ranks) {
  const int most = std::max(8, 4 * usable_cpus());
  if (ranks <= most) return;
  throw ConfigError(fmt::format("-n {}: want at most {}: this host has {} cores. Use mpirun for several hosts", ranks,
                                most, usable_cpus()));
}

int launch_own_ranks(const std::string& command, LaunchOptions options) {
  int ends[2];
  if (::pipe2(ends, O_NONBLOCK) != 0) throw IoError(fmt::format("{}: cannot make a pipe", command));
  [[maybe_unused]] const ssize_t wrote = ::write(ends[1], "1", 1);
  options.name = command;
  options.prefix_output = false;
  options.report_exit_codes = false;
  options.environment[kReportVariable] = std::to_string(ends[0]);
  options.stopped_limit_ms = stopped_limit_ms();
  options.on_failure = [&](bool by_signal) {
    char turn = 0;
    if (by_signal) (void)!::read(ends[0], &turn, 1);  // this process says it
  };
  const auto close_all = [&] { ::close(ends[0]), ::close(ends[1]); };
  try {
    const int code = launch(options);
    close_all();
    return code;
  } catch (...) {
    close_all();
    throw;
  }
}

int run_as_rank(const std::string& command, const char* variable,
                const std::function<int(const nlohmann::json&, Group)>& run) {
  const char* const text = std::getenv(variable);
  if (!text) throw ConfigError(fmt::format("--as-rank is for zero {} itself", command));
  const auto launched = launched_rank();
  const int code = rank_exit_code(launched ? launched->rank : 0,
                                  [&] { return run(nlohmann::json::parse(text), init_distributed()); });
  return code > 128 ? 0 : code;
}

int rank_exit_code(int rank, const std::function<int()>& run) {
  try {
    const int signal = run();
    return signal == 0 ? 0 : 128 + signal;
  } catch (const ConfigError& error) {
    // Where nobody shares the report every rank would say it.
    if (rank == 0 || std::getenv(kReportVariable)) report(rank, error.what(), /*of_others=*/rank != 0);
    return 2;
  } catch (const CommError& error) {
    report(rank, error.what(), /*of_others=*/true);
  } catch (const std::bad_alloc&) {
    report(rank, "out of memory; take a smaller --preset, --seq or micro-batch", /*of_others=*/false);
  } catch (const c10::Error& error) {
    report(rank, fmt::format("libtorch: {}", error.what_without_backtrace()), /*of_others=*/false);
  } catch (const std::exception& error) {
    report(rank, error.what(), /*of_others=*/false);
  }
  return 1;
}

}  // namespace zero::app
