#pragma once
// Numbers as people read them.
#include <cstdint>
#include <string>

namespace zero::app {

/// 1234567 -> "1,234,567".
std::string with_commas(std::int64_t value);
/// "1 step", "1,200 steps".
std::string counted(std::int64_t count, const std::string& what);
/// A count with a unit: "14.5 M", "7.50 B", "820".
std::string human_count(double count);
/// Seconds on a clock: "0:48", "1:02:03".
std::string clock_time(double seconds);
/// Seconds in words: "3.2 s", "1 min 43 s", "2 h 5 min".
std::string duration(double seconds);
/// Nats to bits.
double to_bits(double nats);
/// `text` with control characters and bytes that are no UTF-8 replaced by '?'; line ends and tabs stay.
std::string printable(const std::string& text);
/// `head`, and from column `indent` on `text`, in ended lines of at most 80 columns that are broken at spaces; on a new
/// line where `head` reaches that far. A line end in `text` begins a line; what is between two backticks, to be pasted,
/// stays together.
std::string wrapped(const std::string& head, const std::string& text, std::size_t indent);
/// A line of a label and what is said of it, as reports have it: hanging("model", "gpt-11m: ...").
std::string hanging(const std::string& label, const std::string& text);
/// How this program is called from here: "zero" where that finds it in PATH, else its path.
std::string program_name();
/// `path` as an argument that a shell takes as it is.
std::string for_shell(const std::string& path);
/// `path` with the home folder as "~", for messages.
std::string short_path(const std::string& path);

}  // namespace zero::app
