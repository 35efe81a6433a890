#pragma once
// Variables by which a launcher tells the agents of its ranks where it is.

namespace zero::launcher {

inline constexpr const char* kMeeting = "ZERO_LAUNCHER_ADDRESSES";  ///< "port address address ..."
inline constexpr const char* kSecretOfAgents = "ZERO_LAUNCHER_AGENT_SECRET";
inline constexpr const char* kSecretOfLauncher = "ZERO_LAUNCHER_SECRET";

}  // namespace zero::launcher
