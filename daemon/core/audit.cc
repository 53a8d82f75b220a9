#include "daemon/core/audit.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/model/published_group.h"

namespace hoistd {

Audit::Audit(const DeviceNames& names, CopyTable& copies, QuotaBook& quota,
             Space& space, Supply& supply, const Tenure& tenure)
    : names_(names),
      copies_(copies),
      quota_(quota),
      space_(space),
      supply_(supply),
      tenure_(tenure) {}

absl::StatusOr<std::vector<GroupKey>> Audit::Select(
    const Peer& asker, const std::string& name) const {
  ModelPtr only;
  if (!name.empty()) {
    HOIST_ASSIGN_OR_RETURN(only, tenure_.Find(asker, name));
    if (!only->spec->published) {
      return absl::InvalidArgumentError(
          absl::StrCat(name,
                       " is read from files, which have no checksums; "
                       "`hoistctl evict` has it read again"));
    }
  }
  std::vector<GroupKey> groups;
  for (const auto& [id, entry] : copies_.models()) {
    if (!entry->model->spec->published) continue;
    if (only != nullptr && id != only->id) continue;
    for (uint32_t g = 0; g < entry->groups.size(); ++g) {
      if (IsMissing(*entry->groups[g].group)) continue;
      groups.push_back({id, GroupIndex(g)});
    }
  }
  return groups;
}

void Audit::Check(RequestId request, GroupKey key, bool repair,
                  Effects& effects) {
  const auto refuse = [&](absl::Status why) {
    effects.answers.push_back({request, std::move(why)});
  };
  GroupEntry* group = copies_.FindGroup(key);
  if (group == nullptr) return refuse(absl::NotFoundError("forgotten"));
  if (!copies_.FindModel(key.model)->model->spec->published) {
    return refuse(absl::InvalidArgumentError(
        absl::StrCat(copies_.NameOf(key),
                     " is read from files, which have no checksum "
                     "of it; `hoistctl evict` has it read again")));
  }
  if (checks_.contains(key)) {
    return refuse(absl::UnavailableError(
        absl::StrCat(copies_.NameOf(key), " is being checked already")));
  }
  GroupCheck check;
  check.request = request;
  check.repair = repair;
  Copy& host = copies_.At({key, kHost});
  // The host copy stays; the disk's is rewritten from it if need be.
  if (host.usable()) {
    ++host.readers;
    check.host = supply_.transfers().Start(key, CheckOnHost{host.offset},
                                           /*urgent=*/false, effects);
    ++check.open;
  }
  if (const auto offset = copies_.pageable().Read(key)) {
    check.pageable = supply_.transfers().Start(key, CheckOnPageable{*offset},
                                               /*urgent=*/false, effects);
    ++check.open;
  }
  if (group->spilled.has_value()) {
    check.disk = supply_.transfers().Start(key, CheckOnDisk{*group->spilled},
                                           /*urgent=*/false, effects);
    ++check.open;
  }
  // Skips copies that are still being filled.
  for (auto& [place, copy] : group->copies) {
    if (place.at.tier != Tier::kDevice || !copy.usable()) continue;
    ++copy.readers;
    check.devices.push_back({place, ReadBack({key, place}, copy, effects)});
    ++check.open;
  }
  const bool nowhere = check.open == 0;
  checks_[key] = std::move(check);
  if (nowhere) CheckOver(key, effects);
}

bool Audit::Done(const Transfer& transfer, const absl::Status& status,
                 const Content& content, absl::Time now, Effects& effects) {
  if (transfer.by<HostToDevice>() != nullptr) {
    return Reloaded(transfer, status, effects);
  }
  return ReadDone(transfer, status, content, now, effects);
}

// Of a transfer that a check started; false: another's.
bool Audit::ReadDone(const Transfer& transfer, const absl::Status& read,
                     const Content& content, absl::Time now, Effects& effects) {
  const auto found = checks_.find(transfer.key);
  if (found == checks_.end()) return false;
  GroupCheck& check = found->second;
  absl::Status status = read;
  const ModelSpec& spec = *copies_.FindModel(transfer.key.model)->model->spec;
  if (status.ok() && transfer.by<CheckOnDisk>() == nullptr &&
      content != spec.group_contents[transfer.key.group.number()]) {
    status = absl::DataLossError("its bytes changed");
  }
  DeviceCheck* const device = check.Find(transfer.id);
  if (check.host == transfer.id) {
    check.host_status = status;
  } else if (check.pageable == transfer.id) {
    check.pageable_status = PageableRead(transfer.key, status, effects);
  } else if (check.disk == transfer.id) {
    check.disk_status = status;
  } else if (device == nullptr) {
    return false;
  }
  check.result.bytes += transfer.group->image_bytes;
  if (device != nullptr && device->repaired) {
    RepairOver({transfer.key, device->place}, status, effects);
    return true;
  }
  if (device != nullptr) device->status = status;
  if (--check.open == 0) Conclude(transfer.key, now, effects);
  return true;
}

// A damaged one goes at once: a stage may need it.
absl::Status Audit::PageableRead(GroupKey key, const absl::Status& status,
                                 Effects& effects) {
  PageableBook& pageable = copies_.pageable();
  pageable.EndRead(key);
  if (status.ok()) return status;
  if (!pageable.Has(key)) {
    return absl::DataLossError(absl::StrCat(
        std::string(status.message()), "; it has left meanwhile: check again"));
  }
  pageable.Forget(key);
  supply_.MarkLostIfGone(key, status, effects);
  return status;
}

// All copies have been read.
void Audit::Conclude(GroupKey key, absl::Time now, Effects& effects) {
  GroupCheck& check = checks_.at(key);
  ++check.open;  // Keeps the check open in here.
  if (check.host.has_value()) {
    --copies_.At({key, kHost}).readers;
    space_.Changed();
  }
  const auto find = [&](TierAt at, std::string what) {
    Find({key, {at, false}}, std::move(what), effects);
  };
  if (absl::IsDataLoss(check.disk_status)) {
    DiskIsBad(key, check, find, effects);
  } else if (!check.disk_status.ok()) {
    find(OnDisk(), absl::StrCat("cannot be read: ",
                                std::string(check.disk_status.message())));
  }
  if (!check.pageable_status.ok()) {
    find(OnPageable(),
         absl::StrCat("damaged: ", std::string(check.pageable_status.message()),
                      copies_.FindGroup(key)->lost.ok()
                          ? ""
                          : "; it is lost: publish it again"));
  }
  if (!check.host_status.ok()) HostDamaged(key, check, find, effects);
  for (DeviceCheck& device : check.devices) {
    DeviceRead(key, device, now, effects);
  }
  if (--check.open == 0) CheckOver(key, effects);
}

void Audit::Find(const CopyRef& ref, std::string what, Effects& effects) {
  Note(effects, copies_, EventKind::kCopyFailed, ref, what);
  checks_.at(ref.key).result.findings.push_back(
      {copies_.NameOf(ref.key), ref.place.at, std::move(what)});
}

void Audit::CheckOver(GroupKey key, Effects& effects) {
  const GroupEntry& group = *copies_.FindGroup(key);
  if (checks_.at(key).result.findings.empty() && !group.lost.ok()) {
    Find({key, kHost}, std::string(group.lost.message()), effects);
  }
  GroupCheck check = std::move(checks_.extract(key).mapped());
  Answer answer = {check.request, absl::OkStatus()};
  answer.checked = std::move(check.result);
  effects.answers.push_back(std::move(answer));
}

// The store has quarantined it.
void Audit::DiskIsBad(GroupKey key, const GroupCheck& check, FindingFn find,
                      Effects& effects) {
  GroupEntry& group = *copies_.FindGroup(key);
  const std::string why(check.disk_status.message());
  // A stage that read it meanwhile has found it out.
  if (!group.spilled.has_value()) {
    return find(OnDisk(), absl::StrCat("damaged: ", why));
  }
  group.damaged.push_back(*group.spilled);
  copies_.SetSpilled(group, std::nullopt);
  if (group.unsaved()) {
    quota_.Add(copies_.FindModel(key.model)->model->owner,
               Quota::kPublishedBytes, SpaceOf(*group.group));
  }
  Copy& host = copies_.At({key, kHost});
  if (!check.host.has_value() || !check.host_status.ok()) {
    supply_.MarkLostIfGone(key, check.disk_status, effects);
    return find(OnDisk(), absl::StrCat("damaged: ", why,
                                       copies_.pageable().Has(key)
                                           ? "; pageable memory has its bytes"
                                           : ""));
  }
  if (!check.repair || !space_.CanSpill() || !host.present()) {
    return find(OnDisk(), absl::StrCat("damaged: ", why,
                                       "; the host has its bytes (--repair "
                                       "writes them again)"));
  }
  supply_.saver().Start({key, kHost}, host, /*urgent=*/false, effects);
  find(OnDisk(),
       absl::StrCat("damaged: ", why, "; it is written again from the host"));
}

void Audit::HostDamaged(GroupKey key, GroupCheck& check, FindingFn find,
                        Effects& effects) {
  GroupEntry& group = *copies_.FindGroup(key);
  const std::string why(check.host_status.message());
  // Device copies may come from it, except those just verified.
  uint32_t kept = 0;
  for (auto& [place, copy] : group.copies) {
    if (copy.state == Residency::kAbsent || check.Find(place) != nullptr) {
      continue;
    }
    if (!copy.present() || copy.readers > 0 || copy.leases > 0) {
      ++kept;
      continue;
    }
    if (place == kHost && group.unsaved()) {
      quota_.Remove(copies_.FindModel(key.model)->model->owner,
                    Quota::kPublishedBytes, SpaceOf(*group.group));
    }
    space_.SetPinned({key, place}, copy, false);
    space_.Drop({key, place}, copy, ResidencyEvent::kDrop);
  }
  supply_.MarkLostIfGone(key, check.host_status, effects);
  find(
      OnHost(),
      absl::StrCat("damaged: ", why,
                   group.on_disk()    ? "; it is read from the disk again"
                   : !group.lost.ok() ? "; it is lost: publish it again"
                                      : "",
                   kept > 0 ? "; copies of it are in use: end the sessions and "
                              "plans that have them, and check again"
                            : ""));
}

}  // namespace hoistd
