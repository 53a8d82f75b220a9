// What the last hoistd had on devices goes on here: slabs and what lies in
// them, sessions, leases and plans. All of it, or none.
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/node_restore.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/kept_keys.h"
#include "daemon/engine/kept_node.h"

namespace hoistd {
namespace {

// Ids of one hoistd after another lie this far apart, so that none is ever
// given twice among clients that go on.
constexpr int kGenerationShift = 40;

}  // namespace

// Another GPU would be one where nothing of it lies.
absl::Status Engine::CheckDevices(const KeptInstance& instance) const {
  const std::vector<DeviceInfo> devices = DevicesOf(parts_);
  bool same = instance.devices.size() == devices.size();
  for (size_t i = 0; same && i < devices.size(); ++i) {
    same = instance.devices[i] == devices[i].uuid;
  }
  if (same) return absl::OkStatus();
  return absl::FailedPreconditionError("the devices are not those of before");
}

// Their headers are read again: whoever changed a file changed its times.
absl::Status Engine::OpenKept(ModelId id, const ModelRecord& record,
                              std::map<ModelId, OpenedModel>& opened) {
  if (!record.request.has_value()) return absl::OkStatus();
  const ModelRequest& request = *record.request;
  RegisterModelArgs args;
  args.name = request.name;
  args.joined = request.joined;
  args.grouping = request.grouping;
  size_t next = 0;
  const auto take = [&](const std::string& name) {
    auto file = parts_.found.descriptors.extract(
        KeyOf(KeptKind::kModelFile, record.descriptors[next++]));
    OpenFile taken;
    taken.name = name;
    if (!file.empty()) taken.fd = std::move(file.mapped());
    return taken;
  };
  for (const std::string& shard : request.shards) {
    args.shards.push_back(take(shard));
  }
  if (request.index.has_value()) args.index = take(*request.index);
  const OpenOptions options = {.owner = record.owner, .files = parts_.files};
  HOIST_ASSIGN_OR_RETURN(OpenedModel model,
                         OpenModel(std::move(args), options, open_files_));
  if (model.spec->content != record.content) {
    return absl::DataLossError(absl::StrCat(
        "the files of model ", record.name, " changed while no hoistd ran"));
  }
  opened[id] = std::move(model);
  return absl::OkStatus();
}

absl::Status Engine::AdoptSlabs() {
  for (KeptSlab& kept : parts_.found.slabs) {
    if (kept.device.number() >= slab_makers_.size()) {
      return absl::InvalidArgumentError("a slab is of no device");
    }
    auto fd = parts_.found.descriptors.extract(
        SlabKey(kept.device, kept.slab.id));
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
  return absl::OkStatus();
}

absl::Status Engine::Adopt(const std::vector<RestoredGroup>& published,
                           std::map<ModelId, OpenedModel>& opened) {
  if (!parts_.found.instance.has_value()) {
    return absl::NotFoundError("the last hoistd left none");
  }
  HOIST_RETURN_IF_ERROR(CheckDevices(*parts_.found.instance));
  for (const auto& [id, record] : parts_.found.models) {
    HOIST_RETURN_IF_ERROR(OpenKept(id, record, opened));
  }
  HOIST_RETURN_IF_ERROR(AdoptSlabs());
  // On one that is thrown away, if anything does not agree.
  Node trial(NodeOptionsOf(parts_), DevicesOf(parts_));
  for (const RestoredGroup& group : published) {
    trial.Restore(group).IgnoreError();
  }
  return PutBack(opened, trial);
}

// Nobody of it goes on: who was connected sees the end of the connection. What
// workers have mapped stays theirs, and is never given to anybody else.
void Engine::DropFound(const absl::Status& why) {
  const size_t sessions = parts_.found.sessions.size();
  if (sessions > 0 || !parts_.found.slabs.empty()) {
    AddNote(absl::StrCat("what the last hoistd had on devices is dropped, and ",
                         sessions, " sessions end: ",
                         std::string(why.message())));
  }
  for (const auto& maker : slab_makers_) maker->Drop();
  adopted_shares_.clear();
  const uint64_t generation = parts_.found.instance.has_value()
                                  ? parts_.found.instance->generation
                                  : 0;
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
  NodeRestore(node_).SkipIds(instance_.generation << kGenerationShift);
  last_file_ = instance_.generation << kGenerationShift;
  if (parts_.keep == nullptr || abandoned_) return;
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
  if (node_.FindPlan(plan) == nullptr) return;  // Its session has ended.
  if (opened.ok()) return LaneOpened(record.grant, record.share, effects);
  AddNote(absl::StrCat("plan ", plan.number(), " does not go on: ",
                       std::string(opened.message())));
  node_.EndPlan(record.session, plan, Now(), effects).IgnoreError();
}

void Engine::Resume(SessionId session, ResumeArgs has, OnSlabAsk on_ask,
                    Done<Resumed> done) {
  Post([this, session, has = std::move(has), on_ask = std::move(on_ask),
        done = std::move(done)](Effects& effects) mutable {
    if (node_.PeerOf(session) == nullptr) {
      return done(absl::NotFoundError("the session is closed"));
    }
    if (on_ask != nullptr) askers_[session] = std::move(on_ask);
    done(node_.Resume(session, has, Now(), effects));
  });
}

std::vector<ResumedSession> Engine::resumed() const {
  std::vector<ResumedSession> sessions;
  for (const KeptSession& session : parts_.found.sessions) {
    sessions.push_back({session.id, session.args->peer, session.args->socket});
  }
  return sessions;
}

}  // namespace hoistd
