// Transfers: what was started, and what its end changes.
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/overloaded.h"
#include "daemon/core/node.h"

namespace hoistd {

// Of a group that is in the books.
TransferId Node::Start(GroupKey key, TransferWay way, bool urgent,
                       Effects& effects) {
  Transfer transfer;
  transfer.urgent = urgent;
  transfer.key = key;
  transfer.model = copies_.FindModel(key.model)->model->spec;
  transfer.group = copies_.FindGroup(key)->group;
  transfer.way = std::move(way);
  return Start(std::move(transfer), effects);
}

TransferId Node::Start(Transfer transfer, Effects& effects) {
  transfer.id = TransferId(++last_id_);
  transfers_[transfer.id] = transfer;
  effects.transfers.push_back(std::move(transfer));
  return effects.transfers.back().id;
}

void Node::TransferDone(TransferId id, const absl::Status& status,
                        const TransferResult& result, absl::Time now,
                        Effects& effects) {
  const auto found = transfers_.find(id);
  HOIST_CHECK(found != transfers_.end());
  const Transfer transfer = std::move(found->second);
  transfers_.erase(found);
  if (status.ok()) Count(transfer);
  std::visit(
      Overloaded{
          [&](const FilesToHost& way) {
            // A group without bytes has no part.
            if (way.reads.empty()) {
              return HostFilled(transfer, status, now, effects);
            }
            PartsFilled(id, status, now, effects);
          },
          [&](const SpillToHost&) {
            HostFilled(transfer, status, now, effects);
          },
          [&](const ClientToHost&) {
            ReceiveDone(incoming_.Take(id), status, result.content, now,
                        effects);
          },
          [&](const CheckOnHost&) {
            if (Checked(transfer, status, result.content, now, effects)) {
              return;
            }
            HostChecked(transfer, status, result.content, now, effects);
          },
          [&](const CheckOnDevice&) {
            HOIST_CHECK(
                Checked(transfer, status, result.content, now, effects));
          },
          [&](const CheckOnDisk&) {
            HOIST_CHECK(Checked(transfer, status, {}, now, effects));
          },
          [&](const HostToSpill&) {
            Spilled(transfer, status, result, now, effects);
          },
          [&](const HostToDevice&) {
            if (Mended(transfer, status, effects)) return;
            DeviceFilled(transfer, kHost, status, now, effects);
          },
          [&](const InPlaceToDevice& way) {
            DeviceFilled(transfer, {OnDevice(way.from), false, way.from_apart},
                         status, now, effects);
          },
          [&](const HostToClient& way) {
            ImageRead(transfer, way, status, effects);
          },
      },
      transfer.way);
  Tick(now, effects);
}

// A restored image has been read where it lies.
void Node::HostChecked(const Transfer& transfer, const absl::Status& read,
                       const Content& content, absl::Time now,
                       Effects& effects) {
  const CopyRef ref = {transfer.key, kHost};
  Copy& copy = copies_.At(ref);
  GroupEntry& group = *copies_.FindGroup(transfer.key);
  const Model& model = *copies_.FindModel(transfer.key.model)->model;
  copy.filling.reset();
  if (unchecked_.erase(transfer.key) > 0) ++space_epoch_;
  absl::Status status = read;
  if (status.ok() &&
      content != model.spec->group_contents[transfer.key.group.number()]) {
    status = absl::DataLossError("its bytes changed while no hoistd ran");
  }
  if (status.ok()) {
    HostPresent(ref, copy, now, effects);
    if (group.unsaved()) {
      quota_.Add(model.owner, Quota::kPublishedBytes, SpaceOf(*group.group));
      SaveSoon(transfer.key);
    }
    return;
  }
  HostAbsent(ref, copy, status, effects);
  needs_.Wake(transfer.key);
  if (group.on_disk()) return;  // They go there.
  MarkLostIfGone(transfer.key, status, effects);
  FailNeeds(transfer.key, group.lost, effects);
}

void Node::HostFilled(const Transfer& transfer, const absl::Status& status,
                      absl::Time now, Effects& effects) {
  const CopyRef ref = {transfer.key, kHost};
  Copy& copy = copies_.At(ref);
  copy.filling.reset();
  const SpillToHost* spill = transfer.by<SpillToHost>();
  if (status.ok()) {
    HostPresent(ref, copy, now, effects);
    if (spill != nullptr) KeepImage(ref, copy);
    return;
  }
  HostAbsent(ref, copy, status, effects);
  if (spill != nullptr && absl::IsDataLoss(status)) {
    // The store has put the bytes aside; they are not tried again, and go when
    // the model is forgotten.
    GroupEntry& group = *copies_.FindGroup(transfer.key);
    group.spilled.reset();
    group.damaged.push_back(spill->from);
    MarkLostIfGone(transfer.key, status, effects);
    if (!group.lost.ok()) return FailNeeds(transfer.key, group.lost, effects);
  }
  FailNeeds(transfer.key, status, effects);
}

void Node::DeviceFilled(const Transfer& transfer, const Place& from,
                        const absl::Status& status, absl::Time now,
                        Effects& effects) {
  --copies_.At({transfer.key, from}).readers;
  ++space_epoch_;
  for (auto& [place, copy] : copies_.FindGroup(transfer.key)->copies) {
    if (copy.filling != transfer.id) continue;
    const CopyRef ref = {transfer.key, place};
    copy.filling.reset();
    if (status.ok()) {
      copies_.Apply(copy, ResidencyEvent::kFillDone);
      Weigh(ref, copy);
      copy.last_use = now;
      KeepCopy(ref, copy, /*there=*/true);
      needs_.Wake(ref);
      Note(effects, EventKind::kCopyPresent, ref);
      return;
    }
    FreeSpace(ref, copy);
    copies_.Apply(copy, ResidencyEvent::kFillFailed);
    Note(effects, EventKind::kCopyFailed, ref, std::string(status.message()));
    return FailNeed(ref, status, effects);
  }
  HOIST_CHECK(false);  // A filling copy is neither dropped nor forgotten.
}

void Node::ImageRead(const Transfer& transfer, const HostToClient& way,
                     const absl::Status& status, Effects& effects) {
  Copy& host = copies_.At({transfer.key, kHost});
  HOIST_CHECK(host.readers > 0);
  --host.readers;
  ++space_epoch_;
  effects.answers.push_back({way.request, status});
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
                   "; publish it again, or forget the model (`hoistctl evict "
                   "--forget`)"));
  Note(effects, EventKind::kCopyLost, {key, {OnDisk(), false}},
       std::string(why.message()));
}

void Node::Count(const Transfer& transfer) {
  const uint64_t bytes = transfer.group->image_bytes;
  if (const auto* files = transfer.by<FilesToHost>()) {
    for (const SheetRead& read : files->reads) {
      for (const Sheet::Run& run : RunsOf(*transfer.model->sheets[read.file],
                                          read.offset, read.bytes)) {
        counters_.file_read_bytes += run.bytes;
      }
    }
  } else if (transfer.by<SpillToHost>() != nullptr) {
    counters_.spill_read_bytes += bytes;
  } else if (transfer.by<HostToSpill>() != nullptr) {
    counters_.spill_written_bytes += bytes;
  } else if (transfer.by<HostToDevice>() != nullptr ||
             transfer.by<InPlaceToDevice>() != nullptr) {
    counters_.host_to_device_bytes += bytes;
  }
}

void Node::Keep(Kept kept) {
  if (options_.keeps) kept_.push_back(std::move(kept));
}

void Node::KeepImage(const CopyRef& ref, const Copy& copy) {
  Keep(KeptOnHost{
      copy.offset,
      KeptImage{copies_.FindModel(ref.key.model)->model, ref.key.group}});
}

void Node::SetPinned(const CopyRef& ref, Copy& copy, bool pinned) {
  if (copy.pinned == pinned) return;
  copy.pinned = pinned;
  Weigh(ref, copy);
  Keep(KeptPin{ref, pinned});
}

// Legacy IPC memory goes with its process.
void Node::KeepCopy(const CopyRef& ref, const Copy& copy, bool there) {
  if (ZoneOf(ref).backing == Backing::kIpc) return;
  KeptCopy kept;
  kept.device = ref.place.at.device;
  kept.offset = copy.offset;
  if (there) {
    kept.key = ref.key;
    kept.group = copies_.FindGroup(ref.key)->group->name;
    kept.damaged = copy.damaged;
  }
  Keep(std::move(kept));
}

}  // namespace hoistd
