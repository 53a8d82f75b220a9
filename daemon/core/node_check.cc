// Checking: whether what lies on the host, on the disk and on devices is still
// what was published; what is not is put aside, and made again from what is
// (what is on devices: node_mend.cc).
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/node.h"

namespace hoistd {

absl::StatusOr<std::vector<GroupKey>> Node::SelectToCheck(
    const Peer& asker, const std::string& name) const {
  ModelPtr only;
  if (!name.empty()) {
    HOIST_ASSIGN_OR_RETURN(only, Find(asker, name));
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
      groups.push_back({id, GroupIndex(g)});
    }
  }
  return groups;
}

void Node::Check(RequestId request, GroupKey key, bool repair, absl::Time now,
                 Effects& effects) {
  const auto refuse = [&](absl::Status why) {
    effects.answers.push_back({request, std::move(why)});
  };
  GroupEntry* group = copies_.FindGroup(key);
  if (group == nullptr) return refuse(absl::NotFoundError("forgotten"));
  if (!copies_.FindModel(key.model)->model->spec->published) {
    return refuse(absl::InvalidArgumentError(
        absl::StrCat(NameOf(key),
                     " is read from files, which have no checksum "
                     "of it; `hoistctl evict` has it read again")));
  }
  if (checking_.contains(key)) {
    return refuse(absl::UnavailableError(
        absl::StrCat(NameOf(key), " is being checked already")));
  }
  GroupCheck check;
  check.request = request;
  check.repair = repair;
  Copy& host = copies_.At({key, kHost});
  // It stays, and is what the disk's is made from again, if need be.
  if (host.usable()) {
    ++host.readers;
    check.host =
        Start(key, CheckOnHost{host.offset}, /*urgent=*/false, effects);
    ++check.open;
  }
  if (group->spilled.has_value()) {
    check.disk =
        Start(key, CheckOnDisk{*group->spilled}, /*urgent=*/false, effects);
    ++check.open;
  }
  // What is on its way there is not looked at.
  for (auto& [place, copy] : group->copies) {
    if (place.at.tier != Tier::kDevice || !copy.usable()) continue;
    ++copy.readers;
    check.devices.push_back({place, ReadBack({key, place}, copy, effects)});
    ++check.open;
  }
  const bool nowhere = check.open == 0;
  checking_[key] = std::move(check);
  if (nowhere) Conclude(key, now, effects);
}

// Of a transfer that a check started; false: it is another's.
bool Node::Checked(const Transfer& transfer, const absl::Status& read,
                   const Content& content, absl::Time now, Effects& effects) {
  const auto found = checking_.find(transfer.key);
  if (found == checking_.end()) return false;
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
  } else if (check.disk == transfer.id) {
    check.disk_status = status;
  } else if (device == nullptr) {
    return false;
  }
  check.result.bytes += transfer.group->image_bytes;
  if (device != nullptr && device->mended) {
    MendOver({transfer.key, device->place}, status, effects);
    return true;
  }
  if (device != nullptr) device->status = status;
  if (--check.open == 0) Conclude(transfer.key, now, effects);
  return true;
}

// All that was there has been read.
void Node::Conclude(GroupKey key, absl::Time now, Effects& effects) {
  GroupCheck& check = checking_.at(key);
  ++check.open;  // Nothing ends it in here.
  if (check.host.has_value()) {
    --copies_.At({key, kHost}).readers;
    ++space_epoch_;
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
  if (!check.host_status.ok()) HostIsBad(key, check, find, effects);
  for (DeviceCheck& device : check.devices) {
    DeviceRead(key, device, now, effects);
  }
  if (--check.open == 0) CheckOver(key, effects);
}

void Node::Find(const CopyRef& ref, std::string what, Effects& effects) {
  Note(effects, EventKind::kCopyFailed, ref, what);
  checking_.at(ref.key).result.findings.push_back(
      {NameOf(ref.key), ref.place.at, std::move(what)});
}

void Node::CheckOver(GroupKey key, Effects& effects) {
  const GroupEntry& group = *copies_.FindGroup(key);
  if (checking_.at(key).result.findings.empty() && !group.lost.ok()) {
    Find({key, kHost}, std::string(group.lost.message()), effects);
  }
  GroupCheck check = std::move(checking_.extract(key).mapped());
  Answer answer = {check.request, absl::OkStatus()};
  answer.checked = std::move(check.result);
  effects.answers.push_back(std::move(answer));
}

// The store has put it aside.
void Node::DiskIsBad(GroupKey key, const GroupCheck& check, FindingFn find,
                     Effects& effects) {
  GroupEntry& group = *copies_.FindGroup(key);
  group.damaged.push_back(*std::exchange(group.spilled, std::nullopt));
  if (group.unsaved()) {
    quota_.Add(copies_.FindModel(key.model)->model->owner,
               Quota::kPublishedBytes, SpaceOf(*group.group));
  }
  Copy& host = copies_.At({key, kHost});
  const std::string why(check.disk_status.message());
  if (!check.host.has_value() || !check.host_status.ok()) {
    MarkLostIfGone(key, check.disk_status, effects);
    return find(OnDisk(), absl::StrCat("damaged: ", why));
  }
  if (!check.repair || !CanSpill() || host.state != Residency::kPresent) {
    return find(OnDisk(), absl::StrCat("damaged: ", why,
                                       "; the host has its bytes (--repair "
                                       "writes them again)"));
  }
  StartSpill({key, kHost}, host, /*urgent=*/false, effects);
  find(OnDisk(),
       absl::StrCat("damaged: ", why, "; it is written again from the host"));
}

void Node::HostIsBad(GroupKey key, GroupCheck& check, FindingFn find,
                     Effects& effects) {
  GroupEntry& group = *copies_.FindGroup(key);
  const std::string why(check.host_status.message());
  // They may have been made of it, but for those that were read themselves.
  uint32_t kept = 0;
  for (auto& [place, copy] : group.copies) {
    if (copy.state == Residency::kAbsent || check.Find(place) != nullptr) {
      continue;
    }
    if (copy.state != Residency::kPresent || copy.readers > 0 ||
        copy.leases > 0) {
      ++kept;
      continue;
    }
    if (place == kHost && group.unsaved()) {
      quota_.Remove(copies_.FindModel(key.model)->model->owner,
                    Quota::kPublishedBytes, SpaceOf(*group.group));
    }
    SetPinned({key, place}, copy, false);
    Drop({key, place}, copy, ResidencyEvent::kDrop);
  }
  MarkLostIfGone(key, check.host_status, effects);
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
