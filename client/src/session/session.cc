#include "client/src/session/session.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "client/src/base/fork_guard.h"

namespace hoist {
namespace {

Status WrongAnswer() {
  return Status(Code::kInternal,
                "hoistd answered with something that was not asked for");
}

template <typename Body>
Result<Body> Take(Result<Reply> reply) {
  if (!reply.ok()) return reply.status();
  if (auto* body = std::get_if<Body>(&reply->body)) return std::move(*body);
  return WrongAnswer();
}

Hoist__V1__StageRequest StageOf(const ModelTable& model, uint32_t group,
                                uint32_t device,
                                std::chrono::milliseconds deadline) {
  Hoist__V1__StageRequest request = HOIST__V1__STAGE_REQUEST__INIT;
  request.model_id = model.facts().id;
  request.group = group;
  request.device = device;
  request.deadline_ms = static_cast<uint64_t>(deadline.count());
  return request;
}

// Those that the session has mapped.
Repeated<Hoist__V1__ResumeRequest__OpenSlab> OpenSlabs(
    const std::map<uint32_t, std::shared_ptr<SharedDevice>>& devices,
    const Session* session) {
  Repeated<Hoist__V1__ResumeRequest__OpenSlab> slabs;
  for (const auto& [index, device] : devices) {
    for (const uint64_t slab : device->OpenOf(session)) {
      slabs.Add(HOIST__V1__RESUME_REQUEST__OPEN_SLAB__INIT);
      slabs.back().device = index;
      slabs.back().slab_id = slab;
    }
  }
  return slabs;
}

struct HeatMessage {
  explicit HeatMessage(const Session::HeatReport& report)
      : request(report.request) {
    std::tie(heat.n_groups, heat.groups) = Items(report.read.groups);
    std::tie(heat.n_heat, heat.heat) = Items(report.read.heat);
    request.heat = &heat;
  }
  HeatMessage(const HeatMessage&) = delete;
  HeatMessage& operator=(const HeatMessage&) = delete;

  Hoist__V1__HeatRequest request;
  Hoist__V1__Heat heat = HOIST__V1__HEAT__INIT;
};

Hoist__V1__ReleaseRequest ReleaseOf(std::span<const uint64_t> lease_ids) {
  Hoist__V1__ReleaseRequest request = HOIST__V1__RELEASE_REQUEST__INIT;
  std::tie(request.n_lease_ids, request.lease_ids) = Items(lease_ids);
  return request;
}

// See ModelUses::Say.
void PostDone(Connection& connection, uint64_t model, bool forget,
              const Connection::Still& still) {
  Hoist__V1__SetOrderRequest none = HOIST__V1__SET_ORDER_REQUEST__INIT;
  std::tie(none.model_id, none.forget) = std::pair(model, forget);
  connection.Post(none.base, still);
}

}  // namespace

Session::Session(const hoist_connect_options& options)
    : fork_generation_(ForkGeneration()),
      call_deadline_(options.call_deadline_ms) {}

Session::~Session() {
  Close();
  // In the child of a fork the parent counts the mappings.
  if (forked()) return;
  for (const auto& [index, device] : shared_devices_) device->Leave(this);
}

bool Session::forked() const { return fork_generation_ != ForkGeneration(); }

Result<std::shared_ptr<Session>> Session::Connect(
    const hoist_connect_options& options) {
  std::shared_ptr<Session> session(new Session(options));
  session->model_uses_ = std::make_shared<ModelUses>(
      [weak = std::weak_ptr(session)](uint64_t model, bool forget,
                                      const Connection::Still& still) {
        const auto alive = weak.lock();
        if (alive) PostDone(*alive->connection_, model, forget, still);
      });
  if (Status s = session->Open(options); !s.ok()) return s;
  return session;
}

// A hoistd that dies during this call counts as one that does not listen yet.
Status Session::Open(const hoist_connect_options& options) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end =
      Clock::now() + std::chrono::milliseconds(options.connect_deadline_ms);
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

Status Session::TryToOpen(const hoist_connect_options& options,
                          std::chrono::milliseconds deadline) {
  Close();  // The reading thread uses connection_.
  connection_.reset();
  Result<UniqueFd> socket =
      ConnectSocket(options.socket_path, deadline, call_deadline_);
  if (!socket.ok()) return socket.status();
  connection_ = std::make_unique<Connection>(
      std::move(socket).value(), static_cast<Connection::Handler*>(this));
  Hoist__V1__OpenSessionRequest request = HOIST__V1__OPEN_SESSION_REQUEST__INIT;
  request.client_name = Text(options.client_name);
  request.device_budget_bytes = options.device_budget_bytes;
  request.closes_slabs = 1;
  request.resumes = 1;
  Result<Reply> reply = connection_->Call(request.base, {}, {call_deadline_});
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

// Runs on the reading thread. No lease is requested before Open() has filled
// `shared_devices_`; the lock of the request table orders the two.
Status Session::Admit(Reply* reply) {
  if (auto* lease = std::get_if<LeaseGrant>(&reply->body)) {
    return AdmitLease(lease);
  }
  // hoistd has set the plan, and perhaps ended another for it, even if the plan
  // cannot be used here. The caller must learn both.
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

void Session::GiveBack(const Reply& reply) {
  if (const auto* lease = std::get_if<LeaseGrant>(&reply.body)) {
    PostRelease(lease->id);
  } else if (const auto* plan = std::get_if<PlanGrant>(&reply.body)) {
    ClearPlan(plan->info.id, kUnheard);
  } else if (const auto* arena = std::get_if<ArenaGrant>(&reply.body)) {
    CloseArena(arena->id, kUnheard);
  } else if (const auto* permit = std::get_if<PermitGrant>(&reply.body)) {
    ClosePermit(permit->id, kUnheard);
  }
}

void Session::OnAsk(const DaemonAsk& ask) {
  if (const auto* slabs = std::get_if<SlabAsk>(&ask)) return CloseSlabs(*slabs);
  plans_.Asked(ask);
}

// hoistd asks for slabs that no lease or plan of this session uses; if it errs,
// they are kept.
//
// This does not wait for the GPU: holders finish their GPU work before they
// release (hoist/c/stage.h). A wait would also invalidate any capture under way
// in the context.
void Session::CloseSlabs(const SlabAsk& ask) {
  if (!ready_.load()) return;  // It has sent no slab yet.
  std::vector<uint64_t> closed;
  if (const auto it = shared_devices_.find(ask.device);
      it != shared_devices_.end()) {
    closed = it->second->Close(this, ask.slabs,
                               [&](uint64_t offset, uint64_t bytes) {
                                 return uses_.Any(ask.device, offset, bytes);
                               });
  }
  Hoist__V1__SlabsClosedRequest answer = HOIST__V1__SLABS_CLOSED_REQUEST__INIT;
  answer.device = ask.device;
  answer.number = ask.number;
  std::tie(answer.n_slab_ids, answer.slab_ids) = Items(closed);
  connection_->Post(answer.base);
}

std::string Session::PackGrants(uint64_t number, uint64_t request_id) {
  Hoist__V1__ResumeRequest request = HOIST__V1__RESUME_REQUEST__INIT;
  request.number = number;
  if (!ready_.load()) return Pack(request_id, request.base);
  const std::vector<uint64_t> leases = uses_.Leases();
  std::tie(request.n_lease_ids, request.lease_ids) = Items(leases);
  const std::vector<uint64_t> arenas = uses_.Arenas();
  std::tie(request.n_arena_ids, request.arena_ids) = Items(arenas);
  const std::vector<uint64_t> plans = plans_.Ids();
  std::tie(request.n_plan_ids, request.plan_ids) = Items(plans);
  const auto models = model_uses_->InUse();
  request.knows_models = models.has_value();
  if (models) {
    std::tie(request.n_model_ids, request.model_ids) = Items(*models);
  }
  auto slabs = OpenSlabs(shared_devices_, this);
  std::tie(request.n_slabs, request.slabs) = slabs.Items();
  return Pack(request_id, request.base);
}

Status Session::OnResumed(const ResumeReply& lost) {
  connection_->TellPlansEnded(
      lost.lost_plans,
      Status(Code::kAborted,
             "the plan has ended with the hoistd that made it; make it anew"));
  // This is the reading thread, which must not come to own the session.
  model_uses_->SayAgain([this](uint64_t model, bool forget, const auto& still) {
    PostDone(*connection_, model, forget, still);
  });
  connection_->TellResumed();
  if (lost.lost_leases.empty()) return Status();
  return Status(Code::kUnavailable,
                "hoistd died, and the next one has not all that this session "
                "leased; connect again");
}

Status Session::ImportRing(PlanGrant* plan) {
  uses_.Add(*plan);
  plans_.Add(plan->info.id);
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

Result<HeldModel> Session::CallForModel(const Connection::Request& request,
                                        std::span<const int> fds,
                                        Deadline deadline,
                                        std::optional<std::string> name) {
  if (forked()) return ForkedStatus();
  ModelUses::Ask ask(*model_uses_, std::move(name));
  auto model = Take<ModelPtr>(
      connection_->Call(request, fds, {call_deadline_, deadline}));
  if (!model.ok()) return model.status();
  return HeldModel{*model, ask.Answered(*model)};
}

Result<ModelPtr> Session::CallForHeld(const Connection::Request& request) {
  if (forked()) return ForkedStatus();
  return Take<ModelPtr>(connection_->Call(request, {}, {call_deadline_}));
}

Status Session::CallForNothing(const Connection::Request& request,
                               Deadline deadline) {
  if (forked()) return ForkedStatus();
  return connection_->Call(request, {}, {call_deadline_, deadline}).status();
}

Status Session::Forget(const ModelTable& model) {
  Hoist__V1__ForgetModelRequest request = HOIST__V1__FORGET_MODEL_REQUEST__INIT;
  request.model_id = model.facts().id;
  return IgnoreReplayedNotFound(CallForNothing(request.base));
}

// For a request that was repeated to the next hoistd, NotFound means that the
// previous one has done it.
Status Session::IgnoreReplayedNotFound(Status status) const {
  const bool done_before =
      status.code() == Code::kNotFound && connection_->was_resumed();
  return done_before ? Status() : status;
}

Result<LeaseGrant> Session::Stage(const ModelTable& model, uint32_t group,
                                  uint32_t device,
                                  std::chrono::milliseconds deadline,
                                  const std::atomic<bool>* cancelled) {
  if (forked()) return ForkedStatus();
  const auto request = StageOf(model, group, device, deadline);
  Result<Reply> reply = connection_->Call(
      request.base, {}, {call_deadline_, deadline}, cancelled);
  return LeaseOf(std::move(reply), request, model);
}

Result<LeaseGrant> Session::LeaseOf(Result<Reply> reply,
                                    const Hoist__V1__StageRequest& request,
                                    const ModelTable& model) {
  auto lease = Take<LeaseGrant>(std::move(reply));
  if (!lease.ok()) return lease;
  if (lease->model_id != request.model_id || lease->group != request.group ||
      lease->device != request.device || lease->apart != (request.apart != 0) ||
      lease->image_bytes != model.group(request.group).image_bytes) {
    PostRelease(lease->id);
    return WrongAnswer();
  }
  return lease;
}

void Session::StageApart(const ModelTable& model,
                         std::span<const uint32_t> groups,
                         const ApartOptions& options, const EachLease& each) {
  if (forked()) {
    (void)each(0, ForkedStatus());
    return;
  }
  std::vector<Hoist__V1__StageRequest> requests;
  requests.reserve(groups.size());
  for (const uint32_t group : groups) {
    requests.push_back(StageOf(model, group, options.device, options.deadline));
    requests.back().apart = 1;
    requests.back().background = options.background ? 1 : 0;
  }
  connection_->CallMany(requests, {call_deadline_, options.deadline},
                        options.cancelled, [&](size_t i, Result<Reply> reply) {
                          return each(
                              i, LeaseOf(std::move(reply), requests[i], model));
                        });
}

Result<KnownHeat> Session::ReportHeat(const HeatReport& report,
                                      const std::atomic<bool>* cancelled) {
  if (forked()) return ForkedStatus();
  HeatMessage message(report);
  return Take<KnownHeat>(
      connection_->Call(message.request.base, {}, {call_deadline_}, cancelled));
}

void Session::PostHeat(const HeatReport& report) {
  if (!forked()) connection_->Post(HeatMessage(report).request.base);
}

Result<DeviceFacts> Session::InPlace() const {
  if (opened_.in_place.has_value()) return *opened_.in_place;
  return Status(Code::kUnimplemented,
                "this hoistd has nothing that is read in place" +
                    (opened_.no_in_place.empty() ? std::string()
                                                 : ": " + opened_.no_in_place));
}

Result<UniqueFd> Session::ReadImage(
    const ModelTable& model, uint32_t group,
    const std::function<Result<UniqueFd>()>& make,
    std::chrono::milliseconds deadline) {
  using std::chrono::milliseconds;
  if (forked()) return ForkedStatus();
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (true) {
    Result<UniqueFd> memfd = make();
    if (!memfd.ok()) return memfd;
    const milliseconds left = std::max(
        std::chrono::ceil<milliseconds>(end - std::chrono::steady_clock::now()),
        milliseconds(0));
    Hoist__V1__ReadImageRequest request = HOIST__V1__READ_IMAGE_REQUEST__INIT;
    request.model_id = model.facts().id;
    request.group = group;
    request.deadline_ms = static_cast<uint64_t>(left.count());
    const int fd = memfd->get();
    Result<Reply> reply = connection_->CallOnce(request.base, std::span(&fd, 1),
                                                {call_deadline_, left});
    if (!reply.ok()) return reply.status();
    if (!std::holds_alternative<Resumed>(reply->body)) return memfd;
  }
}

Status Session::Prefetch(const ModelTable& model,
                         std::span<const uint32_t> groups, int tier,
                         uint32_t device) {
  Hoist__V1__PrefetchRequest request = HOIST__V1__PREFETCH_REQUEST__INIT;
  request.model_id = model.facts().id;
  std::tie(request.n_groups, request.groups) = Items(groups);
  request.tier = static_cast<Hoist__V1__Tier>(tier);
  request.device = device;
  return CallForNothing(request.base);
}

Status Session::Release(uint64_t lease_id) {
  if (forked()) return ForkedStatus();
  uses_.RemoveLeases({&lease_id, 1});
  connection_->Release();
  return IgnoreReplayedNotFound(connection_->CallToGiveBack(
      ReleaseOf({&lease_id, 1}).base, call_deadline_));
}

void Session::PostReleases(std::span<const uint64_t> lease_ids) {
  if (forked() || lease_ids.empty()) return;
  uses_.RemoveLeases(lease_ids);
  connection_->Release();
  connection_->Post(ReleaseOf(lease_ids).base);
}

Result<PlanGrant> Session::SetPlan(const Hoist__V1__SetPlanRequest& request) {
  if (forked()) return ForkedStatus();
  // The new plan may need the old plan's place.
  SlabUses::Places old = uses_.RemovePlan(request.replaces);
  auto plan = Take<PlanGrant>(connection_->Call(
      request.base, {},
      {call_deadline_, std::chrono::milliseconds(request.deadline_ms)}));
  if (!plan.ok()) {
    // The old plan may still stand.
    if (!old.empty()) uses_.PutBack(request.replaces, std::move(old));
    return plan;
  }
  plans_.Forget(request.replaces);
  if (plan->admitted.ok()) plan->admitted = FindSlots(request.device, &*plan);
  return plan;
}

// An error means that the session has ended, with all its holdings.
void Session::Return(const Connection::Request& request, Heard heard) {
  connection_->Release();
  if (heard == kUnheard) return connection_->Post(request);
  (void)connection_->CallToGiveBack(request, call_deadline_);
}

void Session::ClearPlan(uint64_t id, Heard heard) {
  if (forked()) return;
  uses_.RemovePlan(id);
  plans_.Forget(id);
  Hoist__V1__ClearPlanRequest request = HOIST__V1__CLEAR_PLAN_REQUEST__INIT;
  request.plan_id = id;
  Return(request.base, heard);
}

Result<ArenaGrant> Session::OpenArena(const hoist_arena_options& options) {
  if (forked()) return ForkedStatus();
  Hoist__V1__OpenArenaRequest request = HOIST__V1__OPEN_ARENA_REQUEST__INIT;
  request.size_bytes = options.bytes;
  request.deadline_ms = options.deadline_ms;
  auto arena = Take<ArenaGrant>(connection_->Call(
      request.base, {},
      {call_deadline_, std::chrono::milliseconds(options.deadline_ms)}));
  if (!arena.ok()) return arena;
  if (arena->bytes < options.bytes) {
    CloseArena(arena->id);
    return WrongAnswer();
  }
  return arena;
}

void Session::CloseArena(uint64_t id, Heard heard) {
  if (forked()) return;
  uses_.RemoveArena(id);
  Hoist__V1__CloseArenaRequest request = HOIST__V1__CLOSE_ARENA_REQUEST__INIT;
  request.arena_id = id;
  Return(request.base, heard);
}

Status Session::CheckHeld() const {
  return forked() ? ForkedStatus() : connection_->CheckHeld();
}

Result<PermitGrant> Session::OpenPermit(
    const hoist_copy_permit_options& options,
    const std::atomic<bool>* cancelled) {
  if (forked()) return ForkedStatus();
  Hoist__V1__Share share = ShareOf(options);
  Hoist__V1__OpenPermitRequest request = HOIST__V1__OPEN_PERMIT_REQUEST__INIT;
  request.device = options.device;
  request.share = &share;
  auto permit = Take<PermitGrant>(
      connection_->Call(request.base, {}, {call_deadline_}, cancelled));
  const Status why = permit.status();
  if (why.code() != Code::kInvalidArgument) return permit;
  // Share and device are valid, so hoistd does not know the verb.
  return Status(Code::kUnimplemented,
                "this hoistd grants no copy permits: " + why.message());
}

void Session::ClosePermit(uint64_t id, Heard heard) {
  if (forked()) return;
  Hoist__V1__ClosePermitRequest request = HOIST__V1__CLOSE_PERMIT_REQUEST__INIT;
  request.permit_id = id;
  Return(request.base, heard);
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
  // The table finds the first tensor of a name. Published groups may share
  // names, so this group's tensor may be another.
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
  // A closed session has released everything already.
  if (released.code() == Code::kFailedPrecondition) return Status();
  return released;
}

}  // namespace hoist
