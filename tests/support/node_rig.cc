#include "tests/support/node_rig.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/sha256.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing {
namespace {

std::vector<GroupIndex> Indexes(const std::vector<uint32_t>& numbers) {
  std::vector<GroupIndex> indexes;
  for (const uint32_t n : numbers) indexes.emplace_back(n);
  return indexes;
}

}  // namespace

NodeRig::NodeRig(NodeRigOptions options) : options_(std::move(options)) {
  NodeOptions& node = node_options_;
  node.apart_descriptors = options_.apart_descriptors;
  node.host_capacity_bytes = options_.host_pages * kPage;
  node.pageable_bytes = options_.pageable_pages * kPage;
  node.slab_bytes = options_.slab_pages * kPage;
  node.arenas_evict = options_.arenas_evict;
  node.saves_at_once = options_.saves_at_once;
  node.host_bytes_per_second = options_.host_bytes_per_second;
  node.spill_capacity_bytes = options_.can_spill ? kSpillPages * kPage : 0;
  node.default_readers = options_.readers;
  node.users_share_devices = options_.users_share_devices;
  node.quota = options_.quota;
  node.keeps = true;
  for (const uint64_t pages : options_.device_pages) {
    AddDevice(pages, DeviceKind::kEmulated);
  }
  if (options_.in_place_pages > 0) {
    AddDevice(options_.in_place_pages, DeviceKind::kInPlace);
  }
  host_.resize(options_.host_pages);
  pageable_.resize(options_.pageable_pages);
  node_ = std::make_unique<Node>(node, infos_);
  GrowHost(std::min(options_.host_ready_pages, options_.host_pages));
}

void NodeRig::AddDevice(uint64_t pages, DeviceKind kind) {
  FakeDeviceOptions device;
  device.index = DeviceIndex(static_cast<uint32_t>(devices_.size()));
  device.kind = kind;
  device.granularity = kPage;
  device.span_bytes = DeviceSpace::SpanFor(pages * kPage, kPage);
  if (kind != DeviceKind::kInPlace) {
    device.backing = options_.backing;
    device.ipc = options_.ipc;
  }
  device.memory_bytes = options_.device_memory_pages * kPage;
  node_options_.device_capacity_bytes.push_back(pages * kPage);
  device_memory_.emplace_back(device.span_bytes / kPage);
  devices_.push_back(std::make_unique<FakeDevice>(device));
  infos_.push_back(devices_.back()->info());
}

template <typename F>
auto NodeRig::Do(F call) {
  Effects effects;
  auto result = call(effects);
  Take(std::move(effects));
  CloseAtOnce();
  Check();
  return result;
}

void NodeRig::Take(Effects effects) {
  told_ = node_->TakePersisted();
  for (const Persisted& kept : told_) {
    Note(kept);
    if (!std::holds_alternative<PersistedOnHost>(kept)) continue;
    const PersistedOnHost& at = std::get<PersistedOnHost>(kept);
    kept_.erase(at.host_offset);
    persisted_parts_.erase(at.host_offset);
    if (const auto* image = std::get_if<PersistedImage>(&at.what)) {
      kept_[at.host_offset] =
          image->model->spec->groups[image->group.number()].get();
    } else if (const auto* part = std::get_if<PersistedPart>(&at.what)) {
      persisted_parts_[at.host_offset] = *part;
    }
  }
  for (const SlabWork& work : effects.slabs) {
    slab_work_[work.device].push_back(work);
  }
  TakeAsks(effects);
  std::ranges::copy(effects.give_way, std::back_inserter(give_way_));
  for (Transfer& transfer : effects.transfers) {
    Begin(transfer);
    EXPECT_TRUE(moving_.emplace(transfer.id, transfer).second);
  }
  for (const TransferId id : effects.urgent) {
    EXPECT_TRUE(moving_.contains(id)) << "hurries what is not under way";
    hurried_.push_back(id);
  }
  for (const SpillId id : effects.unspill) {
    EXPECT_EQ(spills_.erase(id), 1u) << "removes a spill that is not there";
  }
  CheckForgotten(effects);
  forgotten_.insert(forgotten_.end(), effects.forgotten.begin(),
                    effects.forgotten.end());
  events_.insert(events_.end(), effects.events.begin(), effects.events.end());
  for (Answer& answer : effects.answers) {
    if (abandoned_.erase(answer.request) > 0) {
      EXPECT_FALSE(answer.lease.has_value()) << "a lease for nobody";
      EXPECT_FALSE(answer.plan.has_value()) << "a plan for nobody";
      EXPECT_FALSE(answer.arena.has_value()) << "an arena for nobody";
      continue;
    }
    const auto found = open_.find(answer.request);
    ASSERT_NE(found, open_.end()) << "answered twice, or never asked";
    if (answer.model != nullptr) uses_[found->second].insert(answer.model->id);
    if (answer.plan.has_value()) {
      uses_[found->second].insert(answer.plan->model);
    }
    if (answer.lease.has_value()) {
      uses_[found->second].insert(answer.lease->key.model);
      leases_[answer.lease->id] = {found->second, *answer.lease};
      Sent(found->second, answer.lease->device, answer.lease->new_slabs);
    }
    if (answer.plan.has_value()) Stands(found->second, *answer.plan);
    if (answer.arena.has_value()) Granted(found->second, *answer.arena);
    open_.erase(found);
    PinAnswered(answer);
    answers_[answer.request] = std::move(answer);
  }
  TakePlans(effects);
  if (!hold_slabs) DoSlabWork();
}

// --- What is asked -----------------------------------------------------------

SessionId NodeRig::Open(const Peer& peer, std::string client_name) {
  OpenSessionArgs args;
  args.client_name = std::move(client_name);
  args.peer = peer;
  args.socket = std::make_shared<hoist::UniqueFd>();
  const auto id =
      Do([&](Effects& e) { return node_->OpenSession(args, now, e); });
  EXPECT_OK(id);
  return id.value_or(SessionId());
}

SessionId NodeRig::Open(uint32_t uid, uint64_t budget_pages) {
  const auto id = TryOpen(uid, budget_pages);
  EXPECT_OK(id);
  return id.value_or(SessionId());
}

absl::StatusOr<SessionId> NodeRig::TryOpen(uint32_t uid,
                                           uint64_t budget_pages) {
  OpenSessionArgs args;
  args.client_name = absl::StrCat("worker", uid);
  args.peer.uid = User(uid);
  args.socket = std::make_shared<hoist::UniqueFd>();
  args.peer.admin = uid == 0;
  args.device_budget_bytes = budget_pages * kPage;
  args.closes_slabs = options_.closing != NodeRigOptions::Closing::kNever;
  return Do([&](Effects& e) { return node_->OpenSession(args, now, e); });
}

void NodeRig::Close(SessionId session) {
  std::erase_if(leases_,
                [&](const auto& l) { return l.second.first == session; });
  ArenasOver(session);
  open_slabs_.erase(session);
  uses_.erase(session);
  std::erase_if(asks_, [&](const auto& ask) { return ask.session == session; });
  for (auto it = open_.begin(); it != open_.end();) {
    if (it->second == session) {
      abandoned_.insert(it->first);
      it = open_.erase(it);
    } else {
      ++it;
    }
  }
  Do([&](Effects& e) {
    node_->CloseSession(session, now, e);
    return 0;
  });
}

std::shared_ptr<const Group> NodeRig::MakeGroup(std::string name,
                                                uint64_t pages) {
  auto group = std::make_shared<Group>();
  group->name = std::move(name);
  group->image_bytes = pages * kPage;
  groups_.push_back(group);
  images_[group.get()].assign(pages, group.get());
  return group;
}

std::shared_ptr<const Group> NodeRig::MakeGroup(
    std::string name, const FileIdentity& file,
    const std::vector<PageRun>& runs) {
  auto group = std::make_shared<Group>();
  group->name = std::move(name);
  std::vector<Label>& image = images_[group.get()];
  for (const PageRun& run : runs) {
    if (run.pages == 0) continue;
    group->runs.push_back(
        {{0, run.from * kPage, run.pages * kPage}, group->image_bytes});
    group->image_bytes += run.pages * kPage;
    for (uint64_t p = run.from; p < run.from + run.pages; ++p) {
      image.push_back(LabelOf(file, p));
    }
  }
  groups_.push_back(group);
  return group;
}

NodeRig::Label NodeRig::LabelOf(const FileIdentity& file, uint64_t page) {
  std::unique_ptr<int>& label = sheets_[{file, page}];
  if (label == nullptr) label = std::make_unique<int>();
  return label.get();
}

absl::StatusOr<ModelPtr> NodeRig::TryAddModel(SessionId session,
                                              std::string name,
                                              std::vector<uint64_t> pages,
                                              uint8_t content,
                                              std::optional<Readers> readers,
                                              std::vector<FileIdentity> files) {
  auto spec = std::make_shared<ModelSpec>();
  Sha256 hasher;
  hasher.String(name).Number(content);
  for (const FileIdentity& file : files) hasher.Number(file.inode);
  for (const uint64_t n : pages) hasher.Number(n);
  spec->content = hasher.Finish();
  if (files.empty()) {
    FileIdentity file;
    std::memcpy(&file.inode, spec->content.data(), sizeof(file.inode));
    files.push_back(file);
  }
  uint64_t from = 0;
  for (size_t g = 0; g < pages.size(); ++g) {
    spec->groups.push_back(
        MakeGroup(absl::StrCat("g", g), files.front(), {{from, pages[g]}}));
    from += pages[g];
  }
  spec->identities = std::move(files);
  spec->name = std::move(name);
  return AddSpec(session, std::move(spec), readers);
}

absl::StatusOr<ModelPtr> NodeRig::AddSpec(SessionId session,
                                          std::shared_ptr<ModelSpec> spec,
                                          std::optional<Readers> readers) {
  uint64_t end = 0;
  for (const auto& group : spec->groups) {
    spec->image_bytes += group->image_bytes;
    spec->book_bytes += BookBytesOf(*group);
    for (const SourceRun& run : group->runs) {
      end = std::max(end, run.from.end());
    }
  }
  auto sheet = std::make_shared<Sheet>();
  sheet->bytes = end;
  if (end > 0) sheet->runs.push_back({0, 100, end});
  spec->sheets.assign(spec->identities.size(), sheet);
  absl::StatusOr<ModelPtr> model = Do([&](Effects& e) {
    return node_->registry().AddModel(session, spec, readers, e);
  });
  if (model.ok()) {
    book_.models.insert((*model)->id);
    uses_[session].insert((*model)->id);
  }
  return model;
}

absl::StatusOr<ModelPtr> NodeRig::TryAddGrouping(
    SessionId session, std::string name, uint64_t inode,
    const std::vector<std::vector<PageRun>>& groups,
    std::optional<Readers> readers) {
  auto spec = std::make_shared<ModelSpec>();
  spec->identities = {{.inode = inode}};
  Sha256 hasher;
  hasher.String("grouping").Number(inode);
  for (size_t g = 0; g < groups.size(); ++g) {
    hasher.Number(groups[g].size());
    for (const PageRun& run : groups[g]) {
      hasher.Number(run.from).Number(run.pages);
    }
    spec->groups.push_back(
        MakeGroup(absl::StrCat("g", g), spec->identities.front(), groups[g]));
  }
  spec->name = std::move(name);
  spec->content = hasher.Finish();
  return AddSpec(session, std::move(spec), readers);
}

ModelId NodeRig::AddGrouping(SessionId session, std::string name,
                             uint64_t inode,
                             const std::vector<std::vector<PageRun>>& groups,
                             std::optional<Readers> readers) {
  const auto model =
      TryAddGrouping(session, std::move(name), inode, groups, readers);
  EXPECT_OK(model);
  return model.ok() ? (*model)->id : ModelId();
}

ModelId NodeRig::AddModel(SessionId session, std::string name,
                          std::vector<uint64_t> pages) {
  const auto model = TryAddModel(session, std::move(name), std::move(pages));
  EXPECT_OK(model);
  return model.ok() ? (*model)->id : ModelId();
}

RequestId NodeRig::NewRequest(SessionId session) {
  const RequestId request(++last_request_);
  open_[request] = session;
  return request;
}

RequestId NodeRig::Publish(SessionId session, std::string model,
                           std::string group, uint64_t pages, uint8_t content,
                           absl::Duration deadline,
                           std::optional<Content> expected) {
  const RequestId request = NewRequest(session);
  auto made = MakeGroup(std::move(group), pages);
  // The same bytes as another of that name.
  for (const auto& [other, its_content] : contents_) {
    if (its_content == content && other->name == made->name &&
        other->image_bytes == made->image_bytes) {
      images_[made.get()] = images_.at(other);
      break;
    }
  }
  contents_[made.get()] = content;
  return Do([&](Effects& e) {
    node_->Publish(request, session, model, made, nullptr, std::nullopt,
                   expected, now + deadline, now, e);
    return request;
  });
}

GroupKey NodeRig::Published(SessionId session, const std::string& model,
                            const std::string& group, uint64_t pages) {
  const RequestId request = Publish(session, model, group, pages);
  Finish<ClientToHost>();
  const Answer* answer = AnswerTo(request);
  HOIST_CHECK(answer != nullptr && answer->status.ok());
  return {answer->model->id, *FindGroup(*answer->model->spec, group)};
}

RequestId NodeRig::BringLease(SessionId session, const CopyRef& copy,
                              absl::Duration deadline, bool urgent) {
  BringArgs bring;
  bring.request = NewRequest(session);
  bring.session = session;
  bring.copy = copy;
  bring.deadline = now + deadline;
  bring.lease = true;
  bring.urgent = urgent;
  return Do([&](Effects& e) {
    node_->Bring(bring, now, e);
    return bring.request;
  });
}

RequestId NodeRig::Stage(SessionId session, GroupKey key,
                         absl::Duration deadline, uint32_t device,
                         bool shared) {
  return BringLease(session, {key, {OnDevice(DeviceIndex(device)), shared}},
                    deadline, /*urgent=*/true);
}

RequestId NodeRig::StageApart(SessionId session, GroupKey key, uint32_t device,
                              absl::Duration deadline, bool background) {
  const Place place = {OnDevice(DeviceIndex(device)), false, /*apart=*/true};
  return BringLease(session, {key, place}, deadline, !background);
}

LeaseId NodeRig::StageApartNow(SessionId session, GroupKey key,
                               uint32_t device) {
  const RequestId request = StageApart(session, key, device);
  DoSlabWork();
  FinishAll();
  return LeaseOf(request);
}

RequestId NodeRig::ReadImage(SessionId session, GroupKey key,
                             absl::Duration deadline,
                             std::optional<uint64_t> memfd_bytes) {
  const RequestId request = NewRequest(session);
  return Do([&](Effects& e) {
    node_->ReadImage(request, session, key, std::make_shared<hoist::UniqueFd>(),
                     memfd_bytes.value_or(node_->copies().BytesOf(key)),
                     now + deadline, now, e);
    return request;
  });
}

RequestId NodeRig::Bring(GroupKey key, TierAt to, bool pin,
                         absl::Duration deadline,
                         std::optional<ModelId> spare) {
  BringArgs bring;
  bring.request = NewRequest(SessionId());
  bring.copy = {key, {to, false}};
  bring.deadline = now + deadline;
  bring.pin = pin;
  bring.urgent = pin;
  bring.spare = spare;
  return Do([&](Effects& e) {
    node_->Bring(bring, now, e);
    return bring.request;
  });
}

absl::Status NodeRig::Prefetch(SessionId session, ModelId model,
                               std::vector<uint32_t> groups, TierAt to) {
  const PrefetchArgs args = {model, Indexes(groups), to};
  return Do([&](Effects& e) { return node_->Prefetch(session, args, now, e); });
}

absl::Status NodeRig::Release(SessionId session, LeaseId lease) {
  const auto found = leases_.find(lease);
  if (found != leases_.end() && found->second.first == session) {
    leases_.erase(found);
  }
  return Do(
      [&](Effects& e) { return node_->Release(session, {lease}, now, e); });
}

CopyTotals NodeRig::Evict(const std::string& model, std::optional<TierAt> at) {
  const auto copies =
      node_->picture().Select({model, "", at, kAdmin}, /*existing_only=*/true);
  if (!copies.ok()) return {};
  return Do([&](Effects& e) { return node_->Evict(*copies, now, e); });
}

CopyTotals NodeRig::Unpin(const std::string& model) {
  const auto copies =
      node_->picture().Select({model, "", {}, kAdmin}, /*existing_only=*/true);
  if (!copies.ok()) return {};
  return Do([&](Effects& e) { return node_->Unpin(*copies, now, e); });
}

absl::Status NodeRig::Forget(SessionId session, ModelId model) {
  return Do(
      [&](Effects& e) { return node_->ForgetBy(session, model, now, e); });
}

absl::Status NodeRig::Forget(ModelId model) {
  return Do([&](Effects& e) { return node_->Forget(model, now, e); });
}

RequestId NodeRig::Spare(SessionId session, uint64_t pages,
                         absl::Duration deadline) {
  const RequestId request = NewRequest(session);
  Do([&](Effects& e) {
    node_->tenure().Spare(request, session,
                          {FirstDevice().device, pages * kPage, deadline}, now,
                          e);
    node_->Tick(now, e);
    return 0;
  });
  return request;
}

void NodeRig::Drain(bool draining) {
  Do([&](Effects& e) {
    node_->SetDraining(draining, e);
    return 0;
  });
}

void NodeRig::Resize(TierAt at, uint64_t pages, uint64_t headroom_pages) {
  Do([&](Effects& e) {
    node_->Resize(at, {pages * kPage, headroom_pages * kPage}, now, e);
    return 0;
  });
}

void NodeRig::Advance(absl::Duration by) {
  now += by;
  Do([&](Effects& e) {
    node_->Tick(now, e);
    return 0;
  });
  EXPECT_GT(node_->NextDeadline(), now) << "the engine would never sleep";
}

// --- What came of it ---------------------------------------------------------

const Answer* NodeRig::AnswerTo(RequestId request) const {
  const auto found = answers_.find(request);
  return found == answers_.end() ? nullptr : &found->second;
}

LeaseId NodeRig::LeaseOf(RequestId request) const {
  const Answer* answer = AnswerTo(request);
  if (answer == nullptr) {
    ADD_FAILURE() << "not answered yet";
    return LeaseId();
  }
  EXPECT_OK(answer->status);
  if (!answer->lease.has_value()) return LeaseId();
  return answer->lease->id;
}

LeaseId NodeRig::StageNow(SessionId session, GroupKey key, uint32_t device) {
  const RequestId request = Stage(session, key, absl::Seconds(10), device);
  FinishAll();
  return LeaseOf(request);
}

Residency NodeRig::StateOf(GroupKey key, TierAt at) const {
  if (const GroupEntry* group = node_->copies().FindGroup(key)) {
    for (const auto& [place, copy] : group->copies) {
      if (place.at == at && copy.state != Residency::kAbsent) return copy.state;
    }
    if (at == OnPageable() && node_->copies().pageable().Has(key)) {
      return Residency::kPresent;
    }
    if (at == OnDisk() && group->spilled.has_value()) {
      return Residency::kPresent;
    }
    if (at == OnDisk() && !group->lost.ok()) return Residency::kLost;
  }
  return Residency::kAbsent;
}

std::vector<TransferId> NodeRig::Moving() const {
  std::vector<TransferId> ids;
  for (const auto& [id, transfer] : moving_) ids.push_back(id);
  return ids;
}

void NodeRig::FinishAll() {
  std::string last;
  for (int i = 0; !moving_.empty(); ++i) {
    const Transfer& next = moving_.begin()->second;
    if (i > 4900) {
      absl::StrAppend(&last, next.way.index(), " of ", next.key.model.number(),
                      "/", next.key.group.number(),
                      next.urgent ? " urgent; " : "; ");
    }
    ASSERT_LT(i, 5000) << "each transfer brings another: " << last;
    Finish(next.id);
  }
}

void NodeRig::Finish(TransferId id, absl::Status status) {
  const Transfer transfer = moving_.at(id);
  moving_.erase(id);
  TransferResult result;
  End(transfer, status);
  if (transfer.by<HostToSpill>() != nullptr && status.ok()) {
    result.spill = SpillId(++last_spill_);
    spills_[result.spill] = transfer.group.get();
  }
  if (transfer.by<ClientToHost>() != nullptr ||
      transfer.by<CheckOnHost>() != nullptr ||
      transfer.by<CheckOnPageable>() != nullptr ||
      transfer.by<CheckOnDevice>() != nullptr) {
    result.content = ContentOf(transfer);
  }
  Do([&](Effects& e) {
    node_->TransferDone(id, status, result, now, e);
    return 0;
  });
}

void NodeRig::Store(SpillId id, std::shared_ptr<const Group> group) {
  spills_[id] = group.get();
  images_[group.get()].assign(group->image_bytes / kPage, group.get());
  groups_.push_back(std::move(group));
}

std::shared_ptr<const Group> NodeRig::Lay(uint64_t page, std::string name,
                                          uint64_t pages, uint8_t content) {
  std::shared_ptr<const Group> group = MakeGroup(std::move(name), pages);
  contents_[group.get()] = content;
  FillImage(host_, page * kPage, *group);
  kept_[page * kPage] = group.get();
  laid_.insert(group.get());
  return group;
}

void NodeRig::ChangeOnHost(GroupKey key) {
  const auto spec = *node_->copies().SpecOf(key.model);
  changed_on_host_.insert(spec->groups[key.group.number()].get());
}

void NodeRig::ChangeOnDevice(GroupKey key, uint32_t device) {
  const auto spec = *node_->copies().SpecOf(key.model);
  const Group* const group = spec->groups[key.group.number()].get();
  const Memory& memory = device_memory_[device];
  const auto at = std::ranges::find(memory, images_.at(group).at(0));
  ASSERT_NE(at, memory.end()) << "it is not there";
  changed_on_device_.insert(
      {DeviceIndex(device),
       static_cast<uint64_t>(at - memory.begin()) * kPage});
}

Content NodeRig::ContentOf(const Transfer& transfer) const {
  Content content = {};
  content[0] = contents_.at(transfer.group.get());
  const auto* device = transfer.by<CheckOnDevice>();
  const bool changed =
      transfer.by<CheckOnHost>() != nullptr ||
              transfer.by<CheckOnPageable>() != nullptr
          ? changed_on_host_.contains(transfer.group.get())
          : device != nullptr && changed_on_device_.contains(
                                     {device->device, device->device_offset});
  if (changed) ++content[1];
  return content;
}

bool NodeRig::UnderRepair(const LeaseGrant& grant) const {
  return std::ranges::any_of(moving_, [&](const auto& moving) {
    const auto* way = moving.second.template by<HostToDevice>();
    return way != nullptr && way->device == grant.device &&
           way->device_offset == grant.offset;
  });
}

RequestId NodeRig::CheckGroup(GroupKey key, bool repair) {
  const RequestId request = NewRequest(SessionId());
  return Do([&](Effects& e) {
    node_->audit().Check(request, key, repair, e);
    return request;
  });
}

void NodeRig::LayPart(uint64_t offset, const PersistedPart& part) {
  for (uint64_t at = 0; at < part.bytes; at += kPage) {
    host_.at((offset + at) / kPage) =
        LabelOf(part.file, (part.from + at) / kPage);
  }
  persisted_parts_[offset] = part;
}

}  // namespace hoistd::testing
