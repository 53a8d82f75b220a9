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

}  // namespace

absl::StatusOr<OwnedGrant> OwnGrant(LeaseGrant grant) {
  size_t needed = 0;
  for (const SlabUse& use : grant.new_slabs) needed += use.share.fd >= 0;
  if (needed > kMaxSlabFdsPerLease) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the image lies in ", needed, " slabs, and one message carries ",
        kMaxSlabFdsPerLease,
        " descriptors; give the device larger slabs, or make the group "
        "smaller. The session is closed"));
  }
  OwnedGrant owned;
  owned.fds.reserve(needed);
  for (SlabUse& use : grant.new_slabs) {
    if (use.share.fd < 0) continue;
    hoist::UniqueFd copy(fcntl(use.share.fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) {
      return Annotate(ErrnoToStatus(errno, "copy a slab's descriptor"),
                      "raise hoistd's LimitNOFILE; the session is closed");
    }
    use.share.fd = copy.get();
    owned.fds.push_back(std::move(copy));
  }
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
  for (const DeviceView& device : facts.devices) {
    DeviceToProto(device, opened->add_devices());
  }
  return Pack(message);
}

Outbound EncodeReply(Reply reply) {
  if (!reply.status.ok()) {
    return EncodeError(reply.ticket.request_id, reply.status);
  }
  pb::DaemonMessage message;
  message.set_request_id(reply.ticket.request_id);
  if (reply.model != nullptr) {
    ModelToProto(*reply.model, message.mutable_model());
  } else if (reply.lease != nullptr) {
    std::vector<int> borrowed;
    LeaseToProto(reply.lease->grant, message.mutable_lease(), &borrowed);
    // Both walk the slabs in order, so the indexes agree.
    HOIST_CHECK(borrowed.size() == reply.lease->fds.size());
    return Pack(message, std::move(reply.lease->fds));
  }
  return Pack(message);
}

}  // namespace hoistd
