// What the last hoistd had on devices goes on here: slabs and what lies in
// them, sessions, leases and plans. All of it, or none.
#include <sys/stat.h>

#include <cstddef>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/hash.h"
#include "daemon/base/status.h"
#include "daemon/core/node_restore.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/kept_keys.h"
#include "daemon/engine/kept_node.h"
#include "daemon/errand/parked_file.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/wire.h"

namespace hoistd {
namespace {

// Ids of one hoistd after another lie this far apart, so that none is ever
// given twice among clients that go on.
constexpr int kGenerationShift = 40;

// Of the hoistd of this generation all ids are above.
uint64_t IdsBefore(uint64_t generation) {
  return generation << kGenerationShift;
}

std::string SpeaksAnother(uint32_t protocol) {
  return absl::StrCat("speaks session protocol ", protocol,
                      ", and this hoistd ", hoist::WhatIsServed());
}

absl::Status CheckProtocols(const std::vector<KeptSession>& sessions) {
  for (const KeptSession& session : sessions) {
    const uint32_t protocol = session.args->protocol;
    if (hoist::ServiceFor(protocol) == hoist::Service::kGoesOn) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "session ", session.id.number(), " ", SpeaksAnother(protocol)));
  }
  return absl::OkStatus();
}

// What the client of a session that `why` ends is told. By the code it knows
// whether to connect again is of any use.
absl::Status Farewell(uint32_t protocol, const absl::Status& why) {
  if (hoist::ServiceFor(protocol) == hoist::Service::kNone) {
    return absl::FailedPreconditionError(absl::StrCat(
        "hoistd was replaced by one that does not serve this session: it ",
        SpeaksAnother(protocol),
        "; start the worker again with the libhoist of that release"));
  }
  return absl::UnavailableError(absl::StrCat(
      "hoistd was replaced by one that does not go on with this session (",
      std::string(why.message()),
      "); its leases and plans are void: connect again, and stage again"));
}

}  // namespace

// Another GPU would be one where nothing of it lies.
absl::Status Engine::CheckDevices(const KeptInstance& instance) const {
  std::vector<DeviceInfo> devices = DevicesOf(parts_);
  // One that reads in place takes nothing from the others by being new.
  if (devices.size() == instance.devices.size() + 1 &&
      devices.back().kind == DeviceKind::kInPlace) {
    devices.pop_back();
  }
  bool same = instance.devices.size() == devices.size();
  for (size_t i = 0; same && i < devices.size(); ++i) {
    same = instance.devices[i] == devices[i].uuid;
  }
  if (same) return absl::OkStatus();
  return absl::FailedPreconditionError("the devices are not those of before");
}

// Nothing is read: what the files are by now is seen when they are.
absl::StatusOr<OpenedModel> Engine::OpenKept(const ModelRecord& record) {
  const auto take = [&](uint64_t number) {
    auto file =
        parts_.found.descriptors.extract(KeyOf(KeptKind::kModelFile, number));
    return file.empty() ? hoist::UniqueFd() : std::move(file.mapped());
  };
  const hoist::UniqueFd memfd = take(record.spec);
  struct stat is = {};
  if (fstat(memfd.get(), &is) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model ", record.name, " was not kept whole"));
  }
  HOIST_ASSIGN_OR_RETURN(
      const hoist::Mapping mapping,
      ToAbsl(hoist::Mapping::OfFd(memfd.get(), static_cast<size_t>(is.st_size),
                                  hoist::Mapping::Access::kRead)));
  const std::span<const std::byte> bytes = mapping.span();
  if (Xxh3(bytes) != record.spec_hash) {
    return absl::DataLossError(
        absl::StrCat("what was kept of model ", record.name, " is damaged"));
  }
  OpenedModel model;
  HOIST_ASSIGN_OR_RETURN(
      model.spec, SpecFromRecord({reinterpret_cast<const char*>(bytes.data()),
                                  bytes.size()}));
  if (model.spec->files.size() != record.files.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model ", record.name, " was kept with other files"));
  }
  auto files = std::make_shared<SourceFiles>();
  for (size_t i = 0; i < record.files.size(); ++i) {
    const std::string& name = model.spec->files[i];
    const FileIdentity& identity = model.spec->identities[i];
    hoist::UniqueFd fd = take(record.files[i]);
    if (IsParked(fd.get())) {
      files->push_back(open_files_.Share(
          record.owner,
          SourceFile::Parked(std::move(fd), name, identity, record.owner)));
      continue;
    }
    HOIST_ASSIGN_OR_RETURN(
        SourceFile file,
        SourceFile::OpenAgain(std::move(fd), name, identity, parts_.files));
    files->push_back(open_files_.Share(record.owner, std::move(file)));
  }
  model.files = std::move(files);
  return model;
}

absl::Status Engine::AdoptSlabs() {
  for (KeptSlab& kept : parts_.found.slabs) {
    if (kept.device.number() >= slab_makers_.size()) {
      return absl::InvalidArgumentError("a slab is of no device");
    }
    auto fd = parts_.found.descriptors.extract(SlabKey(kept.device, kept.slab));
    HOIST_CHECK(!fd.empty());
    HOIST_ASSIGN_OR_RETURN(const SlabShare share,
                           slab_makers_[kept.device.number()]->Adopt(
                               kept.slab, std::move(fd.mapped())));
    adopted_shares_.push_back(share);
  }
  return absl::OkStatus();
}

absl::Status Engine::PutBack(const std::map<ModelId, OpenedModel>& opened,
                             Node& node) const {
  const FoundNode& found = parts_.found;
  const absl::Time now = Now();
  NodeRestore restore(node);
  for (const auto& [id, record] : found.models) {
    const auto files = opened.find(id);
    HOIST_RETURN_IF_ERROR(
        files == opened.end()
            ? restore.CheckModel(id, record.owner, record.name)
            : restore.AddModel(id, files->second.spec, record.owner,
                               record.readers));
  }
  for (size_t i = 0; i < found.slabs.size(); ++i) {
    HOIST_RETURN_IF_ERROR(restore.AddSlab(found.slabs[i], adopted_shares_[i]));
  }
  for (const KeptCopy& copy : found.copies) {
    HOIST_RETURN_IF_ERROR(restore.AddCopy(copy, now));
  }
  for (const KeptSession& session : found.sessions) {
    HOIST_RETURN_IF_ERROR(restore.AddSession(session.id, *session.args, now));
  }
  for (const KeptLease& lease : found.leases) {
    HOIST_RETURN_IF_ERROR(
        restore.AddLease(lease.id, lease.session, *lease.copy));
  }
  for (const PlanRecord& plan : found.plans) {
    HOIST_RETURN_IF_ERROR(restore.AddPlan(plan.session, plan.grant));
  }
  for (const KeptArena& arena : found.arenas) {
    HOIST_RETURN_IF_ERROR(restore.AddArena(arena));
  }
  restore.NoMoreArenas();
  return absl::OkStatus();
}

absl::Status Engine::Adopt(const std::vector<RestoredGroup>& published,
                           std::map<ModelId, OpenedModel>& opened) {
  if (!parts_.found.instance.has_value()) {
    return absl::NotFoundError("the last hoistd left none");
  }
  HOIST_RETURN_IF_ERROR(CheckDevices(*parts_.found.instance));
  HOIST_RETURN_IF_ERROR(CheckProtocols(parts_.found.sessions));
  for (const auto& [id, record] : parts_.found.models) {
    if (record.spec == 0) continue;
    HOIST_ASSIGN_OR_RETURN(opened[id], OpenKept(record));
  }
  HOIST_RETURN_IF_ERROR(AdoptSlabs());
  // On one that is thrown away, if anything does not agree.
  Node trial(NodeOptionsOf(parts_), DevicesOf(parts_));
  // As the true one does: else a model that comes back under a new number could
  // have the one that another was kept under.
  NodeRestore(trial).SkipIds(IdsBefore(parts_.found.instance->generation + 1));
  for (const RestoredGroup& group : published) {
    trial.Restore(group).IgnoreError();
  }
  ForgetPublishedWithout(trial);
  return PutBack(opened, trial);
}

// A published model is told before its first image, and its images are told to
// have gone before it: who dies in between leaves a model without any, or one
// that lacks some. Of what it lacks, or of all if it has another number now,
// nobody has anything but room on devices; who says so all the same disagrees.
void Engine::ForgetPublishedWithout(Node& restored) {
  FoundNode& found = parts_.found;
  const NodeRestore restore(restored);
  std::set<GroupKey> leased;
  for (const KeptLease& lease : found.leases) leased.insert(lease.copy->key);
  const auto is_published = [&](ModelId id) {
    const auto record = found.models.find(id);
    return record != found.models.end() && record->second.spec == 0;
  };
  absl::Status erased;
  std::erase_if(found.copies, [&](const KeptCopy& copy) {
    if (!is_published(copy.key->model) || leased.contains(*copy.key) ||
        restore.CheckGroup(copy).ok()) {
      return false;
    }
    erased.Update(parts_.keep->Erase(CopyKey(copy.device, copy.offset)));
    return true;
  });
  std::erase_if(found.models, [&](const auto& entry) {
    const auto& [id, record] = entry;
    if (record.spec != 0 ||
        restore.CheckModel(id, record.owner, record.name).ok()) {
      return false;
    }
    erased.Update(parts_.keep->Erase(KeyOf(KeptKind::kModel, id.number())));
    return true;
  });
  if (!erased.ok()) Abandon();
}

// Nobody of it goes on: who was connected is told why. What workers have mapped
// stays theirs, and is never given to anybody else.
void Engine::DropFound(const absl::Status& why) {
  const size_t sessions = parts_.found.sessions.size();
  if (sessions > 0 || !parts_.found.slabs.empty()) {
    AddNote(absl::StrCat("what the last hoistd had on devices is dropped, and ",
                         sessions,
                         " sessions end: ", std::string(why.message())));
  }
  if (!parts_.found.pins.empty()) {
    AddNote(absl::StrCat("so are ", parts_.found.pins.size(),
                         " pins of admins: pin again what is to stay"));
  }
  for (const KeptSession& session : parts_.found.sessions) {
    ended_sessions_.push_back({session.id, session.args->peer,
                               session.args->socket, session.args->protocol,
                               Farewell(session.args->protocol, why)});
  }
  for (const auto& maker : slab_makers_) maker->Drop();
  adopted_shares_.clear();
  const uint64_t generation =
      parts_.found.instance.has_value() ? parts_.found.instance->generation : 0;
  parts_.found = {};
  instance_.generation = generation + 1;
  if (!DropNode(parts_.kept_records, *parts_.keep).ok()) Abandon();
}

// Before anything of it is written anew.
void Engine::BeginInstance(bool adopted) {
  if (adopted) {
    instance_.id = parts_.found.instance->id;
    instance_.generation = parts_.found.instance->generation + 1;
  }
  instance_.devices.clear();
  for (const DeviceInfo& device : DevicesOf(parts_)) {
    instance_.devices.push_back(device.uuid);
  }
  NodeRestore(node_).SkipIds(IdsBefore(instance_.generation));
  last_file_ = IdsBefore(instance_.generation);
  last_copier_ = IdsBefore(instance_.generation);
  if (!Keeps()) return;
  if (!parts_.keep->Write(kInstanceKey, ToRecord(instance_)).ok()) Abandon();
}

// The lanes of plans that stood go on where they are.
void Engine::ResumePlans() {
  for (PlanRecord& record : parts_.found.plans) {
    const PlanId plan = record.grant.id;
    if (record.grant.lane_order.empty()) continue;
    LaneShare lane;
    const auto take = [&](KeptKind kind) {
      auto fd = parts_.found.descriptors.extract(KeyOf(kind, plan.number()));
      return fd.empty() ? hoist::UniqueFd() : std::move(fd.mapped());
    };
    lane.memory = take(KeptKind::kLaneMemory);
    lane.wake = take(KeptKind::kLaneWake);
    LaneSpec spec = SpecOf(record);
    ++resuming_[record.session].lanes;
    StreamerOf(record.grant.device)
        .Open(std::move(spec), std::move(lane),
              [this, record = std::move(record)](
                  absl::StatusOr<LaneShare> share) mutable {
                Post([this, record = std::move(record),
                      opened = share.status()](Effects& effects) {
                  LaneResumed(record, opened, effects);
                });
              });
  }
}

void Engine::LaneResumed(const PlanRecord& record, const absl::Status& opened,
                         Effects& effects) {
  const PlanId plan = record.grant.id;
  const auto resuming = resuming_.find(record.session);
  if (node_.FindPlan(plan) == nullptr) {
    // Its session has ended, or has no use for it.
  } else if (opened.ok()) {
    LaneOpened(record.grant, record.share, effects);
  } else {
    AddNote(absl::StrCat("plan ", plan.number(),
                         " does not go on: ", std::string(opened.message())));
    node_.EndPlan(record.session, plan, Now(), effects).IgnoreError();
    if (resuming != resuming_.end()) {
      // Whoever says only later what it has is told then.
      for (auto& [answer, done] : resuming->second.answers) {
        answer.lost_plans.push_back(plan);
      }
    }
  }
  if (resuming == resuming_.end() || --resuming->second.lanes > 0) return;
  AnswerResumed(std::move(resuming_.extract(resuming).mapped()));
}

void Engine::AnswerResumed(Resuming resuming) {
  for (auto& [answer, done] : resuming.answers) done(std::move(answer));
}

// Answered once it is known which of its plans go on: who is told nothing of a
// plan waits for its bytes. What it has counts at once, before what it asks for
// next.
void Engine::Resume(SessionId session, ResumeArgs has, OnSessionWord on_word,
                    Done<Resumed> done) {
  Post([this, session, has = std::move(has), on_word = std::move(on_word),
        done = std::move(done)](Effects& effects) mutable {
    if (node_.PeerOf(session) == nullptr) {
      return done(absl::NotFoundError("the session is closed"));
    }
    if (on_word != nullptr) listeners_[session] = std::move(on_word);
    Resumed answer = node_.Resume(session, has, Now(), effects);
    const auto resuming = resuming_.find(session);
    if (resuming == resuming_.end()) return done(std::move(answer));
    resuming->second.answers.emplace_back(std::move(answer), std::move(done));
  });
}

// Kept for what was never written down, or is no more: who kept it died in
// between, and nobody else would ever let it go.
void Engine::DropUnclaimed() {
  std::set<KeptKey> unclaimed;
  for (const auto& [key, fd] : parts_.found.descriptors) {
    if (fd.valid()) unclaimed.insert(key);
  }
  parts_.found.descriptors.clear();
  if (unclaimed.empty() || parts_.keep == nullptr || abandoned_) return;
  const absl::Status dropped = parts_.keep->DropDescriptors(
      [&](KeptKey key) { return unclaimed.contains(key); });
  if (!dropped.ok()) Abandon();
}

std::vector<ResumedSession> Engine::TakeResumed() {
  std::vector<ResumedSession> sessions = std::exchange(ended_sessions_, {});
  for (const KeptSession& session : parts_.found.sessions) {
    sessions.push_back({session.id, session.args->peer, session.args->socket,
                        session.args->protocol, absl::OkStatus()});
  }
  parts_.found.sessions.clear();
  return sessions;
}

}  // namespace hoistd
