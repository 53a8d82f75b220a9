// A worker's session with hoistd, and the leases it holds.
#ifndef HOIST_CLIENT_SRC_SESSION_H_
#define HOIST_CLIENT_SRC_SESSION_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "client/src/connection.h"
#include "client/src/messages.h"
#include "client/src/model_table.h"
#include "client/src/model_uses.h"
#include "client/src/shared_device.h"
#include "client/src/slab_uses.h"
#include "hoist/shared/status.h"

namespace hoist {

struct ConnectOptions {
  std::string socket_path;  // "": the first of SessionSocketsToTry().
  std::string client_name;
  uint64_t device_budget_bytes = 0;
  std::chrono::milliseconds connect_deadline{0};
  std::chrono::milliseconds call_deadline{600'000};
};

// A model that a request was answered with.
struct HeldModel {
  ModelPtr table;
  ModelPtr held;  // The same, in use for as long as this is there.
};

// Where the session fails, what is leased or planned stays this process's until
// it is given back here, if hoistd lives: only then does the connection end.
//
// Threads:  thread-safe.
// Owns:     the connection and its share of the devices' mappings, which go
//           with it; slabs in which it has neither a lease nor a plan's ring go
//           before, if hoistd asks for them.
class Session final : private Connection::Handler {
 public:
  static Result<std::shared_ptr<Session>> Connect(
      const ConnectOptions& options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() override;

  // FailedPrecondition: forked or closed. Unavailable: hoistd is gone.
  Status Check() const;
  // This object is the parent's: leave it be (see fork_guard.h).
  bool forked() const;
  void Close();
  uint64_t id() const { return opened_.session_id; }
  const std::array<uint8_t, 16>& instance_id() const {
    return opened_.instance_id;
  }
  const std::string& daemon_version() const { return opened_.daemon_version; }
  const std::vector<DeviceFacts>& devices() const { return opened_.devices; }
  const DeviceFacts* FindDevice(uint32_t index) const;

  // What hoistd answers with is in use, as long as it is held (ModelUses).
  Result<HeldModel> Register(const RegisterRequest& request);
  Result<HeldModel> Publish(const PublishRequest& request);
  Result<HeldModel> Describe(const std::string& name);
  // `content`: 32 bytes.
  Result<HeldModel> FindContent(std::span<const uint8_t> content);
  Status Forget(const ModelTable& model);
  ModelUses& model_uses() { return *model_uses_; }
  // For what uses it in this session, however it came by it.
  ModelPtr Hold(const ModelPtr& model) { return model_uses_->Hold(model); }
  Result<LeaseGrant> Stage(const ModelTable& model, uint32_t group,
                           uint32_t device, std::chrono::milliseconds deadline,
                           const std::atomic<bool>* cancelled = nullptr);
  // Each of the groups in a slab of its own, on a device or on what is read in
  // place; `each` gets the leases in order, until it says false.
  struct ApartOptions {
    uint32_t device = 0;
    std::chrono::milliseconds deadline{0};
    bool background = false;  // What it copies is in nobody's way.
    const std::atomic<bool>* cancelled = nullptr;
  };
  using EachLease = std::function<bool(size_t i, Result<LeaseGrant>)>;
  void StageApart(const ModelTable& model, std::span<const uint32_t> groups,
                  const ApartOptions& options, const EachLease& each);
  // Unimplemented: this hoistd is too old to remember it.
  Result<KnownHeat> ReportHeat(const HeatReport& report,
                               const std::atomic<bool>* cancelled = nullptr);
  // Waits for nothing.
  void PostHeat(const HeatReport& report);
  // Unimplemented: this hoistd has none, and why.
  Result<DeviceFacts> InPlace() const;
  // See Connection.
  void WakeCalls() { connection_->WakeCalls(); }
  Status Ping(std::chrono::milliseconds deadline,
              const std::atomic<bool>* cancelled) {
    return connection_->Ping(deadline, cancelled);
  }
  // Into `memfd`, of the image's size and allocated, sealed against growing and
  // shrinking alone. On success it cannot be written any more.
  Status ReadImage(const ModelTable& model, uint32_t group, int memfd,
                   std::chrono::milliseconds deadline);
  Status Prefetch(const ModelTable& model, std::span<const uint32_t> groups,
                  int tier, uint32_t device);
  Status SetOrder(const ModelTable& model, std::span<const uint32_t> groups);
  Status Release(uint64_t lease_id);
  // Without waiting for the answer.
  void PostRelease(uint64_t lease_id) { PostReleases({&lease_id, 1}); }
  void PostReleases(std::span<const uint64_t> lease_ids);

  // An error is hoistd's answer or the connection's; where hoistd granted what
  // cannot be used here, the grant's `admitted` says why.
  Result<PlanGrant> SetPlan(const SetPlanRequest& request);
  // Waits until hoistd has the plan's memory back; of a silent hoistd, as
  // Connection::CallToGiveBack does.
  void ClearPlan(uint64_t plan_id);

  // The memory's descriptors; whoever maps it says when it has let go of it.
  Result<ArenaGrant> OpenArena(uint64_t bytes,
                               std::chrono::milliseconds deadline);
  // As ClearPlan.
  void CloseArena(uint64_t arena_id);
  // See Connection::CheckHeld; FailedPrecondition: forked.
  Status CheckHeld() const;
  // Unimplemented: this hoistd grants no copies.
  Result<CopierGrant> OpenCopier(const OpenCopierRequest& request,
                                 const std::atomic<bool>* cancelled);
  // Waits as ClearPlan does.
  void CloseCopier(uint64_t copier_id);

  // See Connection.
  Status AddListener(Connection::Listener* listener) {
    return connection_->AddListener(listener);
  }
  void RemoveListener(Connection::Listener* listener) {
    connection_->RemoveListener(listener);
  }

 private:
  explicit Session(std::chrono::milliseconds call_deadline);

  // Call's Internal where hoistd's answer is not the one that was asked for.
  // `deadline`: what hoistd may wait for, beside the time that a call takes.
  // `name`: of a model that alone can be the answer.
  Result<HeldModel> CallForModel(const Connection::Encode& encode,
                                 std::span<const int> fds = {},
                                 std::chrono::milliseconds deadline = {},
                                 std::optional<std::string> name = {});
  Status CallForNothing(const Connection::Encode& encode);
  // What a stage was answered with, if it is what was asked for.
  Result<LeaseGrant> LeaseOf(Result<Reply> reply, const StageRequest& request,
                             const ModelTable& model);
  Status Once(Status status) const;
  Status Open(const ConnectOptions& options);
  Status TryToOpen(const ConnectOptions& options,
                   std::chrono::milliseconds deadline);
  Status Admit(Reply* reply) override;
  void GoesBack(const Reply& reply) override;
  void OnAsk(const SlabAsk& ask) override;
  ResumeRequest WhatItHas() override;
  Status OnResumed(const ResumeReply& lost) override;
  bool InUse() const override { return !uses_.empty(); }
  Status AdmitLease(LeaseGrant* lease);
  Status ImportRing(PlanGrant* plan);
  void ForgetPlan(uint64_t plan_id);
  Status FindSlots(uint32_t device, PlanGrant* plan);

  const uint64_t fork_generation_;
  const std::chrono::milliseconds call_deadline_;
  OpenReply opened_;  // Fixed once Open() has returned.
  std::map<uint32_t, std::shared_ptr<SharedDevice>> shared_devices_;  // Too.
  // The two above, and connection_, can be used on the reading thread.
  std::atomic<bool> ready_{false};
  SlabUses uses_;
  const std::shared_ptr<ModelUses> model_uses_;  // Also of all that hold one.
  std::mutex plans_mu_;
  std::set<uint64_t> plans_;  // That stand; guarded by plans_mu_.
  std::unique_ptr<Connection> connection_;
};

// The right to read an image until it is released.
//
// Threads:  thread-safe.
class Lease {
 public:
  Lease(std::shared_ptr<Session> session, HeldModel model, LeaseGrant grant)
      : session_(std::move(session)),
        model_(std::move(model.table)),
        held_(std::move(model.held)),
        grant_(std::move(grant)) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease();

  // Whether the image may be read; see hoist_lease_check.
  Status Check() const;
  Status Release();
  const LeaseGrant& grant() const { return grant_; }
  const GroupEntry& group() const { return model_->groups()[grant_.group]; }
  // Of this group; nullptr if it has none of that name.
  const TensorEntry* FindTensor(std::string_view name) const;
  const Session& session() const { return *session_; }

 private:
  const std::shared_ptr<Session> session_;
  const ModelPtr model_;
  ModelPtr held_;  // Until it is released, by whoever releases it.
  const LeaseGrant grant_;
  std::atomic<bool> released_{false};
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_SESSION_H_
