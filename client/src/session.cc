#include "client/src/session.h"

#include <algorithm>
#include <utility>

#include "client/src/fork_guard.h"

namespace hoist {
namespace {

Status WrongAnswer() {
  return Status(Code::kInternal,
                "hoistd answered with something that was not asked for");
}

std::vector<int> Borrow(const std::vector<OpenFile>& shards,
                        const std::vector<OpenFile>& index) {
  std::vector<int> fds;
  for (const OpenFile& file : shards) fds.push_back(file.fd.get());
  for (const OpenFile& file : index) fds.push_back(file.fd.get());
  return fds;
}

}  // namespace

Session::Session(std::chrono::milliseconds call_deadline)
    : fork_generation_(ForkGeneration()),
      call_deadline_(call_deadline),
      model_uses_(std::make_shared<ModelUses>([this](uint64_t model) {
        connection_->Post(
            [model](uint64_t id) { return EncodeSetOrder(id, model, {}); });
      })) {}

Session::~Session() {
  model_uses_->End();
  Close();
  // In the child of a fork the mappings are the parent's to count.
  if (forked()) return;
  for (const auto& [index, device] : shared_devices_) device->Leave(this);
}

bool Session::forked() const { return fork_generation_ != ForkGeneration(); }

Result<std::shared_ptr<Session>> Session::Connect(
    const ConnectOptions& options) {
  std::shared_ptr<Session> session(new Session(options.call_deadline));
  if (Status s = session->Open(options); !s.ok()) return s;
  return session;
}

// A hoistd that dies meanwhile is as one that does not listen yet.
Status Session::Open(const ConnectOptions& options) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + options.connect_deadline;
  while (true) {
    const auto left =
        std::max(std::chrono::duration_cast<std::chrono::milliseconds>(
                     end - Clock::now()),
                 std::chrono::milliseconds(0));
    Status opened = TryToOpen(options, left);
    const bool died = connection_ != nullptr &&
                      opened.code() == Code::kUnavailable &&
                      connection_->ended_unheard();
    if (!died || Clock::now() >= end) return opened;
  }
}

Status Session::TryToOpen(const ConnectOptions& options,
                          std::chrono::milliseconds deadline) {
  connection_.reset();
  Result<UniqueFd> socket =
      ConnectSocket(options.socket_path, deadline, options.call_deadline);
  if (!socket.ok()) return socket.status();
  connection_ = std::make_unique<Connection>(
      std::move(socket).value(), static_cast<Connection::Handler*>(this));
  Result<Reply> reply = connection_->Call(
      [&options](uint64_t id) {
        return EncodeOpenSession(id, options.client_name,
                                 options.device_budget_bytes);
      },
      {}, call_deadline_);
  if (!reply.ok()) return reply.status();
  auto* opened = std::get_if<OpenReply>(&reply->body);
  if (opened == nullptr) return WrongAnswer();
  opened_ = std::move(*opened);
  for (const DeviceFacts& device : opened_.devices) {
    shared_devices_[device.index] =
        SharedDevice::Get(opened_.instance_id, device);
  }
  if (opened_.in_place.has_value()) {
    std::vector<SharedDevice::Uuid> gpus;
    for (const DeviceFacts& device : opened_.devices) {
      if (device.kind == DeviceKind::kCuda) gpus.push_back(device.uuid);
    }
    shared_devices_[opened_.in_place->index] = SharedDevice::Get(
        opened_.instance_id, *opened_.in_place, std::move(gpus));
  }
  ready_.store(true);
  return Status();
}

Status Session::Check() const {
  if (forked()) return ForkedStatus();
  return connection_->Check();
}

void Session::Close() {
  if (connection_ != nullptr) connection_->Close();
}

const DeviceFacts* Session::FindDevice(uint32_t index) const {
  for (const DeviceFacts& device : opened_.devices) {
    if (device.index == index) return &device;
  }
  return nullptr;
}

// On the reading thread. No lease is asked for before Open() has filled
// `shared_devices_`, and the lock of the request's table orders the two.
Status Session::Admit(Reply* reply) {
  if (auto* lease = std::get_if<LeaseGrant>(&reply->body)) {
    return AdmitLease(lease);
  }
  // hoistd has set the plan, and perhaps ended another for it, whatever becomes
  // of it here: its caller must learn both.
  if (auto* plan = std::get_if<PlanGrant>(&reply->body)) {
    plan->admitted = ImportRing(plan);
  }
  if (const auto* arena = std::get_if<ArenaGrant>(&reply->body)) {
    uses_.AddArena(arena->id);
  }
  return Status();
}

Status Session::AdmitLease(LeaseGrant* lease) {
  const auto it = shared_devices_.find(lease->device);
  if (it == shared_devices_.end()) {
    return Status(Code::kInternal, "hoistd leased on a device it did not name");
  }
  std::vector<SlabImport> slabs = std::exchange(lease->slabs, {});
  if (lease->apart) {
    Result<SlabHandle> slab =
        it->second->AdmitApart(this, std::move(slabs), lease->offset_bytes);
    if (!slab.ok()) return slab.status();
    lease->slab = *slab;
  } else {
    Result<const void*> address = it->second->Admit(
        this, std::move(slabs), lease->offset_bytes, lease->image_bytes);
    if (!address.ok()) return address.status();
    lease->address = *address;
  }
  uses_.Add(*lease);
  return Status();
}

void Session::GoesBack(const Reply& reply) {
  if (const auto* lease = std::get_if<LeaseGrant>(&reply.body)) {
    uses_.RemoveLeases({&lease->id, 1});
  } else if (const auto* plan = std::get_if<PlanGrant>(&reply.body)) {
    uses_.RemovePlan(plan->id);
    ForgetPlan(plan->id);
  } else if (const auto* arena = std::get_if<ArenaGrant>(&reply.body)) {
    uses_.RemoveArena(arena->id);
  }
}

// What is asked for is used by none of this session's leases and plans, or
// hoistd errs: then it is kept. Whoever had one has finished its GPU work
// before it gave that back, as hoist_c.h demands, so that nothing is waited for
// here; and nothing can be, since whatever is being captured in the context
// would be lost by it.
void Session::OnAsk(const SlabAsk& ask) {
  if (!ready_.load()) return;  // It has sent no slab yet.
  std::vector<uint64_t> closed;
  if (const auto it = shared_devices_.find(ask.device);
      it != shared_devices_.end()) {
    closed = it->second->Close(this, ask.slabs,
                               [&](uint64_t offset, uint64_t bytes) {
                                 return uses_.Any(ask.device, offset, bytes);
                               });
  }
  connection_->Post(
      [&](uint64_t id) { return EncodeSlabsClosed(id, ask, closed); });
}

ResumeRequest Session::WhatItHas() {
  ResumeRequest has;
  if (!ready_.load()) return has;
  has.leases = uses_.Leases();
  has.arenas = uses_.Arenas();
  {
    const std::lock_guard<std::mutex> lock(plans_mu_);
    has.plans.assign(plans_.begin(), plans_.end());
  }
  for (const auto& [index, device] : shared_devices_) {
    for (const uint64_t slab : device->OpenOf(this)) {
      has.slabs.push_back({index, slab});
    }
  }
  return has;
}

Status Session::OnResumed(const ResumeReply& lost) {
  connection_->TellPlansEnded(
      lost.lost_plans,
      Status(Code::kAborted,
             "the plan has ended with the hoistd that made it; make it anew"));
  model_uses_->SayAgain();
  connection_->TellResumed();
  if (lost.lost_leases.empty()) return Status();
  return Status(Code::kUnavailable,
                "hoistd died, and the next one has not all that this session "
                "leased; connect again");
}

Status Session::ImportRing(PlanGrant* plan) {
  uses_.Add(*plan);
  {
    const std::lock_guard<std::mutex> lock(plans_mu_);
    plans_.insert(plan->id);
  }
  if (plan->slabs.empty()) return Status();
  const auto it = shared_devices_.find(*plan->slab_device);
  if (it == shared_devices_.end()) {
    return Status(Code::kInternal,
                  "hoistd planned on a device it did not name");
  }
  return it->second->Admit(this, std::exchange(plan->slabs, {}), 0, 0).status();
}

Status Session::FindSlots(uint32_t device, PlanGrant* plan) {
  if (plan->slab_device.value_or(device) != device) {
    return Status(Code::kInternal, "hoistd planned on another device");
  }
  SharedDevice& shared = *shared_devices_.at(device);
  for (PlannedGroup& group : plan->groups) {
    if (group.resident) continue;
    Result<const void*> address =
        shared.Admit(this, {}, group.offset_bytes, group.slot_bytes);
    if (!address.ok()) return address.status();
    group.address = *address;
  }
  return Status();
}

Result<HeldModel> Session::CallForModel(const Connection::Encode& encode,
                                        std::span<const int> fds,
                                        std::chrono::milliseconds deadline,
                                        std::optional<std::string> name) {
  if (forked()) return ForkedStatus();
  ModelUses::Ask ask(*model_uses_, std::move(name));
  Result<Reply> reply =
      connection_->Call(encode, fds, deadline + call_deadline_);
  if (!reply.ok()) return reply.status();
  auto* model = std::get_if<ModelPtr>(&reply->body);
  if (model == nullptr) return WrongAnswer();
  return HeldModel{*model, ask.Answered(*model)};
}

Status Session::CallForNothing(const Connection::Encode& encode) {
  if (forked()) return ForkedStatus();
  return connection_->Call(encode, {}, call_deadline_).status();
}

Result<HeldModel> Session::Register(const RegisterRequest& request) {
  const std::vector<int> fds = Borrow(request.shards, request.index);
  return CallForModel(
      [&request](uint64_t id) { return EncodeRegister(id, request); }, fds);
}

Result<HeldModel> Session::Publish(const PublishRequest& request) {
  const int fd = request.image.get();
  return CallForModel(
      [&request](uint64_t id) { return EncodePublish(id, request); },
      std::span(&fd, 1), std::chrono::milliseconds(request.deadline_ms),
      request.model);
}

Result<HeldModel> Session::Describe(const std::string& name) {
  return CallForModel(
      [&name](uint64_t id) { return EncodeDescribe(id, name); });
}

Result<HeldModel> Session::FindContent(std::span<const uint8_t> content) {
  return CallForModel(
      [content](uint64_t id) { return EncodeFindContent(id, content); });
}

Status Session::Forget(const ModelTable& model) {
  return Once(CallForNothing(
      [&model](uint64_t id) { return EncodeForget(id, model.facts().id); }));
}

// What a hoistd that died has done, the next one does not find.
Status Session::Once(Status status) const {
  const bool done_before =
      status.code() == Code::kNotFound && connection_->was_resumed();
  return done_before ? Status() : status;
}

Result<LeaseGrant> Session::Stage(const ModelTable& model, uint32_t group,
                                  uint32_t device,
                                  std::chrono::milliseconds deadline,
                                  const std::atomic<bool>* cancelled) {
  if (forked()) return ForkedStatus();
  StageRequest request;
  request.model_id = model.facts().id;
  request.group = group;
  request.device = device;
  request.deadline_ms = static_cast<uint64_t>(deadline.count());
  Result<Reply> reply = connection_->Call(
      [&request](uint64_t id) { return EncodeStage(id, request); }, {},
      deadline + call_deadline_, cancelled);
  return LeaseOf(std::move(reply), request, model);
}

Result<LeaseGrant> Session::LeaseOf(Result<Reply> reply,
                                    const StageRequest& request,
                                    const ModelTable& model) {
  if (!reply.ok()) return reply.status();
  auto* lease = std::get_if<LeaseGrant>(&reply->body);
  if (lease == nullptr) return WrongAnswer();
  if (lease->model_id != request.model_id || lease->group != request.group ||
      lease->device != request.device || lease->apart != request.apart ||
      lease->image_bytes != model.groups()[request.group].image_bytes) {
    PostRelease(lease->id);
    return WrongAnswer();
  }
  return std::move(*lease);
}

void Session::StageApart(const ModelTable& model,
                         std::span<const uint32_t> groups,
                         const ApartOptions& options, const EachLease& each) {
  const auto request_of = [&](size_t i) {
    StageRequest request;
    request.model_id = model.facts().id;
    request.group = groups[i];
    request.device = options.device;
    request.deadline_ms = static_cast<uint64_t>(options.deadline.count());
    request.apart = true;
    request.background = options.background;
    return request;
  };
  if (forked()) {
    (void)each(0, ForkedStatus());
    return;
  }
  connection_->CallMany(
      groups.size(),
      [&](size_t i, uint64_t id) { return EncodeStage(id, request_of(i)); },
      options.deadline + call_deadline_, options.cancelled,
      [&](size_t i, Result<Reply> reply) {
        return each(i, LeaseOf(std::move(reply), request_of(i), model));
      });
}

Result<KnownHeat> Session::ReportHeat(const HeatReport& report,
                                      const std::atomic<bool>* cancelled) {
  if (forked()) return ForkedStatus();
  Result<Reply> reply = connection_->Call(
      [&report](uint64_t id) { return EncodeHeat(id, report); }, {},
      call_deadline_, cancelled);
  if (!reply.ok()) return reply.status();
  auto* known = std::get_if<KnownHeat>(&reply->body);
  if (known == nullptr) return WrongAnswer();
  return std::move(*known);
}

void Session::PostHeat(const HeatReport& report) {
  if (forked()) return;
  connection_->Post([&report](uint64_t id) { return EncodeHeat(id, report); });
}

Result<DeviceFacts> Session::InPlace() const {
  if (opened_.in_place.has_value()) return *opened_.in_place;
  return Status(Code::kUnimplemented,
                "this hoistd has nothing that is read in place" +
                    (opened_.no_in_place.empty() ? std::string()
                                                 : ": " + opened_.no_in_place));
}

Status Session::ReadImage(const ModelTable& model, uint32_t group, int memfd,
                          std::chrono::milliseconds deadline) {
  if (forked()) return ForkedStatus();
  const ReadImageRequest request = {model.facts().id, group,
                                    static_cast<uint64_t>(deadline.count())};
  return connection_
      ->Call([&request](uint64_t id) { return EncodeReadImage(id, request); },
             std::span(&memfd, 1), deadline + call_deadline_)
      .status();
}

Status Session::Prefetch(const ModelTable& model,
                         std::span<const uint32_t> groups, int tier,
                         uint32_t device) {
  return CallForNothing([&, groups](uint64_t id) {
    return EncodePrefetch(id, model.facts().id, groups, tier, device);
  });
}

Status Session::SetOrder(const ModelTable& model,
                         std::span<const uint32_t> groups) {
  return CallForNothing([&model, groups](uint64_t id) {
    return EncodeSetOrder(id, model.facts().id, groups);
  });
}

Status Session::Release(uint64_t lease_id) {
  if (forked()) return ForkedStatus();
  uses_.RemoveLeases({&lease_id, 1});
  connection_->LetGo();
  return Once(connection_->CallToGiveBack(
      [&lease_id](uint64_t id) {
        return EncodeRelease(id, {&lease_id, 1});
      },
      call_deadline_));
}

void Session::PostReleases(std::span<const uint64_t> lease_ids) {
  if (forked() || lease_ids.empty()) return;
  uses_.RemoveLeases(lease_ids);
  connection_->LetGo();
  connection_->Post(
      [lease_ids](uint64_t id) { return EncodeRelease(id, lease_ids); });
}

Result<PlanGrant> Session::SetPlan(const SetPlanRequest& request) {
  if (forked()) return ForkedStatus();
  // The new plan may need the place of the old one.
  SlabUses::Places old = uses_.RemovePlan(request.replaces);
  Result<Reply> reply = connection_->Call(
      [&request](uint64_t id) { return EncodeSetPlan(id, request); }, {},
      std::chrono::milliseconds(request.deadline_ms) + call_deadline_);
  if (!reply.ok()) {
    // It may stand as before.
    if (!old.empty()) uses_.PutBack(request.replaces, std::move(old));
    return reply.status();
  }
  auto* plan = std::get_if<PlanGrant>(&reply->body);
  if (plan == nullptr) return WrongAnswer();
  ForgetPlan(request.replaces);
  if (plan->admitted.ok()) plan->admitted = FindSlots(request.device, plan);
  return std::move(*plan);
}

void Session::ForgetPlan(uint64_t plan_id) {
  const std::lock_guard<std::mutex> lock(plans_mu_);
  plans_.erase(plan_id);
}

void Session::ClearPlan(uint64_t plan_id) {
  if (forked()) return;
  uses_.RemovePlan(plan_id);
  connection_->LetGo();
  ForgetPlan(plan_id);
  // An error means that the session has ended, and the plan with it.
  (void)connection_->CallToGiveBack(
      [plan_id](uint64_t id) { return EncodeClearPlan(id, plan_id); },
      call_deadline_);
}

Result<ArenaGrant> Session::OpenArena(uint64_t bytes,
                                      std::chrono::milliseconds deadline) {
  if (forked()) return ForkedStatus();
  Result<Reply> reply = connection_->Call(
      [&](uint64_t id) {
        return EncodeOpenArena(id, bytes,
                               static_cast<uint64_t>(deadline.count()));
      },
      {}, deadline + call_deadline_);
  if (!reply.ok()) return reply.status();
  auto* arena = std::get_if<ArenaGrant>(&reply->body);
  if (arena == nullptr) return WrongAnswer();
  if (arena->bytes < bytes) {
    CloseArena(arena->id);
    return WrongAnswer();
  }
  return std::move(*arena);
}

void Session::CloseArena(uint64_t arena_id) {
  if (forked()) return;
  uses_.RemoveArena(arena_id);
  connection_->LetGo();
  // An error means that the session has ended, and the arena with it.
  (void)connection_->CallToGiveBack(
      [arena_id](uint64_t id) { return EncodeCloseArena(id, arena_id); },
      call_deadline_);
}

Status Session::CheckHeld() const {
  return forked() ? ForkedStatus() : connection_->CheckHeld();
}

Result<CopierGrant> Session::OpenCopier(const OpenCopierRequest& request,
                                        const std::atomic<bool>* cancelled) {
  if (forked()) return ForkedStatus();
  Result<Reply> reply = connection_->Call(
      [&request](uint64_t id) { return EncodeOpenCopier(id, request); }, {},
      call_deadline_, cancelled);
  if (!reply.ok()) {
    // Shares and devices were checked, so that it is the verb.
    if (reply.status().code() != Code::kInvalidArgument) return reply.status();
    return Status(Code::kUnimplemented,
                  "this hoistd grants workers' copies no turns: " +
                      reply.status().message());
  }
  auto* copier = std::get_if<CopierGrant>(&reply->body);
  if (copier == nullptr) return WrongAnswer();
  return std::move(*copier);
}

void Session::CloseCopier(uint64_t copier_id) {
  if (forked()) return;
  // An error means that the session has ended, and the copier with it.
  (void)connection_->CallToGiveBack(
      [copier_id](uint64_t id) { return EncodeCloseCopier(id, copier_id); },
      call_deadline_);
}

Lease::~Lease() {
  if (!released_.exchange(true)) session_->PostRelease(grant_.id);
}

Status Lease::Check() const {
  if (released_.load()) {
    return Status(Code::kFailedPrecondition,
                  "the lease is released; stage the group again");
  }
  return session_->Check();
}

const TensorEntry* Lease::FindTensor(std::string_view name) const {
  // The model's table knows the first tensor of each name; published groups may
  // share names, so that another group's is looked for here.
  const std::optional<TensorPlace> place = model_->FindTensor(name);
  if (!place.has_value()) return nullptr;
  if (place->group == grant_.group) return &group().tensors[place->tensor];
  for (const TensorEntry& tensor : group().tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

Status Lease::Release() {
  if (session_->forked()) return ForkedStatus();
  if (released_.exchange(true)) return Status();
  Status released = session_->Release(grant_.id);
  held_.reset();
  // A closed session has given everything back already.
  if (released.code() == Code::kFailedPrecondition) return Status();
  return released;
}

}  // namespace hoist
