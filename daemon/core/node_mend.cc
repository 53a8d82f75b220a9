// Copies on devices that a check reads: those that are wrong are loaded again
// where they lie, or put aside.
//
// A copy that is leased cannot move, and who leases it computes with what is
// there: so the right bytes are copied over the wrong ones, and it is said who
// had them. Whoever reads meanwhile meets wrong bytes, as before, or right
// ones.
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/core/node.h"

namespace hoistd {
namespace {

// For the group to come to the host, where it is on the disk alone.
constexpr absl::Duration kMendPatience = absl::Seconds(60);

}  // namespace

TransferId Node::ReadBack(const CopyRef& ref, const Copy& copy,
                          Effects& effects) {
  return Start(ref.key, CheckOnDevice{ref.place.at.device, copy.offset},
               /*urgent=*/false, effects);
}

// A copy on a device has been read, and so have the others of its group.
void Node::DeviceRead(GroupKey key, DeviceCheck& device, absl::Time now,
                      Effects& effects) {
  const CopyRef ref = {key, device.place};
  Copy& copy = copies_.At(ref);
  if (device.status.ok()) return FoundRight(ref);
  if (!absl::IsDataLoss(device.status)) {
    const std::string why =
        absl::StrCat("cannot be read: ", std::string(device.status.message()));
    if (copy.damaged) return PutAside(ref, why, effects);  // As it was.
    --copy.readers;
    ++space_epoch_;
    return Find(ref, why, effects);
  }
  const std::string why =
      absl::StrCat("damaged: ", std::string(device.status.message()));
  const absl::Status source = MendSource(key);
  if (!source.ok()) {
    return PutAside(ref, absl::StrCat(why, "; ", std::string(source.message())),
                    effects);
  }
  GroupCheck& check = checking_.at(key);
  if (!check.repair) return PutAside(ref, why, effects);
  // Until it is right again: this hoistd may not come through.
  copy.damaged = true;
  KeepCopy(ref, copy, /*there=*/true);
  ++check.open;
  BringArgs bring;
  bring.copy = {key, kHost};
  bring.deadline = now + kMendPatience;
  bring.urgent = copy.leases > 0;
  bring.mend = device.place;
  if (absl::Status s = CheckBring(bring); !s.ok()) {
    return MendOver(ref, s, effects);
  }
  Bring(bring, now, effects);
}

// Whether the host has the group's right bytes, or can have them.
absl::Status Node::MendSource(GroupKey key) const {
  const GroupEntry& group = *copies_.FindGroup(key);
  const auto host = group.copies.find(kHost);
  const bool there = host != group.copies.end() && host->second.usable();
  if (there ? checking_.at(key).host_status.ok() : group.on_disk()) {
    return absl::OkStatus();
  }
  return absl::DataLossError("neither the host nor the disk has its bytes");
}

// The host has the bytes for the copy `ref`.
void Node::StartMend(const CopyRef& ref, Copy& host, absl::Time now,
                     Effects& effects) {
  DeviceCheck& device = *checking_.at(ref.key).Find(ref.place);
  const Copy& copy = copies_.At(ref);
  ++host.readers;
  host.fresh = false;
  host.last_use = now;
  device.mended = true;
  device.transfer = Start(ref.key,
                          HostToDevice{RangesOf({ref.key, kHost}, host),
                                       ref.place.at.device, copy.offset},
                          copy.leases > 0, effects);
}

// Of a copy to a device that a check started; false: it is another's.
bool Node::Mended(const Transfer& transfer, const absl::Status& status,
                  Effects& effects) {
  const auto found = checking_.find(transfer.key);
  if (found == checking_.end()) return false;
  DeviceCheck* const device = found->second.Find(transfer.id);
  if (device == nullptr) return false;
  --copies_.At({transfer.key, kHost}).readers;
  ++space_epoch_;
  const CopyRef ref = {transfer.key, device->place};
  if (!status.ok()) {
    MendOver(ref, status, effects);
  } else {
    // It may be the device's memory that does not keep them.
    device->transfer = ReadBack(ref, copies_.At(ref), effects);
  }
  return true;
}

// The copy was loaded again and is right; or that could not be, or it is not.
void Node::MendOver(const CopyRef& ref, const absl::Status& status,
                    Effects& effects) {
  GroupCheck& check = checking_.at(ref.key);
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

void Node::FoundRight(const CopyRef& ref) {
  Copy& copy = copies_.At(ref);
  --copy.readers;
  ++space_epoch_;
  if (!std::exchange(copy.damaged, false)) return;
  KeepCopy(ref, copy, /*there=*/true);
  needs_.Wake(ref);
}

// Nobody is given the copy any more. It goes now, or with its last lease.
void Node::PutAside(const CopyRef& ref, const std::string& why,
                    Effects& effects) {
  Copy& copy = copies_.At(ref);
  --copy.readers;
  ++space_epoch_;
  copy.damaged = true;
  if (DropDamaged(ref, copy)) {
    needs_.Wake(ref);
    return Find(ref, absl::StrCat(why, "; it is put aside"), effects);
  }
  KeepCopy(ref, copy, /*there=*/true);
  FailNeed(ref,
           absl::DataLossError(absl::StrCat(
               NameOf(ref.key), " is damaged ", names_.On(ref.place.at),
               " and leased; an admin may run `hoistctl check --repair`")),
           effects);
  const bool can = MendSource(ref.key).ok() && !checking_.at(ref.key).repair;
  Find(ref,
       absl::StrCat(why,
                    "; nobody else gets it, and it goes with the leases of ",
                    HoldersOf(ref),
                    can ? " (--repair loads it again where it lies)" : ""),
       effects);
}

// Where nobody uses it.
bool Node::DropDamaged(const CopyRef& ref, Copy& copy) {
  const bool idle = copy.damaged && copy.state == Residency::kPresent &&
                    copy.leases == 0 && copy.readers == 0;
  if (!idle) return false;
  SetPinned(ref, copy, false);
  Drop(ref, copy, ResidencyEvent::kDrop);
  return true;
}

// Who leases the copy: "session 3 (worker), session 7 (other)".
std::string Node::HoldersOf(const CopyRef& ref) const {
  std::string text;
  for (const auto& [id, session] : sessions_.all()) {
    for (const LeaseId lease : session.leases) {
      if (sessions_.FindLease(lease)->copy != ref) continue;
      absl::StrAppend(&text, text.empty() ? "" : ", ", "session ", id.number(),
                      " (", session.args.client_name, ")");
      break;
    }
  }
  return text;
}

}  // namespace hoistd
