// Transfers: what was started, and what its end changes.
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/core/node.h"

namespace hoistd {

// The caller fills in the rest, then books it in transfers_.
Transfer& Node::NewTransfer(TransferKind kind, const CopyRef& ref, bool urgent,
                            Effects& effects) {
  Transfer transfer;
  transfer.id = TransferId(++last_id_);
  transfer.kind = kind;
  transfer.urgent = urgent;
  transfer.key = ref.key;
  if (const ModelEntry* model = copies_.FindModel(ref.key.model)) {
    transfer.model = model->model->spec;
    transfer.group = copies_.FindGroup(ref.key)->group;
  }
  effects.transfers.push_back(std::move(transfer));
  return effects.transfers.back();
}

void Node::TransferDone(TransferId id, const absl::Status& status,
                        const TransferResult& result, absl::Time now,
                        Effects& effects) {
  const auto found = transfers_.find(id);
  HOIST_CHECK(found != transfers_.end());
  const Transfer transfer = std::move(found->second);
  transfers_.erase(found);
  if (status.ok()) Count(transfer);
  switch (transfer.kind) {
    case TransferKind::kReadFile:
      if (!transfer.reads.empty()) {
        PartsFilled(transfer, status, now, effects);
        break;
      }
      [[fallthrough]];
    case TransferKind::kReadSpill:
      HostFilled(transfer, status, now, effects);
      break;
    case TransferKind::kToDevice:
      DeviceFilled(transfer, status, now, effects);
      break;
    case TransferKind::kToClient:
      ImageRead(transfer, status, effects);
      break;
    case TransferKind::kSpill:
      Spilled(transfer, status, result, now, effects);
      break;
    case TransferKind::kReceive:
      ReceiveDone(incoming_.Take(id), status, result.content, now, effects);
      break;
  }
  Tick(now, effects);
}

void Node::HostFilled(const Transfer& transfer, const absl::Status& status,
                      absl::Time now, Effects& effects) {
  const CopyRef ref = {transfer.key, kHost};
  Copy& copy = copies_.At(ref);
  copy.filling.reset();
  if (status.ok()) return HostPresent(ref, copy, now, effects);
  HostAbsent(ref, copy, status, effects);
  if (transfer.kind == TransferKind::kReadSpill && absl::IsDataLoss(status)) {
    // The store has put the bytes aside; they are not tried again, and go when
    // the model is forgotten.
    GroupEntry& group = *copies_.FindGroup(transfer.key);
    group.spilled.reset();
    group.damaged.push_back(transfer.spill);
    MarkLostIfGone(transfer.key, status, effects);
  }
  FailNeeds(transfer.key, status, effects);
}

void Node::DeviceFilled(const Transfer& transfer, const absl::Status& status,
                        absl::Time now, Effects& effects) {
  Copy& host = copies_.At({transfer.key, kHost});
  --host.readers;
  ++space_epoch_;
  for (auto& [place, copy] : copies_.FindGroup(transfer.key)->copies) {
    if (copy.filling != transfer.id) continue;
    const CopyRef ref = {transfer.key, place};
    copy.filling.reset();
    if (status.ok()) {
      copies_.Apply(copy, ResidencyEvent::kFillDone);
      Weigh(ref, copy);
      copy.last_use = now;
      needs_.Wake(ref);
      Note(effects, EventKind::kCopyPresent, ref);
      return;
    }
    FreeSpace(ref, copy);
    copies_.Apply(copy, ResidencyEvent::kFillFailed);
    Note(effects, EventKind::kCopyFailed, ref, std::string(status.message()));
    if (needs_.Find(ref) == nullptr) return;
    const Need need = *needs_.Find(ref);
    needs_.Erase(needs_.AgeOf(ref));
    for (const Waiter& waiter : need.waiters) {
      Refuse(waiter, ref, status, effects);
    }
    return;
  }
  HOIST_CHECK(false);  // A filling copy is neither dropped nor forgotten.
}

void Node::ImageRead(const Transfer& transfer, const absl::Status& status,
                     Effects& effects) {
  Copy& host = copies_.At({transfer.key, kHost});
  HOIST_CHECK(host.readers > 0);
  --host.readers;
  ++space_epoch_;
  effects.answers.push_back({transfer.request, status});
}

void Node::MarkLostIfGone(GroupKey key, const absl::Status& why,
                          Effects& effects) {
  GroupEntry& group = *copies_.FindGroup(key);
  if (group.on_disk()) return;
  for (const auto& [place, copy] : group.copies) {
    if (place == kHost && copy.usable()) return;
  }
  group.lost = absl::DataLossError(
      absl::StrCat(NameOf(key), " is lost: ", std::string(why.message()),
                   "; forget the model (`hoistctl evict --forget`) and publish "
                   "it again"));
  Note(effects, EventKind::kCopyLost, {key, {OnDisk(), false}},
       std::string(why.message()));
}

void Node::Count(const Transfer& transfer) {
  const uint64_t bytes =
      transfer.group == nullptr ? 0 : transfer.group->image_bytes;
  switch (transfer.kind) {
    case TransferKind::kReadFile:
      for (const SheetRead& read : transfer.reads) {
        for (const Sheet::Run& run : RunsOf(*transfer.model->sheets[read.file],
                                            read.offset, read.bytes)) {
          counters_.file_read_bytes += run.bytes;
        }
      }
      break;
    case TransferKind::kReadSpill:
      counters_.spill_read_bytes += bytes;
      break;
    case TransferKind::kSpill:
      counters_.spill_written_bytes += bytes;
      break;
    case TransferKind::kToDevice:
      counters_.host_to_device_bytes += bytes;
      break;
    case TransferKind::kReceive:
    case TransferKind::kToClient:
      break;
  }
}

}  // namespace hoistd
