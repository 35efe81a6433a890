#pragma once
// Ctrl-C and SIGTERM end a run at the next step boundary, with a checkpoint; a second one ends it at once.

namespace zero::app {

/// Installs the handlers of SIGINT, SIGTERM and SIGHUP. `announce`: the first signal prints a line that says
/// what happens next. Process-wide, call once.
void watch_stop_signals(bool announce);

/// The first of these signals that arrived at this process, 0 for none. Any thread.
int received_stop_signal();

/// Seconds since it arrived; 0 when none did.
double seconds_since_stop_signal();

/// "SIGINT" and so on.
const char* stop_signal_name(int signal);

}  // namespace zero::app
