#include "daemon/session/reply.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/convert/types_convert.h"
#include "hoist/v1/session.pb.h"

namespace hoistd {
namespace {

// Status messages are for people. A runaway one must not block the socket.
constexpr size_t kMaxStatusMessageBytes = 8192;

Outbound Pack(const pb::DaemonMessage& message,
              std::vector<hoist::UniqueFd> fds = {}) {
  if (message.ByteSizeLong() > hoist::kMaxBody) {
    return EncodeError(
        message.request_id(),
        absl::ResourceExhaustedError(absl::StrCat(
            "the reply has ", message.ByteSizeLong(), " bytes; a message has ",
            hoist::kMaxBody, " at most: use a model of fewer tensors")));
  }
  return {message.SerializeAsString(), std::move(fds)};
}

// Duplicates the slabs' descriptors, which are borrowed.
absl::StatusOr<std::vector<hoist::UniqueFd>> OwnSlabs(
    absl::string_view what, size_t most, std::vector<SlabUse>& slabs) {
  size_t needed = 0;
  for (const SlabUse& use : slabs) needed += use.share.fd >= 0;
  if (needed > most) {
    return absl::ResourceExhaustedError(absl::StrCat(
        what, " lies in ", needed, " slabs, and one message carries ", most,
        " descriptors; give the device larger slabs, or make the group "
        "smaller. The session is closed"));
  }
  std::vector<hoist::UniqueFd> fds;
  fds.reserve(needed + 2);
  for (SlabUse& use : slabs) {
    if (use.share.fd < 0) continue;
    hoist::UniqueFd copy(fcntl(use.share.fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) {
      return Annotate(ErrnoToStatus(errno, "copy a slab's descriptor"),
                      "raise hoistd's LimitNOFILE; the session is closed");
    }
    use.share.fd = copy.get();
    fds.push_back(std::move(copy));
  }
  return fds;
}

using Fds = std::vector<hoist::UniqueFd>;

// Each overload writes a reply's body, and returns its descriptors.
Fds Write(std::monostate, pb::DaemonMessage&) { return {}; }

Fds Write(const ModelPtr& model, pb::DaemonMessage& message) {
  ModelToProto(*model, message.mutable_model());
  return {};
}

Fds Write(Owned<LeaseGrant>& lease, pb::DaemonMessage& message) {
  std::vector<int> borrowed;
  LeaseToProto(lease.grant, message.mutable_lease(), &borrowed);
  // Both walk the slabs in order, so the indexes agree.
  HOIST_CHECK(borrowed.size() == lease.fds.size());
  return std::move(lease.fds);
}

Fds Write(Owned<ArenaGrant>& arena, pb::DaemonMessage& message) {
  std::vector<int> borrowed;
  ArenaToProto(arena.grant, message.mutable_arena(), &borrowed);
  HOIST_CHECK(borrowed.size() == arena.fds.size());
  return std::move(arena.fds);
}

Fds Write(Owned<PlanGrant>& owned, pb::DaemonMessage& message) {
  std::vector<int> borrowed;
  pb::Plan* plan = message.mutable_plan();
  PlanToProto(owned.grant, plan, &borrowed);
  const bool streams = !owned.grant.lane_order.empty();
  HOIST_CHECK(borrowed.size() + (streams ? 2 : 0) == owned.fds.size());
  if (streams) {
    plan->set_lane_fd_index(static_cast<uint32_t>(borrowed.size()));
    plan->set_wake_fd_index(static_cast<uint32_t>(borrowed.size()) + 1);
  }
  return std::move(owned.fds);
}

Fds Write(OpenedPermit& opened, pb::DaemonMessage& message) {
  pb::CopyPermit* permit = message.mutable_permit();
  permit->set_id(opened.id.number());
  permit->set_memory_fd_index(0);
  permit->set_wake_fd_index(1);
  Fds fds;
  fds.push_back(std::move(opened.memory));
  fds.push_back(std::move(opened.wake));
  return fds;
}

Fds Write(const Resumed& lost, pb::DaemonMessage& message) {
  pb::ResumeReply* resumed = message.mutable_resume();
  for (const LeaseId id : lost.lost_leases) {
    resumed->add_lost_lease_ids(id.number());
  }
  for (const PlanId id : lost.lost_plans) {
    resumed->add_lost_plan_ids(id.number());
  }
  for (const ArenaId id : lost.lost_arenas) {
    resumed->add_lost_arena_ids(id.number());
  }
  return {};
}

Fds Write(const std::vector<GroupHeat>& known, pb::DaemonMessage& message) {
  pb::Heat* heat = message.mutable_heat();
  for (const GroupHeat& one : known) {
    heat->add_groups(one.group.number());
    heat->add_heat(one.heat);
  }
  return {};
}

Fds Write(const SlabAsk& asked, pb::DaemonMessage& message) {
  pb::CloseSlabs* ask = message.mutable_close_slabs();
  ask->set_device(asked.device.number());
  ask->set_number(asked.number);
  for (const SlabId id : asked.slabs) ask->add_slab_ids(id.number());
  return {};
}

Fds Write(const GiveWay& asked, pb::DaemonMessage& message) {
  pb::GiveWay* ask = message.mutable_give_way();
  ask->set_id(asked.plan.number());
  ask->set_idle_ms(
      static_cast<uint64_t>(absl::ToInt64Milliseconds(asked.idle)));
  return {};
}

Fds Write(const Wake&, pb::DaemonMessage& message) {
  message.mutable_wake();
  return {};
}

}  // namespace

absl::StatusOr<Owned<LeaseGrant>> Own(LeaseGrant grant) {
  Owned<LeaseGrant> owned;
  HOIST_ASSIGN_OR_RETURN(
      owned.fds, OwnSlabs("the image", kMaxSlabFdsPerLease, grant.new_slabs));
  owned.grant = std::move(grant);
  return owned;
}

absl::StatusOr<Owned<PlanGrant>> Own(OpenedPlan opened) {
  Owned<PlanGrant> owned;
  HOIST_ASSIGN_OR_RETURN(
      owned.fds,
      OwnSlabs("the ring", kMaxSlabFdsPerLease - 2, opened.grant.new_slabs));
  owned.grant = std::move(opened.grant);
  if (!opened.lane.valid()) return owned;
  owned.fds.push_back(std::move(opened.lane));
  owned.fds.push_back(std::move(opened.wake));
  return owned;
}

absl::StatusOr<Owned<ArenaGrant>> Own(ArenaGrant grant) {
  Owned<ArenaGrant> owned;
  HOIST_ASSIGN_OR_RETURN(
      owned.fds, OwnSlabs("the arena", kMaxSlabFdsPerLease, grant.slabs));
  owned.grant = std::move(grant);
  return owned;
}

Outbound EncodeError(uint64_t request_id, const absl::Status& status) {
  pb::DaemonMessage message;
  message.set_request_id(request_id);
  message.set_code(static_cast<int32_t>(status.code()));
  const absl::string_view text =
      status.message().substr(0, kMaxStatusMessageBytes);
  message.set_message(std::string(text));
  return {message.SerializeAsString(), {}};
}

Outbound EncodeOpened(uint64_t request_id, SessionId session,
                      const NodeFacts& facts, const InstanceId& instance) {
  pb::DaemonMessage message;
  message.set_request_id(request_id);
  pb::OpenSessionReply* opened = message.mutable_open_session();
  opened->set_session_id(session.number());
  opened->set_daemon_version(facts.version);
  opened->set_instance_id(instance.data(), instance.size());
  opened->set_no_in_place(facts.no_in_place);
  for (const DeviceView& device : facts.devices) {
    if (device.info.arenas_alone) continue;
    DeviceToProto(device, device.info.kind == DeviceKind::kInPlace
                              ? opened->mutable_in_place()
                              : opened->add_devices());
  }
  return Pack(message);
}

Outbound EncodeResumed(uint64_t number) {
  pb::DaemonMessage message;
  message.mutable_resumed()->set_number(number);
  return Pack(message);
}

Outbound EncodeReply(Reply reply) {
  if (!reply.status.ok()) {
    return EncodeError(reply.ticket.request_id, reply.status);
  }
  pb::DaemonMessage message;
  message.set_request_id(reply.ticket.request_id);
  const auto* model = std::get_if<ModelPtr>(&reply.body);
  if (model != nullptr && !reply.ticket.group_alone.empty()) {
    PublishedToProto(**model, reply.ticket.group_alone,
                     message.mutable_model());
    return Pack(message);
  }
  Fds fds =
      std::visit([&](auto& body) { return Write(body, message); }, reply.body);
  return Pack(message, std::move(fds));
}

}  // namespace hoistd
