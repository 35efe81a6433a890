#pragma once
// How this host runs a command on another one: as mpirun does.
#include <string>
#include <vector>

namespace zero::launcher {

/// The program, with its options, that takes a host and a command: OMPI_MCA_plm_rsh_agent, the first of them that is
/// there, else ssh. Local.
std::vector<std::string> remote_shell();

/// Whether `host` is a name of this one, which mpirun reaches without a remote shell. Local; may resolve the name.
bool is_this_host(const std::string& host);

/// `command` as one line for the shell of another host, each word quoted.
std::string shell_line(const std::vector<std::string>& command);

/// Whether `program` is an executable file, by its path or in PATH. Local.
bool is_in_path(const std::string& program);

}  // namespace zero::launcher
