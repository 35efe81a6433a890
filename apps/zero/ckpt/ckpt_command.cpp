#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands.h"
#include "text/console.h"
#include "text/options.h"
#include "text/text_format.h"
#include "zero/checkpoint.h"
#include "zero/errors.h"
#include "zero/memory.h"

namespace zero::app {
namespace {

using nlohmann::ordered_json;

struct CkptArguments {
  std::string path, other, to;
  std::string dtype = checkpoint::ExportOptions().dtype;
  double max_file_gb = 5;
  int keep_last = 0;
  bool dry_run = false;
  bool all_tensors = false;
  bool json = false;
  bool every = false;      ///< verify
  bool overwrite = false;  ///< export
};

/// The checkpoints of a run, where `path` is a run's folder.
std::string checkpoints_of(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path inside = fs::path(path) / "checkpoints";
  std::error_code error;
  const bool is_run = fs::is_directory(inside, error) && !fs::exists(fs::path(path) / "latest", error);
  return is_run ? inside.string() : path;
}

bool is_checkpoint(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path / "manifest.json", error);
}

ordered_json to_json(const checkpoint::Summary& item) {
  ordered_json json = {
      {"tag", item.tag}, {"folder", item.folder}, {"complete", item.complete}, {"latest", item.latest}};
  if (!item.complete) {
    json["problem"] = item.problem;
    return json;
  }
  json["created_unix_ns"] = item.created_unix_ns;
  json["global_steps"] = item.global_steps;
  json["world_size"] = item.world_size;
  json["files"] = item.files;
  json["nbytes"] = item.nbytes;
  json["parameters_numel"] = item.parameters;
  return json;
}

/// JSON that a checkpoint holds as text.
ordered_json parsed(const std::string& text) {
  auto json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? ordered_json(text) : json;
}

ordered_json to_json(const checkpoint::Description& found) {
  ordered_json json = to_json(found.summary);
  json["versions"] = parsed(found.versions);
  json["state"] = parsed(found.state);
  json["client_state"] = parsed(found.client_state);
  json["config"] = parsed(found.config);
  auto& tensors = json["tensors"] = ordered_json::array();
  for (const auto& tensor : found.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"kind", tensor.kind},
                       {"dtype", tensor.dtype},
                       {"shape", tensor.shape},
                       {"nbytes", tensor.nbytes},
                       {"pieces", tensor.pieces}});
  }
  return json;
}

ordered_json to_json(const checkpoint::DiffReport& report) {
  ordered_json json = {{"compared", report.compared}, {"identical", report.identical}, {"state", report.state}};
  auto& different = json["different"] = ordered_json::array();
  for (const auto& item : report.different) {
    different.push_back({{"name", item.name},
                         {"kind", item.kind},
                         {"note", item.note},
                         {"differing", item.differing},
                         {"largest", item.largest}});
  }
  return json;
}

/// A bar on standard error while it is a terminal; gone when the work is done.
class ProgressBar {
 public:
  ProgressBar() : terminal_(isatty(STDERR_FILENO) != 0) {}
  ~ProgressBar() {
    if (shown_ >= 0) fmt::print(stderr, "\r\x1b[K");
  }
  checkpoint::Progress callback() {
    return [this](std::uint64_t done, std::uint64_t total) { show(done, total); };
  }

 private:
  void show(std::uint64_t done, std::uint64_t total) {
    const int percent =
        total == 0 ? 100 : static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total));
    if (!terminal_ || percent == shown_) return;
    shown_ = percent;
    constexpr int kWidth = 40;
    const int filled = std::min(kWidth, percent * kWidth / 100);
    fmt::print(stderr, "\r[{}{}] {:3} %  {} of {}", std::string(static_cast<std::size_t>(filled), '#'),
               std::string(static_cast<std::size_t>(kWidth - filled), '.'), percent,
               human_nbytes(static_cast<std::int64_t>(done)), human_nbytes(static_cast<std::int64_t>(total)));
  }

  bool terminal_;
  int shown_ = -1;
};

void say(const std::string& text) { Console(true).print(text + "\n"); }

int say_json(const ordered_json& json, int exit_code = 0) {
  say(json.dump(2, ' ', false, ordered_json::error_handler_t::replace));
  return exit_code;
}

std::string when(std::int64_t unix_ns) {
  const auto seconds = static_cast<std::time_t>(unix_ns / 1'000'000'000);
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local)};
}

/// Those of a folder, or the one that `path` is.
std::vector<checkpoint::Summary> summaries_of(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::absolute(path).lexically_normal();
  const fs::path one = folder.filename().empty() ? folder.parent_path() : folder;
  if (!is_checkpoint(one)) return checkpoint::list(path);
  auto all = checkpoint::list(one.parent_path().string());
  std::erase_if(all, [&](const checkpoint::Summary& item) { return item.tag != one.filename().string(); });
  return all;
}

int list(const CkptArguments& arguments) {
  const auto summaries = summaries_of(arguments.path);
  if (arguments.json) {
    auto all = ordered_json::array();
    for (const auto& item : summaries) all.push_back(to_json(item));
    return say_json(all);
  }
  if (summaries.empty()) say(fmt::format("no checkpoints in {}", arguments.path));
  if (!summaries.empty() && !is_checkpoint(arguments.path) &&
      std::ranges::none_of(summaries, &checkpoint::Summary::latest))
    say("no latest: the file 'latest' names none of these; write the tag of one into it");
  for (const auto& item : summaries) {
    if (!item.complete) {
      say(fmt::format("  {:<24} INCOMPLETE: {}", item.tag, item.problem));
      continue;
    }
    say(fmt::format("{} {:<24} step {:<8} {:>9}  {} rank{:<2} {}", item.latest ? "*" : " ", item.tag, item.global_steps,
                    human_nbytes(item.nbytes), item.world_size, item.world_size == 1 ? "" : "s",
                    when(item.created_unix_ns)));
  }
  return 0;
}

/// Columns as wide as what is in them.
void say_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("  {:<{}}", row[i], widths[i]);
    say(line.substr(0, line.find_last_not_of(' ') + 1));
  }
}

/// A member of an object by its path, a line each; what is no object as it is.
void say_members(const std::string& title, const std::string& text) {
  const ordered_json json = parsed(text);
  std::string head = title;
  const auto line = [&](const std::string& words) {
    Console(true).print(wrapped(head, words, 12));
    head.clear();
  };
  const std::function<void(const std::string&, const ordered_json&)> walk = [&](const std::string& path,
                                                                                const ordered_json& value) {
    if (value.is_object() && !value.empty()) {
      for (const auto& [name, member] : value.items())
        walk(path.empty() ? name : fmt::format("{}.{}", path, name), member);
    } else {
      const std::string words = value.is_string() ? value.get<std::string>() : value.dump();
      line(path.empty() ? words : fmt::format("{} = {}", path, words));
    }
  };
  walk("", json);
}

int inspect(const CkptArguments& arguments) {
  const auto found = checkpoint::inspect(arguments.path);
  if (arguments.json) return say_json(to_json(found));
  const auto& summary = found.summary;
  const std::string saved =
      fmt::format("{}, step {}, by {}, {}, {}", when(summary.created_unix_ns), summary.global_steps,
                  counted(summary.world_size, "rank"), counted(summary.files, "file"), human_nbytes(summary.nbytes));
  Console(true).print(wrapped("checkpoint", fmt::format("{} ({})", summary.tag, short_path(summary.folder)), 12) +
                      wrapped("saved", saved, 12));
  say(fmt::format("parameters  {}", with_commas(summary.parameters)));
  say_members("versions", found.versions);
  say_members("state", found.state);
  say_members("client", found.client_state);
  say_members("config", found.config);
  say(fmt::format("tensors     {}", found.tensors.size()));
  std::vector<std::vector<std::string>> rows;
  for (const auto& tensor : found.tensors) {
    if (!arguments.all_tensors && tensor.kind != "weight" && tensor.kind != "buffer") continue;
    rows.push_back({tensor.kind, tensor.name, tensor.dtype, fmt::format("[{}]", fmt::join(tensor.shape, ", ")),
                    human_nbytes(tensor.nbytes), tensor.pieces == 1 ? "" : fmt::format("{} pieces", tensor.pieces)});
  }
  say_table(rows);
  if (!arguments.all_tensors) say("  (optimizer states and random streams too: --all)");
  return 0;
}

checkpoint::VerifyReport report_of(const std::string& path) {
  ProgressBar bar;
  return checkpoint::verify(path, bar.callback());
}

ordered_json to_json(const checkpoint::VerifyReport& report) {
  ordered_json json = {{"folder", report.folder}, {"nbytes", report.nbytes}, {"problems", ordered_json::array()}};
  for (const auto& one : report.problems) json["problems"].push_back({{"file", one.file}, {"text", one.text}});
  return json;
}

int say_report(const checkpoint::VerifyReport& report) {
  for (const auto& problem : report.problems) say(fmt::format("DAMAGED  {}", problem.text));
  if (report.problems.empty()) {
    say(fmt::format("{}: every byte is as it was written ({} read)", report.folder, human_nbytes(report.nbytes)));
    return 0;
  }
  say(fmt::format("{}: {} problem{}", report.folder, report.problems.size(), report.problems.size() == 1 ? "" : "s"));
  return 1;
}

int verify_one(const CkptArguments& arguments) {
  const checkpoint::VerifyReport report = report_of(arguments.path);
  return arguments.json ? say_json(to_json(report), report.problems.empty() ? 0 : 1) : say_report(report);
}

/// Every checkpoint of a folder; those that are not complete are problems, too, and so are none at all.
int verify_all(const CkptArguments& arguments) {
  const auto summaries = summaries_of(arguments.path);
  auto all = ordered_json::array();
  bool intact = !summaries.empty();
  for (const auto& item : summaries) {
    const checkpoint::VerifyReport report =
        item.complete ? report_of(item.folder)
                      : checkpoint::VerifyReport{item.folder, 0, {{item.folder, item.problem}}};
    intact = intact && report.problems.empty();
    if (arguments.json) {
      all.push_back(to_json(report));
    } else if (item.complete) {
      say_report(report);
    } else {
      say(fmt::format("INCOMPLETE  {}: {}", item.tag, item.problem));
    }
  }
  if (arguments.json) return say_json(all, intact ? 0 : 1);
  if (summaries.empty()) say(fmt::format("no checkpoints in {}", arguments.path));
  return intact ? 0 : 1;
}

int verify(const CkptArguments& arguments) { return arguments.every ? verify_all(arguments) : verify_one(arguments); }

/// The first file of weights in a folder that may be another model's.
std::string weights_in(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") return entry.path().string();
  }
  return {};
}

int export_weights(const CkptArguments& arguments) {
  const std::string there = weights_in(arguments.to);
  if (!there.empty() && !arguments.overwrite) {
    throw ConfigError(fmt::format("{} is there already: export to another folder, or over it with --overwrite", there));
  }
  checkpoint::ExportReport report;
  {
    ProgressBar bar;
    report = checkpoint::export_weights(
        arguments.path, arguments.to,
        {.dtype = arguments.dtype, .max_file_nbytes = static_cast<std::uint64_t>(arguments.max_file_gb * 1e9)},
        bar.callback());
  }
  if (!report.notice.empty()) print_error(fmt::format("zero ckpt export: warning: {}\n", report.notice));
  if (arguments.json)
    return say_json({{"tensors", report.tensors}, {"nbytes", report.nbytes}, {"files", report.files}});
  say(fmt::format("{} tensors, {}, in:", report.tensors, human_nbytes(report.nbytes)));
  for (const auto& file : report.files) say("  " + file);
  return 0;
}

int diff(const CkptArguments& arguments) {
  checkpoint::DiffReport report;
  {
    ProgressBar bar;
    report = checkpoint::diff(arguments.path, arguments.other, bar.callback());
  }
  if (arguments.json) return say_json(to_json(report), report.different.empty() ? 0 : 1);
  for (const auto& line : report.state) say("  " + line);
  std::vector<std::vector<std::string>> rows;
  for (const auto& item : report.different) {
    const std::string what = item.note.empty() ? fmt::format("{} elements differ, by at most {:.6g}",
                                                             with_commas(item.differing), item.largest)
                                               : item.note;
    rows.push_back({item.kind, item.name, what});
  }
  say_table(rows);
  say(fmt::format("{} of {} tensors are equal, bit for bit", report.identical, report.compared));
  return report.different.empty() ? 0 : 1;
}

int prune(const CkptArguments& arguments) {
  if (is_checkpoint(arguments.path)) {
    throw ConfigError(
        fmt::format("{} is one checkpoint; give the folder that it is in, of which old ones go", arguments.path));
  }
  const auto report = checkpoint::prune(arguments.path, arguments.keep_last, arguments.dry_run);
  if (arguments.json) {
    return say_json({{"removed", report.removed},
                     {"leftovers", report.leftovers},
                     {"damaged", report.damaged},
                     {"incomplete", report.incomplete},
                     {"nbytes", report.nbytes},
                     {"dry_run", arguments.dry_run}});
  }
  const char* verb = arguments.dry_run ? "would remove" : "removed";
  for (const auto& tag : report.incomplete)
    say(fmt::format("INCOMPLETE  {} stays, and is not counted; remove it by hand", tag));
  for (const auto& tag : report.damaged)
    say(fmt::format("DAMAGED  {} stays, and is not counted: a checksum is wrong", tag));
  for (const auto& tag : report.removed) say(fmt::format("{} {}", verb, tag));
  for (const auto& name : report.leftovers) say(fmt::format("{} {} (an interrupted save)", verb, name));
  if (report.removed.empty() && report.leftovers.empty()) {
    say("nothing to remove");
  } else {
    say(fmt::format("{} {}, {}", verb, counted(static_cast<std::int64_t>(report.removed.size()), "checkpoint"),
                    human_nbytes(report.nbytes)));
  }
  return 0;
}

}  // namespace

void add_ckpt_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<CkptArguments>();
  CLI::App* command = app.add_subcommand("ckpt", "look at, verify, compare, export and prune checkpoints");
  command->require_subcommand(1);
  CkptArguments& to = *arguments;
  const auto add = [&](const char* name, const char* help, const char* path_help, int (*run)(const CkptArguments&),
                       const std::vector<OptionRow>& own) {
    CLI::App* sub = command->add_subcommand(name, help);
    add_options(*sub, {{.names = "path",
                        .to = &to.path,
                        .values = not_empty("PATH", "a path"),
                        .help = path_help,
                        .is_required = true}});
    add_options(*sub, own);
    add_options(*sub, {{"--json", &to.json, Values{}, "print JSON, for scripts"}});
    sub->callback([arguments, run, &exit_code] {
      arguments->path = checkpoints_of(arguments->path);
      arguments->other = checkpoints_of(arguments->other);
      exit_code = run(*arguments);
    });
  };
  constexpr const char* kEither = "a checkpoint, a folder of checkpoints, or a run's (then its latest)";
  constexpr const char* kFolder = "folder of checkpoints, or of a run";
  add("list", "checkpoints of a folder; * marks the latest", kFolder, list, {});
  add("inspect", "tensors, sizes, configuration, step", kEither, inspect,
      {{"--all", &to.all_tensors, Values{}, "optimizer states and random streams too, which --json always has"}});
  add("verify", "read every byte and compare every checksum; exit code 1 on damage", kEither, verify,
      {{"--every", &to.every, Values{}, "every checkpoint of the folder, not its latest alone"}});
  add("export", "weights as safetensors files for Hugging Face's loaders", kEither, export_weights,
      {{.names = "folder", .to = &to.to, .values = {"FOLDER"}, .help = "folder to write to", .is_required = true},
       {"--dtype", &to.dtype, choice("fp32|bf16|fp16|module"), "fp32, bf16, fp16 or module"},
       {"--overwrite", &to.overwrite, Values{}, "over weights that are in the folder already"},
       {"--max-file-gb", &to.max_file_gb, real(1e-9, 1e9), "largest file, in 10^9 bytes"}});
  add("diff", "compare tensor by tensor; exit code 1 when any differs", "checkpoint A", diff,
      {{.names = "other", .to = &to.other, .values = {"OTHER"}, .help = "checkpoint B", .is_required = true}});
  add("prune", "remove old checkpoints and what interrupted saves left", kFolder, prune,
      {{.names = "--keep-last",
        .to = &to.keep_last,
        .values = whole(1, 1 << 20),
        .help = "how many to keep",
        .is_required = true},
       {"--dry-run", &to.dry_run, Values{}, "only say what would go"}});
}

}  // namespace zero::app
