#include "train/stop_signal.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

#include "zero/train.h"

namespace zero {
namespace {

volatile sig_atomic_t g_signal = 0;
volatile sig_atomic_t g_announce = 0;
timespec g_time{};  // set before g_signal

double seconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Nobody reads what the program prints: it ends as if the terminal had gone. The write that found out goes on.
void on_broken_pipe(int) {
  if (g_signal != 0) return;
  ::clock_gettime(CLOCK_MONOTONIC, &g_time);
  g_signal = SIGPIPE;
}

/// timeout(1) and other wrappers signal a process and then its group: within this time it is one wish, not two.
constexpr double kOneWishS = 0.5;

void on_signal(int signal) {
  if (g_signal != 0) {
    if (seconds_since_stop_signal() < kOneWishS) return;
    ::signal(signal, SIG_DFL);
    ::raise(signal);
    return;
  }
  ::clock_gettime(CLOCK_MONOTONIC, &g_time);
  g_signal = signal;
  if (g_announce == 0) return;
  constexpr char kText[] = "\nstopping after this step, with a checkpoint; once more ends at once\n";
  [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
}

}  // namespace

void train::watch_stop_signals(bool announce) {
  g_announce = announce ? 1 : 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
  ::signal(SIGXFSZ, SIG_IGN);  // a limit of the shell is an error of the write, as a full disk is
  struct sigaction before {};
  action.sa_handler = on_broken_pipe;
  if (::sigaction(SIGPIPE, nullptr, &before) == 0 && before.sa_handler == SIG_DFL)
    ::sigaction(SIGPIPE, &action, nullptr);
}

int received_stop_signal() { return g_signal; }

double seconds_since_stop_signal() {
  if (g_signal == 0) return 0;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return seconds(now) - seconds(g_time);
}

const char* stop_signal_name(int signal) {
  switch (signal) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    case SIGPIPE:
      return "SIGPIPE";
    default:
      return "a signal";
  }
}

}  // namespace zero
