#pragma once
// Memory of this process as the kernel counts it. Reading costs from 10 us (resident) to some milliseconds a
// gigabyte (proportional), during which the process cannot fault pages in: not for use inside a step.
#include <cstdint>
#include <string_view>

namespace zero::base {

/// The value of a line "Name:   1234 kB" in a file of /proc, in bytes; 0 when it is not there.
std::int64_t kilobyte_field(const char* path, std::string_view name);

/// Resident bytes; shared pages count fully. About 10 us.
std::int64_t resident_nbytes();

/// Proportional bytes: pages shared by n processes count 1/n each. 0 when unknown.
std::int64_t proportional_nbytes();

/// Starts a new peak at the present value. False where the system does not allow it: the peak then is that of
/// the process since its start.
bool reset_peak();

/// The most proportional bytes since reset_peak(): the kernel's own high-water mark of resident bytes, less
/// what others share of them at the moment of the call. Nothing is sampled, so no peak is missed and the
/// process is not disturbed before. 0 when unknown.
std::int64_t peak_proportional_nbytes();

}  // namespace zero::base
