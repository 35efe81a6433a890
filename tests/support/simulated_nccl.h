#pragma once
// NCCL for the simulated device, as far as device/nccl.h has it: between processes of one host, in the order of the
// device's streams. What is sent leaves at once, when all has run that its stream waits for, as if the device were
// quick; what is received comes late.
namespace zero::testing::simulated {

/// Whether the device has it, for engines that are made from here on. At first it has not.
void use_nccl(bool wanted);

/// From its next call on, communicators of this process report an error of the network.
void break_nccl();

}  // namespace zero::testing::simulated
