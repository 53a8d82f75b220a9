// Copies on devices in a check: damaged ones are reloaded at their addresses,
// or quarantined.
//
// A leased copy cannot move, and its lease holders compute with it. So correct
// bytes are copied over the wrong ones, and the reply names the lease holders.
// A reader meanwhile sees wrong bytes, as before, or correct ones.
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/core/audit.h"

namespace hoistd {
namespace {

// For the group to come from the disk to the host.
constexpr absl::Duration kRepairPatience = absl::Seconds(60);

}  // namespace

TransferId Audit::ReadBack(const CopyRef& ref, const Copy& copy,
                           Effects& effects) {
  return supply_.transfers().Start(
      ref.key, CheckOnDevice{ref.place.at.device, copy.offset},
      /*urgent=*/false, effects);
}

// A copy on a device, like the others of its group, has been read.
void Audit::DeviceRead(GroupKey key, DeviceCheck& device, absl::Time now,
                       Effects& effects) {
  const CopyRef ref = {key, device.place};
  Copy& copy = copies_.At(ref);
  if (device.status.ok()) return FoundRight(ref);
  if (!absl::IsDataLoss(device.status)) {
    const std::string why =
        absl::StrCat("cannot be read: ", std::string(device.status.message()));
    if (copy.damaged) return PutAside(ref, why, effects);  // As before.
    --copy.readers;
    space_.Changed();
    return Find(ref, why, effects);
  }
  const std::string why =
      absl::StrCat("damaged: ", std::string(device.status.message()));
  const absl::Status source = RepairSource(key);
  if (!source.ok()) {
    return PutAside(ref, absl::StrCat(why, "; ", std::string(source.message())),
                    effects);
  }
  GroupCheck& check = checks_.at(key);
  if (!check.repair) return PutAside(ref, why, effects);
  // Until it is repaired: this hoistd may die before that.
  copy.damaged = true;
  space_.KeepCopy(ref, copy, /*there=*/true);
  ++check.open;
  BringArgs bring;
  bring.copy = {key, kHost};
  bring.repair = device.place;
  if (absl::Status s = tenure_.CheckBring(bring, /*checked=*/true); !s.ok()) {
    return RepairOver(ref, s, effects);
  }
  Copy& host = copies_.At(bring.copy);
  if (host.serves()) return Repair(ref, host, now, effects);
  Waiter waiter;
  waiter.repair = device.place;
  waiter.since = now;
  waiter.deadline = now + kRepairPatience;
  supply_.AddWaiter(supply_.NeedFor(bring.copy, copy.leases > 0, effects),
                    waiter);
}

// Whether the host has, or can get, the group's correct bytes.
absl::Status Audit::RepairSource(GroupKey key) const {
  const GroupEntry& group = *copies_.FindGroup(key);
  const auto host = group.copies.find(kHost);
  const bool there = host != group.copies.end() && host->second.usable();
  if (there ? checks_.at(key).host_status.ok() : group.on_disk()) {
    return absl::OkStatus();
  }
  return absl::DataLossError("neither the host nor the disk has its bytes");
}

void Audit::Repair(const CopyRef& ref, Copy& host, absl::Time now,
                   Effects& effects) {
  DeviceCheck& device = *checks_.at(ref.key).Find(ref.place);
  const Copy& copy = copies_.At(ref);
  ++host.readers;
  copies_.Apply(host, ResidencyEvent::kUse);
  host.last_use = now;
  device.repaired = true;
  device.transfer = supply_.transfers().Start(
      ref.key,
      HostToDevice{space_.RangesOf({ref.key, kHost}, host), ref.place.at.device,
                   copy.offset},
      copy.leases > 0, effects);
}

// Of a reload that a check started; false: another's.
bool Audit::Reloaded(const Transfer& transfer, const absl::Status& status,
                     Effects& effects) {
  const auto found = checks_.find(transfer.key);
  if (found == checks_.end()) return false;
  DeviceCheck* const device = found->second.Find(transfer.id);
  if (device == nullptr) return false;
  --copies_.At({transfer.key, kHost}).readers;
  space_.Changed();
  const CopyRef ref = {transfer.key, device->place};
  if (!status.ok()) {
    RepairOver(ref, status, effects);
  } else {
    // The device's memory itself may be faulty.
    device->transfer = ReadBack(ref, copies_.At(ref), effects);
  }
  return true;
}

// The reload has succeeded, or failed, or did not help.
void Audit::RepairOver(const CopyRef& ref, const absl::Status& status,
                       Effects& effects) {
  GroupCheck& check = checks_.at(ref.key);
  const DeviceCheck& device = *check.Find(ref.place);
  const std::string why =
      absl::StrCat("damaged: ", std::string(device.status.message()));
  if (status.ok()) {
    const std::string holders = HoldersOf(ref);
    FoundRight(ref);
    Find(ref,
         absl::StrCat(why, "; it was loaded again where it lies, and is right",
                      holders.empty() ? "" : "; what was computed with it by ",
                      holders, holders.empty() ? "" : " may be wrong"),
         effects);
  } else {
    PutAside(ref,
             absl::StrCat(why, "; it could not be loaded again: ",
                          std::string(status.message())),
             effects);
  }
  if (--check.open == 0) CheckOver(ref.key, effects);
}

void Audit::FoundRight(const CopyRef& ref) {
  Copy& copy = copies_.At(ref);
  --copy.readers;
  space_.Changed();
  if (!std::exchange(copy.damaged, false)) return;
  space_.KeepCopy(ref, copy, /*there=*/true);
  supply_.needs().Wake(ref);
}

// Quarantines the copy: it is dropped now, or with its last lease.
void Audit::PutAside(const CopyRef& ref, const std::string& why,
                     Effects& effects) {
  Copy& copy = copies_.At(ref);
  --copy.readers;
  space_.Changed();
  copy.damaged = true;
  if (DropDamaged(ref, copy)) {
    supply_.needs().Wake(ref);
    return Find(ref, absl::StrCat(why, "; it is put aside"), effects);
  }
  space_.KeepCopy(ref, copy, /*there=*/true);
  supply_.FailNeed(
      ref, absl::DataLossError(absl::StrCat(
               copies_.NameOf(ref.key), " is damaged ", names_.On(ref.place.at),
               " and leased; an admin may run `hoistctl check --repair`")));
  const bool can = RepairSource(ref.key).ok() && !checks_.at(ref.key).repair;
  Find(ref,
       absl::StrCat(why,
                    "; nobody else gets it, and it goes with the leases of ",
                    HoldersOf(ref),
                    can ? " (--repair loads it again where it lies)" : ""),
       effects);
}

bool Audit::DropDamaged(const CopyRef& ref, Copy& copy) {
  const bool idle =
      copy.damaged && copy.present() && copy.leases == 0 && copy.readers == 0;
  if (!idle) return false;
  space_.SetPinned(ref, copy, false);
  space_.Drop(ref, copy, ResidencyEvent::kDrop);
  return true;
}

// The lease holders: "session 3 (worker), session 7 (other)".
std::string Audit::HoldersOf(const CopyRef& ref) const {
  std::string text;
  for (const auto& [id, session] : tenure_.sessions().all()) {
    for (const LeaseId lease : session.leases) {
      if (tenure_.sessions().FindLease(lease)->copy != ref) continue;
      absl::StrAppend(&text, text.empty() ? "" : ", ", "session ", id.number(),
                      " (", session.args.client_name, ")");
      break;
    }
  }
  return text;
}

}  // namespace hoistd
