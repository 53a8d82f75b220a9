// A worker's session with hoistd, and the leases it holds.
#ifndef HOIST_CLIENT_SRC_SESSION_SESSION_H_
#define HOIST_CLIENT_SRC_SESSION_SESSION_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "client/src/messages/messages.h"
#include "client/src/messages/model_table.h"
#include "client/src/model/model_uses.h"
#include "client/src/session/connection.h"
#include "client/src/session/live_plans.h"
#include "client/src/session/shared_device.h"
#include "client/src/session/slab_uses.h"
#include "hoist/c/arena.h"
#include "hoist/c/copy_permit.h"
#include "hoist/c/session.h"
#include "hoist/shared/status.h"

namespace hoist {

// The model in a reply.
struct HeldModel {
  ModelPtr table;
  ModelPtr held;  // The same; the model is in use while it exists.
};

// If the session fails and hoistd lives, leases and plans stay this process's
// until it gives them back. Only then does the connection end.
//
// Threads:  thread-safe.
// Owns:     the connection, and its share of the devices' mappings. They end
//           with it; slabs that it does not use, earlier, if hoistd asks.
class Session final : private Connection::Handler {
 public:
  // All options are set; an empty path: the first of SessionSocketsToTry() that
  // answers.
  static Result<std::shared_ptr<Session>> Connect(
      const hoist_connect_options& options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() override;

  // FailedPrecondition: forked or closed. Unavailable: hoistd is gone.
  Status Check() const;
  // This object is the parent's: do not touch it (see fork_guard.h).
  bool forked() const;
  void Close();
  uint64_t id() const { return opened_.session_id; }
  const std::array<uint8_t, 16>& instance_id() const {
    return opened_.instance_id;
  }
  const std::string& daemon_version() const { return opened_.daemon_version; }
  const std::vector<DeviceFacts>& devices() const { return opened_.devices; }
  const DeviceFacts* FindDevice(uint32_t index) const;

  using Deadline = std::optional<std::chrono::milliseconds>;
  // Plain requests. `deadline`: hoistd's own wait, if any; see CallTime. A
  // model in the answer is in use while it is held (ModelUses); `name`: its
  // name, if known. Internal: the answer is of another kind.
  Result<HeldModel> CallForModel(const Connection::Request& request,
                                 std::span<const int> fds = {},
                                 Deadline deadline = {},
                                 std::optional<std::string> name = {});
  Status CallForNothing(const Connection::Request& request,
                        Deadline deadline = {});
  // For a model that the caller holds: no new use.
  Result<ModelPtr> CallForHeld(const Connection::Request& request);
  Status Forget(const ModelTable& model);
  ModelUses& model_uses() { return *model_uses_; }
  // See ModelUses::Hold.
  ModelPtr Hold(const ModelPtr& model) { return model_uses_->Hold(model); }
  Result<LeaseGrant> Stage(const ModelTable& model, uint32_t group,
                           uint32_t device, std::chrono::milliseconds deadline,
                           const std::atomic<bool>* cancelled = nullptr);
  // Stages each group in a slab of its own, on a device or in in-place memory.
  // `each` gets the leases in order, until it returns false.
  struct ApartOptions {
    uint32_t device = 0;
    std::chrono::milliseconds deadline{0};
    bool background = false;  // Copies use unused bandwidth.
    const std::atomic<bool>* cancelled = nullptr;
  };
  using EachLease = std::function<bool(size_t i, Result<LeaseGrant>)>;
  void StageApart(const ModelTable& model, std::span<const uint32_t> groups,
                  const ApartOptions& options, const EachLease& each);
  // In-place reads, in bytes per pass. Unimplemented: this hoistd is too old to
  // store them.
  struct HeatReport {
    Hoist__V1__HeatRequest request = HOIST__V1__HEAT_REQUEST__INIT;
    KnownHeat read;  // The request's.
  };
  Result<KnownHeat> ReportHeat(const HeatReport& report,
                               const std::atomic<bool>* cancelled = nullptr);
  // Does not wait.
  void PostHeat(const HeatReport& report);
  // Unimplemented: no in-place memory; the message says why.
  Result<DeviceFacts> InPlace() const;
  // See Connection.
  void WakeCalls() { connection_->WakeCalls(); }
  Status Ping(std::chrono::milliseconds deadline,
              const std::atomic<bool>* cancelled) {
    return connection_->Ping(deadline, cancelled);
  }
  // Fills a memfd from `make`, and returns it read-only. `make` allocates the
  // image's size, and seals it against growing and shrinking only. A successor
  // of hoistd gets a new memfd: hoistd seals one before it fills it, and may
  // die in between.
  Result<UniqueFd> ReadImage(const ModelTable& model, uint32_t group,
                             const std::function<Result<UniqueFd>()>& make,
                             std::chrono::milliseconds deadline);
  Status Prefetch(const ModelTable& model, std::span<const uint32_t> groups,
                  int tier, uint32_t device);
  Status Release(uint64_t lease_id);
  // Does not wait for the answer.
  void PostRelease(uint64_t lease_id) { PostReleases({&lease_id, 1}); }
  void PostReleases(std::span<const uint64_t> lease_ids);

  // Errors are hoistd's or the connection's. If a granted plan cannot be used
  // here, the grant's `admitted` says why.
  Result<PlanGrant> SetPlan(const Hoist__V1__SetPlanRequest& request);
  // kHeard: waits until hoistd has it back; if hoistd is silent, as
  // Connection::CallToGiveBack does. kUnheard: does not wait.
  enum Heard { kHeard, kUnheard };
  void ClearPlan(uint64_t id, Heard heard = kHeard);
  LivePlans& plans() { return plans_; }

  // Returns the memory's descriptors. Unmap the memory before CloseArena.
  Result<ArenaGrant> OpenArena(const hoist_arena_options& options);
  // As ClearPlan.
  void CloseArena(uint64_t id, Heard heard = kHeard);
  void ClosePermit(uint64_t id, Heard heard = kHeard);
  // See Connection::CheckHeld; FailedPrecondition: forked.
  Status CheckHeld() const;
  // Unimplemented: this hoistd grants no copies.
  Result<PermitGrant> OpenPermit(const hoist_copy_permit_options& options,
                                 const std::atomic<bool>* cancelled);

  // See Connection.
  Status AddListener(Connection::Listener* listener) {
    return connection_->AddListener(listener);
  }
  void RemoveListener(Connection::Listener* listener) {
    connection_->RemoveListener(listener);
  }

 private:
  explicit Session(const hoist_connect_options& options);

  // A stage's answer, if it matches the request.
  Result<LeaseGrant> LeaseOf(Result<Reply> reply,
                             const Hoist__V1__StageRequest& request,
                             const ModelTable& model);
  Status IgnoreReplayedNotFound(Status status) const;
  Status Open(const hoist_connect_options& options);
  Status TryToOpen(const hoist_connect_options& options,
                   std::chrono::milliseconds deadline);
  Status Admit(Reply* reply) override;
  void GiveBack(const Reply& reply) override;
  void OnAsk(const DaemonAsk& ask) override;
  std::string PackGrants(uint64_t number, uint64_t request_id) override;
  Status OnResumed(const ResumeReply& lost) override;
  bool InUse() const override { return !uses_.empty(); }
  Status AdmitLease(LeaseGrant* lease);
  Status ImportRing(PlanGrant* plan);
  void Return(const Connection::Request& request, Heard heard);
  void CloseSlabs(const SlabAsk& ask);
  Status FindSlots(uint32_t device, PlanGrant* plan);

  const uint64_t fork_generation_;
  const std::chrono::milliseconds call_deadline_;
  OpenReply opened_;  // Fixed once Open() has returned.
  std::map<uint32_t, std::shared_ptr<SharedDevice>> shared_devices_;  // Too.
  // The two above, and connection_, can be used on the reading thread.
  std::atomic<bool> ready_{false};
  SlabUses uses_;
  std::shared_ptr<ModelUses> model_uses_;  // Shared with holders.
  LivePlans plans_;
  std::unique_ptr<Connection> connection_;
};

// The right to read an image until its release.
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
  const GroupEntry& group() const { return model_->group(grant_.group); }
  // Of this group; nullptr: no such name.
  const TensorEntry* FindTensor(std::string_view name) const;
  const Session& session() const { return *session_; }

 private:
  const std::shared_ptr<Session> session_;
  const ModelPtr model_;
  ModelPtr held_;  // Until its release.
  const LeaseGrant grant_;
  std::atomic<bool> released_{false};
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_SESSION_SESSION_H_
