#include "comm/meeting_store.h"

#include "zero/errors.h"

namespace zero::comm {
namespace {

MeetingStoreMaker g_maker = nullptr;

}  // namespace

void set_meeting_store(MeetingStoreMaker maker) { g_maker = maker; }

std::unique_ptr<MeetingStore> open_meeting_store(const MeetingPlace& place) {
  if (!g_maker) throw CommError("the ranks cannot meet: this program has no store for it");
  return g_maker(place);
}

}  // namespace zero::comm
