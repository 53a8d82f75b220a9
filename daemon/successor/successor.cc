#include "daemon/successor/successor.h"

#include <sys/stat.h>

#include <cstddef>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/hash.h"
#include "daemon/base/status.h"
#include "daemon/core/node_restore.h"
#include "daemon/io_helper/parked_file.h"
#include "daemon/successor/left_models.h"
#include "daemon/successor/persisted_keys.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/wire.h"

namespace hoistd {
namespace {

std::string SpeaksAnother(uint32_t protocol) {
  return absl::StrCat("speaks session protocol ", protocol,
                      ", and this hoistd ", hoist::ServedVersions());
}

absl::Status CheckProtocols(const std::vector<PersistedSession>& sessions) {
  for (const PersistedSession& session : sessions) {
    const uint32_t protocol = session.args->protocol;
    if (hoist::ServiceFor(protocol) == hoist::Service::kGoesOn) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "session ", session.id.number(), " ", SpeaksAnother(protocol)));
  }
  return absl::OkStatus();
}

// The text for the client of a session that `why` ends. The code tells it
// whether to reconnect.
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

// One takeover.
class Succession {
 public:
  Succession(Left left, SuccessorParts parts, Book& book, Node& node)
      : parts_(std::move(parts)),
        book_(book),
        node_(node),
        left_(std::move(left)) {}

  Inheritance Run();

 private:
  struct KeptFiles {
    std::shared_ptr<const ModelSpec> spec;
    std::shared_ptr<const SourceFiles> files;
  };

  LeftModels FindPublished();
  // On a discarded node. An error: devices' records conflict.
  absl::Status Try(const std::vector<RestoredGroup>& published);
  absl::Status CheckDevices(const PersistedInstance& instance) const;
  absl::StatusOr<KeptFiles> Open(const ModelRecord& record);
  absl::Status AdoptSlabs();
  void ForgetPublishedWithout(Node& restored);
  absl::Status PutBack(Node& node) const;
  void DropNode(const absl::Status& why);
  void Begin(std::optional<PersistedInstance> last, bool adopted);
  void RestorePublished(const LeftModels& published);
  void RestoreParts();
  void Inherit();
  hoist::UniqueFd Take(PersistedKey key);

  SuccessorParts parts_;
  Book& book_;
  Node& node_;
  Left left_;
  std::map<ModelId, KeptFiles> opened_;
  std::vector<SlabShare> shares_;  // As left_.node.slabs.
  Inheritance next_;
};

// Another GPU would hold none of the contents.
absl::Status Succession::CheckDevices(const PersistedInstance& instance) const {
  std::vector<DeviceInfo> devices = parts_.devices;
  // A new device in place takes nothing from the others.
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

// Reads nothing: changes of the files show when they are read.
absl::StatusOr<Succession::KeptFiles> Succession::Open(
    const ModelRecord& record) {
  const auto take = [&](uint64_t number) {
    return Take(KeyOf(PersistedKind::kModelFile, number));
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
  KeptFiles model;
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
      files->push_back(parts_.open_files.Share(
          record.owner,
          SourceFile::Parked(std::move(fd), name, identity, record.owner)));
      continue;
    }
    HOIST_ASSIGN_OR_RETURN(
        SourceFile file,
        SourceFile::OpenAgain(std::move(fd), name, identity, parts_.files));
    files->push_back(parts_.open_files.Share(record.owner, std::move(file)));
  }
  model.files = std::move(files);
  return model;
}

absl::Status Succession::AdoptSlabs() {
  for (PersistedSlab& kept : left_.node.slabs) {
    if (kept.device.number() >= parts_.slab_makers.size()) {
      return absl::InvalidArgumentError("a slab is of no device");
    }
    auto fd = left_.node.descriptors.extract(SlabKey(kept.device, kept.slab));
    HOIST_CHECK(!fd.empty());
    HOIST_ASSIGN_OR_RETURN(const SlabShare share,
                           parts_.slab_makers[kept.device.number()]->Adopt(
                               kept.slab, std::move(fd.mapped())));
    shares_.push_back(share);
  }
  return absl::OkStatus();
}

absl::Status Succession::PutBack(Node& node) const {
  const FoundNode& found = left_.node;
  NodeRestore restore(node);
  for (const auto& [id, record] : found.models) {
    const auto files = opened_.find(id);
    HOIST_RETURN_IF_ERROR(
        files == opened_.end()
            ? restore.CheckModel(id, record.owner, record.name)
            : restore.AddModel(id, files->second.spec, record.owner,
                               record.readers));
  }
  for (size_t i = 0; i < found.slabs.size(); ++i) {
    HOIST_RETURN_IF_ERROR(restore.AddSlab(found.slabs[i], shares_[i]));
  }
  for (const PersistedCopy& copy : found.copies) {
    HOIST_RETURN_IF_ERROR(restore.AddCopy(copy, parts_.now));
  }
  for (const PersistedSession& session : found.sessions) {
    HOIST_RETURN_IF_ERROR(
        restore.AddSession(session.id, *session.args, parts_.now));
  }
  for (const PersistedLease& lease : found.leases) {
    HOIST_RETURN_IF_ERROR(
        restore.AddLease(lease.id, lease.session, *lease.copy));
  }
  for (const PlanRecord& plan : found.plans) {
    HOIST_RETURN_IF_ERROR(restore.AddPlan(plan.session, plan.grant));
  }
  for (const PersistedArena& arena : found.arenas) {
    HOIST_RETURN_IF_ERROR(restore.AddArena(arena));
  }
  restore.NoMoreArenas();
  return absl::OkStatus();
}

absl::Status Succession::Try(const std::vector<RestoredGroup>& published) {
  const FoundNode& found = left_.node;
  HOIST_RETURN_IF_ERROR(found.status);
  if (!found.instance.has_value()) {
    return absl::NotFoundError("the last hoistd left none");
  }
  HOIST_RETURN_IF_ERROR(CheckDevices(*found.instance));
  HOIST_RETURN_IF_ERROR(CheckProtocols(found.sessions));
  for (const auto& [id, record] : found.models) {
    if (record.spec == 0) continue;
    HOIST_ASSIGN_OR_RETURN(opened_[id], Open(record));
  }
  HOIST_RETURN_IF_ERROR(AdoptSlabs());
  Node trial(parts_.node, parts_.devices);
  // As the real one does: else a model that returns under a new id could get
  // the id that another one had.
  NodeRestore(trial).SkipIds(IdsBefore(found.instance->generation + 1));
  for (const RestoredGroup& group : published) {
    trial.registry().Restore(group).IgnoreError();
  }
  ForgetPublishedWithout(trial);
  return PutBack(trial);
}

// A published model is recorded before its first image, and its images are
// erased before it. So a death in between leaves a model without images, or
// without some. For missing ones, or for all if the model's id changed, nobody
// has more than device room; a record that claims more conflicts.
void Succession::ForgetPublishedWithout(Node& restored) {
  FoundNode& found = left_.node;
  const NodeRestore restore(restored);
  std::set<GroupKey> leased;
  for (const PersistedLease& lease : found.leases)
    leased.insert(lease.copy->key);
  const auto is_published = [&](ModelId id) {
    const auto record = found.models.find(id);
    return record != found.models.end() && record->second.spec == 0;
  };
  std::erase_if(found.copies, [&](const PersistedCopy& copy) {
    if (!is_published(copy.key->model) || leased.contains(*copy.key) ||
        restore.CheckGroup(copy).ok()) {
      return false;
    }
    book_.Erase(CopyKey(copy.device, copy.offset));
    return true;
  });
  std::erase_if(found.models, [&](const auto& entry) {
    const auto& [id, record] = entry;
    if (record.spec != 0 ||
        restore.CheckModel(id, record.owner, record.name).ok()) {
      return false;
    }
    book_.Erase(KeyOf(PersistedKind::kModel, id.number()));
    return true;
  });
}

// No session resumes: connected clients learn why. Memory that workers have
// mapped stays theirs, and is never reused.
void Succession::DropNode(const absl::Status& why) {
  const FoundNode& found = left_.node;
  const size_t sessions = found.sessions.size();
  if (sessions > 0 || !found.slabs.empty()) {
    parts_.note(
        absl::StrCat("what the last hoistd had on devices is dropped, and ",
                     sessions, " sessions end: ", std::string(why.message())));
  }
  if (!found.pins.empty()) {
    parts_.note(absl::StrCat("so are ", found.pins.size(),
                             " pins of admins: pin again what is to stay"));
  }
  for (const PersistedSession& session : found.sessions) {
    next_.sessions.push_back({session.id, session.args->peer,
                              session.args->socket, session.args->protocol,
                              Farewell(session.args->protocol, why)});
  }
  for (const auto& maker : parts_.slab_makers) maker->Drop();
  opened_.clear();
  shares_.clear();
  left_.node = {};
  book_.DropNode(left_.records);
}

// Before any new record.
void Succession::Begin(std::optional<PersistedInstance> last, bool adopted) {
  PersistedInstance& instance = next_.instance;
  instance.id = adopted ? last->id : parts_.new_instance;
  if (parts_.keeps) {
    instance.generation = last.value_or(PersistedInstance()).generation + 1;
  }
  for (const DeviceInfo& device : parts_.devices) {
    instance.devices.push_back(device.uuid);
  }
  NodeRestore(node_).SkipIds(IdsBefore(instance.generation));
  book_.Begin(instance, IdsBefore(instance.generation));
}

LeftModels Succession::FindPublished() {
  SpillStore* const store = parts_.store;
  LeftModels left =
      FindLeft(left_.host.images,
               store == nullptr ? std::vector<SpillRecord>() : store->List(),
               store == nullptr ? ModelRoll::Models() : store->models(),
               left_.node.models);
  for (std::string& note : left.notes) parts_.note(std::move(note));
  // Reported once, since no one could forget it.
  for (const auto& [owner, model] : left.gone) {
    store->NoteModel(owner, model, 0);
  }
  return left;
}

void Succession::RestorePublished(const LeftModels& published) {
  for (const RestoredGroup& group : published.groups) {
    const absl::Status restored = node_.registry().Restore(group);
    if (!restored.ok()) parts_.note(std::string(restored.message()));
  }
  NodeRestore restore(node_);
  for (const auto& [model, groups] : published.had) {
    restore.HadGroups(model.first, model.second, groups);
  }
}

void Succession::RestoreParts() {
  for (const FoundPart& found : left_.host.parts) {
    const absl::Status restored =
        node_.supply().restored().AddPart(found.host_offset, found.part);
    if (restored.ok()) continue;
    parts_.note(std::string(restored.message()));
    // Its memory will be reused.
    book_.EraseOnHost(found.host_offset);
  }
}

hoist::UniqueFd Succession::Take(PersistedKey key) {
  auto found = left_.node.descriptors.extract(key);
  return found.empty() ? hoist::UniqueFd() : std::move(found.mapped());
}

void Succession::Inherit() {
  FoundNode& found = left_.node;
  for (auto& [id, model] : opened_) {
    next_.files[id] = std::move(model.files);
  }
  for (const PersistedSession& session : found.sessions) {
    next_.sessions.push_back({session.id, session.args->peer,
                              session.args->socket, session.args->protocol,
                              absl::OkStatus()});
  }
  for (PlanRecord& plan : found.plans) {
    if (plan.grant.lane_order.empty()) continue;
    const uint64_t id = plan.grant.id.number();
    LaneShare lane;
    lane.memory = Take(KeyOf(PersistedKind::kLaneMemory, id));
    lane.wake = Take(KeyOf(PersistedKind::kLaneWake, id));
    next_.plans.emplace_back(std::move(plan), std::move(lane));
  }
  next_.pins = std::move(found.pins);
  next_.load_caps = std::move(found.load_caps);
  // Descriptors without a record: their writer died before writing or after
  // erasing it, and nobody else would release them.
  std::set<PersistedKey> unclaimed;
  for (const auto& [key, fd] : found.descriptors) {
    if (fd.valid()) unclaimed.insert(key);
  }
  book_.DropDescriptors(unclaimed);
}

Inheritance Succession::Run() {
  const LeftModels published = FindPublished();
  const std::optional<PersistedInstance> last = left_.node.instance;
  bool adopted = false;
  if (parts_.keeps) {
    const absl::Status tried = Try(published.groups);
    adopted = tried.ok();
    if (!adopted) DropNode(tried);
  }
  Begin(last, adopted);
  RestorePublished(published);
  if (adopted) HOIST_CHECK(PutBack(node_).ok());
  RestoreParts();
  Inherit();
  return std::move(next_);
}

}  // namespace

uint64_t IdsBefore(uint64_t generation) {
  constexpr int kGenerationShift = 40;
  return generation << kGenerationShift;
}

Left ReadLeft(std::map<PersistedKey, std::string> records,
              std::map<PersistedKey, hoist::UniqueFd> descriptors,
              std::vector<std::string>& notes) {
  Left left;
  left.host = FindOnHost(records, notes);
  absl::StatusOr<FoundNode> node = FindNode(records, std::move(descriptors));
  if (node.ok()) {
    left.node = *std::move(node);
  } else {
    left.node.status = node.status();
  }
  left.records = std::move(records);
  return left;
}

Inheritance TakeOver(Left left, SuccessorParts parts, Book& book, Node& node) {
  return Succession(std::move(left), std::move(parts), book, node).Run();
}

}  // namespace hoistd
