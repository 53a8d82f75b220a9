// Records transfers that use no link.
#include <optional>
#include <variant>

#include "daemon/base/overloaded.h"
#include "daemon/model/sheet.h"
#include "daemon/mover/mover.h"

namespace hoistd {
namespace {

// nullopt: the transfer's link records it.
std::optional<TraceKind> KindOf(const TransferWay& way) {
  using Kind = std::optional<TraceKind>;
  return std::visit(
      Overloaded{
          [](const FilesToHost&) -> Kind { return TraceKind::kFileRead; },
          [](const SpillToHost&) -> Kind { return TraceKind::kSpillRead; },
          [](const ClientToHost&) -> Kind { return TraceKind::kReceive; },
          [](const CheckOnHost&) -> Kind { return TraceKind::kCheck; },
          [](const CheckOnDevice&) -> Kind { return std::nullopt; },
          [](const CheckOnPageable&) -> Kind { return TraceKind::kCheck; },
          [](const CheckOnDisk&) -> Kind { return TraceKind::kCheck; },
          [](const HostToSpill&) -> Kind { return TraceKind::kSpillWrite; },
          [](const HostToDevice&) -> Kind { return std::nullopt; },
          [](const InPlaceToDevice&) -> Kind { return std::nullopt; },
          [](const HostToClient&) -> Kind { return TraceKind::kDeliver; },
          [](const HostToPageable&) -> Kind { return TraceKind::kPageOut; },
          [](const PageableToHost&) -> Kind { return TraceKind::kPageIn; },
      },
      way);
}

// Bytes read from files, without bytes already on the host, as core counts
// them.
uint64_t BytesOf(const Transfer& transfer) {
  const auto* files = transfer.by<FilesToHost>();
  if (files == nullptr) return transfer.group->image_bytes;
  uint64_t bytes = 0;
  for (const SheetRead& read : files->reads) {
    for (const Sheet::Run& run : RunsOf(transfer.model->sheets, read.from)) {
      bytes += run.bytes;
    }
  }
  return bytes;
}

}  // namespace

void Mover::TraceBegin(const Transfer& transfer) {
  const std::optional<TraceKind> kind = KindOf(transfer.way);
  if (!kind.has_value()) return;
  TraceEvent& event = traced_[transfer.id];
  event.kind = *kind;
  event.background = !transfer.urgent;
  event.begin = parts_.trace->Now();
  event.bytes = BytesOf(transfer);
  event.model = transfer.key.model;
  event.group = transfer.key.group;
  event.request = RequestId(transfer.id.number());
  TraceEvent open = event;
  open.open = true;
  parts_.trace->Add(open);
}

void Mover::TraceEnd(TransferId id, bool failed, absl::Time ended) {
  const auto found = traced_.find(id);
  if (found == traced_.end()) return;
  TraceEvent& event = found->second;
  event.end = ended;
  event.failed = failed;
  parts_.trace->Add(event);
  traced_.erase(found);
}

}  // namespace hoistd
