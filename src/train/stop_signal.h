#pragma once
// Ctrl-C and SIGTERM as wishes: kept until the ranks ask for them.

namespace zero::train {

/// Installs the handlers of SIGINT, SIGTERM and SIGHUP. `announce`: the first signal prints a line that says
/// what happens next. Process-wide, call once.
void watch_stop_signals(bool announce);

}  // namespace zero::train
