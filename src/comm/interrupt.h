#pragma once
// What a front end wants looked at while a rank waits for others: signals, mostly.

namespace zero::comm {

class Backend;

/// Calls what set_interrupt_check() was given, if anything. What it throws leaves `backend` failed, with this rank as
/// the reason, and goes on to the caller.
void check_interrupt(Backend& backend);
/// The same before there is a group.
void check_interrupt();

}  // namespace zero::comm
