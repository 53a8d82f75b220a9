#include "daemon/core/effects.h"

#include <utility>
#include <variant>

#include "daemon/base/overloaded.h"
#include "daemon/model/sheet.h"

namespace hoistd {

void Note(Effects& effects, const CopyTable& copies, EventKind kind,
          const CopyRef& ref, std::string detail) {
  const ModelEntry* model = copies.FindModel(ref.key.model);
  const GroupEntry* group = copies.FindGroup(ref.key);
  NodeEvent event;
  event.kind = kind;
  if (model != nullptr) event.model = model->model->spec->name;
  if (group != nullptr) {
    event.group = group->group->name;
    event.bytes = group->group->image_bytes;
  }
  event.at = ref.place.at;
  event.detail = std::move(detail);
  effects.events.push_back(std::move(event));
}

void NoteEviction(Effects& effects, const CopyTable& copies, Counters& counters,
                  const CopyRef& ref, Leaving::Why why) {
  const bool device = ref.place.at.tier == Tier::kDevice;
  switch (why) {
    case Leaving::Why::kForRoom:
      ++(device ? counters.device_evictions : counters.host_evictions);
      break;
    case Leaving::Why::kByAdmin:
      ++(device ? counters.device_evictions_by_admins
                : counters.host_evictions_by_admins);
      break;
    case Leaving::Why::kByWorker:  // Only from the host.
      ++counters.host_evictions_by_workers;
      break;
    case Leaving::Why::kHeadroom:  // Only from devices.
      ++counters.device_evictions_for_headroom;
      break;
  }
  Note(effects, copies, EventKind::kCopyDropped, ref,
       why == Leaving::Why::kByAdmin ? "by an admin" : "evicted");
}

void Count(const Transfer& transfer, Counters& counters) {
  const uint64_t bytes = transfer.group->image_bytes;
  std::visit(
      Overloaded{
          [&](const FilesToHost& way) {
            for (const SheetRead& read : way.reads) {
              for (const Sheet::Run& run :
                   RunsOf(transfer.model->sheets, read.from)) {
                counters.file_read_bytes += run.bytes;
              }
            }
          },
          [&](const SpillToHost&) { counters.spill_read_bytes += bytes; },
          [&](const HostToSpill&) { counters.spill_written_bytes += bytes; },
          [&](const PageableToHost&) { counters.pageable_read_bytes += bytes; },
          [&](const HostToPageable&) {
            counters.pageable_written_bytes += bytes;
          },
          [&](const HostToDevice&) { counters.host_to_device_bytes += bytes; },
          [&](const InPlaceToDevice&) {
            counters.host_to_device_bytes += bytes;
          },
          [&](const CheckOnDevice&) { counters.device_to_host_bytes += bytes; },
          [](const auto&) {},  // Bytes that stay, or a client's.
      },
      transfer.way);
}

bool Refuses(Effects& effects, RequestId request, const absl::Status& status) {
  if (status.ok()) return false;
  effects.answers.push_back({request, status});
  return true;
}

}  // namespace hoistd
