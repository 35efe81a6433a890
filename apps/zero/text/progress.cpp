#include "text/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "text/text_format.h"
#include "zero/memory.h"

namespace zero::app {
namespace {

constexpr std::chrono::milliseconds kLiveInterval{100};
constexpr std::chrono::milliseconds kPlainInterval{5000};
constexpr const char* kClearLine = "\r\x1b[K";

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

bool is_live_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) && term && std::string_view(term) != "dumb";
}

std::string bar(std::int64_t step, std::int64_t steps) {
  constexpr std::int64_t kWidth = 20;
  const auto done = static_cast<std::size_t>(kWidth * step / std::max<std::int64_t>(1, steps));
  std::string text(kWidth, '.');
  std::fill_n(text.begin(), done, '=');
  if (done > 0 && done < kWidth) text[done - 1] = '>';
  return "[" + text + "]";
}

std::string step_of(std::int64_t step, std::int64_t steps) {
  const std::string total = std::to_string(steps);
  return fmt::format("{:>{}}/{}", step, total.size(), total);
}

}  // namespace

std::string live_line(const StepLine& line, std::int64_t steps, int columns) {
  const std::vector<std::string> fields = {
      fmt::format("avg loss {:.3f}", line.loss),
      clock_time(line.seconds_left) + " left",
      with_commas(std::llround(line.tokens_per_s)) + " tokens/s",
      fmt::format("lr {:.1e}", line.lr),
      fmt::format("norm {:.2f}", line.grad_norm),
      human_nbytes(line.resident_nbytes),
  };
  std::string text = bar(line.step, steps) + " " + step_of(line.step, steps);
  for (const std::string& field : fields) {
    if (text.size() + 2 + field.size() >= static_cast<std::size_t>(columns)) break;
    text += "  " + field;
  }
  return text.substr(0, static_cast<std::size_t>(std::max(1, columns - 1)));
}

std::string plain_line(const StepLine& line, std::int64_t steps) {
  return fmt::format("step {}  avg loss {:.4f}  grad norm {:.3f}  lr {:.2e}  {:>6} tokens/s  {} left  memory {}",
                     step_of(line.step, steps), line.loss, line.grad_norm, line.lr,
                     with_commas(std::llround(line.tokens_per_s)), clock_time(line.seconds_left),
                     human_nbytes(line.resident_nbytes));
}

SlowNotice::SlowNotice(const Console& console, std::chrono::seconds patience, std::string text)
    : thread_([this, console, patience, text = std::move(text)] {
        std::unique_lock lock(mutex_);
        if (!ended_.wait_for(lock, patience, [this] { return has_ended_; })) console.print(text + "\n");
      }) {}

SlowNotice::~SlowNotice() {
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

Progress::Progress(const Console& console, std::int64_t steps, std::int64_t steps_per_print)
    : console_(console), steps_(steps), steps_per_print_(steps_per_print), live_(is_live_terminal()) {}

bool Progress::due(std::int64_t step) const {
  if (step == 1 || step == steps_) return true;
  if (!live_ && steps_per_print_ > 0) return step % steps_per_print_ == 0;
  return std::chrono::steady_clock::now() - last_time_ >= (live_ ? kLiveInterval : kPlainInterval);
}

void Progress::update(const StepLine& line) {
  if (!console_.enabled() || !due(line.step)) return;
  last_time_ = std::chrono::steady_clock::now();
  if (live_) {
    last_ = live_line(line, steps_, terminal_columns());
    console_.print(kClearLine + last_);
    shown_ = true;
  } else {
    console_.print(plain_line(line, steps_) + "\n");
  }
}

void Progress::busy(const std::string& what) {
  if (!live_ || !console_.enabled()) return;
  console_.print(kClearLine + what);
  shown_ = true;
}

void Progress::clear() {
  if (shown_) console_.print(kClearLine);
  shown_ = false;
}

void Progress::note(const std::string& text) {
  clear();
  console_.print(text + "\n");
  if (live_ && !last_.empty()) {
    console_.print(last_);
    shown_ = true;
  }
}

void Progress::finish() {
  clear();
  if (live_ && !last_.empty()) console_.print(last_ + "\n");
  last_.clear();
}

}  // namespace zero::app
