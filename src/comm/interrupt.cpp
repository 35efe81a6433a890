#include "comm/interrupt.h"

#include <atomic>

#include "comm/backend.h"
#include "zero/group.h"

namespace zero {
namespace comm {
namespace {

std::atomic<void (*)()> g_check = nullptr;

}  // namespace

void check_interrupt() {
  if (void (*const check)() = g_check.load()) check();
}

void check_interrupt(Backend& backend) {
  try {
    check_interrupt();
  } catch (...) {
    backend.abort("it was interrupted while it waited for other ranks");
    throw;
  }
}

}  // namespace comm

void set_interrupt_check(void (*check)()) { comm::g_check.store(check); }

}  // namespace zero
