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

// A status message is for people; a runaway one must not block the socket.
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

// Copies the slabs' descriptors, which are only borrowed.
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

}  // namespace

absl::StatusOr<OwnedGrant> OwnGrant(LeaseGrant grant) {
  OwnedGrant owned;
  HOIST_ASSIGN_OR_RETURN(
      owned.fds, OwnSlabs("the image", kMaxSlabFdsPerLease, grant.new_slabs));
  owned.grant = std::move(grant);
  return owned;
}

absl::StatusOr<OwnedPlan> OwnPlan(OpenedPlan opened) {
  OwnedPlan owned;
  HOIST_ASSIGN_OR_RETURN(
      owned.fds,
      OwnSlabs("the ring", kMaxSlabFdsPerLease - 2, opened.grant.new_slabs));
  owned.grant = std::move(opened.grant);
  if (!opened.lane.valid()) return owned;
  owned.fds.push_back(std::move(opened.lane));
  owned.fds.push_back(std::move(opened.wake));
  return owned;
}

absl::StatusOr<OwnedArena> OwnArena(ArenaGrant grant) {
  OwnedArena owned;
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
  if (reply.ask != nullptr) {
    pb::CloseSlabs* ask = message.mutable_close_slabs();
    ask->set_device(reply.ask->device.number());
    ask->set_number(reply.ask->number);
    for (const SlabId id : reply.ask->slabs) ask->add_slab_ids(id.number());
  } else if (reply.resumed != nullptr) {
    pb::ResumeReply* resumed = message.mutable_resume();
    for (const LeaseId id : reply.resumed->lost_leases) {
      resumed->add_lost_lease_ids(id.number());
    }
    for (const PlanId id : reply.resumed->lost_plans) {
      resumed->add_lost_plan_ids(id.number());
    }
    for (const ArenaId id : reply.resumed->lost_arenas) {
      resumed->add_lost_arena_ids(id.number());
    }
  } else if (reply.heat != nullptr) {
    pb::Heat* heat = message.mutable_heat();
    for (const GroupHeat& one : *reply.heat) {
      heat->add_groups(one.group.number());
      heat->add_heat(one.heat);
    }
  } else if (reply.copier != nullptr) {
    pb::Copier* copier = message.mutable_copier();
    copier->set_id(reply.copier->id.number());
    copier->set_memory_fd_index(0);
    copier->set_wake_fd_index(1);
    std::vector<hoist::UniqueFd> fds;
    fds.push_back(std::move(reply.copier->memory));
    fds.push_back(std::move(reply.copier->wake));
    return Pack(message, std::move(fds));
  } else if (reply.model != nullptr) {
    ModelToProto(*reply.model, message.mutable_model());
  } else if (reply.lease != nullptr) {
    std::vector<int> borrowed;
    LeaseToProto(reply.lease->grant, message.mutable_lease(), &borrowed);
    // Both walk the slabs in order, so the indexes agree.
    HOIST_CHECK(borrowed.size() == reply.lease->fds.size());
    return Pack(message, std::move(reply.lease->fds));
  } else if (reply.arena != nullptr) {
    std::vector<int> borrowed;
    ArenaToProto(reply.arena->grant, message.mutable_arena(), &borrowed);
    HOIST_CHECK(borrowed.size() == reply.arena->fds.size());
    return Pack(message, std::move(reply.arena->fds));
  } else if (reply.plan != nullptr) {
    std::vector<int> borrowed;
    pb::Plan* plan = message.mutable_plan();
    PlanToProto(reply.plan->grant, plan, &borrowed);
    const bool streams = !reply.plan->grant.lane_order.empty();
    HOIST_CHECK(borrowed.size() + (streams ? 2 : 0) == reply.plan->fds.size());
    if (streams) {
      plan->set_lane_fd_index(static_cast<uint32_t>(borrowed.size()));
      plan->set_wake_fd_index(static_cast<uint32_t>(borrowed.size()) + 1);
    }
    return Pack(message, std::move(reply.plan->fds));
  }
  return Pack(message);
}

}  // namespace hoistd
