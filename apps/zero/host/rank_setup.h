#pragma once
// What every process that trains here has in common.
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "zero/group.h"
#include "zero/launch.h"

namespace zero::app {

/// Throws ConfigError for more ranks than it makes sense to start on this host.
void check_ranks_of_host(int ranks);

/// How long a rank may be stopped (SIGSTOP) before it counts as failed: a little more than ranks wait for each other,
/// who say more. ZERO_STOPPED_LIMIT_S is theirs, too.
int stopped_limit_ms();

/// launch() for ranks of this command ("zero train"), which say themselves, once for all of them, what went wrong.
int launch_own_ranks(const std::string& command, LaunchOptions options);

/// The exit code of a process that such a launch has started for `command` (--as-rank): `run` gets the JSON that it has
/// put into an environment variable. A clean stop is no failure here: the launcher reads it from the result.
int run_as_rank(const std::string& command, const char* variable,
                const std::function<int(const nlohmann::json&, Group)>& run);

/// The exit code of a rank whose `run` returned a stop signal (0: none) or threw; says what was thrown. All
/// ranks find the same fault in a configuration or model; one of them says it. Of ranks from launch_own_ranks() only
/// one says anything, if it can be the one where it went wrong.
int rank_exit_code(int rank, const std::function<int()>& run);

}  // namespace zero::app
