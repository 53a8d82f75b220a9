#include "daemon/session/request_convert.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/convert/types_convert.h"
#include "hoist/shared/wire.h"

namespace hoistd {
namespace {

// An index can be taken only once.
absl::StatusOr<hoist::UniqueFd> TakeFd(absl::string_view what, uint32_t index,
                                       std::vector<hoist::UniqueFd>& fds) {
  if (index >= fds.size()) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is descriptor ",
                                                   index, ", but ", fds.size(),
                                                   " came with the message"));
  }
  if (!fds[index].valid()) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " is descriptor ", index, ", which the message names twice"));
  }
  return std::move(fds[index]);
}

absl::Status CheckAllTaken(const std::vector<hoist::UniqueFd>& fds) {
  for (size_t i = 0; i < fds.size(); ++i) {
    if (!fds[i].valid()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "descriptor ", i, " came with the message, which does not name it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenFile> FileFromProto(
    const hoist::v1::RegisterModelRequest::File& file,
    std::vector<hoist::UniqueFd>& fds) {
  OpenFile open;
  HOIST_ASSIGN_OR_RETURN(
      open.name, NameFromProto("file name", file.name(), kMaxFileNameBytes));
  if (open.name == "." || open.name == ".." ||
      open.name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "file name \"", open.name, "\" must be a base name, without a path"));
  }
  HOIST_ASSIGN_OR_RETURN(open.fd, TakeFd(open.name, file.fd_index(), fds));
  const int flags = fcntl(open.fd.get(), F_GETFL);
  if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) == O_WRONLY) {
    return absl::InvalidArgumentError(
        absl::StrCat(open.name, " must be passed open for reading"));
  }
  return open;
}

absl::Status CheckImage(int fd, uint64_t image_bytes) {
  // fstat cannot block on what turned out to be a memfd.
  const int seals = fcntl(fd, F_GET_SEALS);
  constexpr int kNeeded = F_SEAL_WRITE | F_SEAL_SHRINK;
  if (seals < 0 || (seals & kNeeded) != kNeeded) {
    return absl::InvalidArgumentError(
        "the image must come in a memfd that is sealed against writes and "
        "shrinking (F_SEAL_WRITE, F_SEAL_SHRINK)");
  }
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoToStatus(errno, "look at the image");
  if (static_cast<uint64_t>(info.st_size) < image_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the image's memfd has ", info.st_size,
                     " bytes; image_bytes says ", image_bytes));
  }
  return absl::OkStatus();
}

// The size of a memfd that is the target of an image's copy.
absl::StatusOr<uint64_t> CheckTarget(int fd) {
  // fstat cannot block on what turned out to be a memfd.
  const int seals = fcntl(fd, F_GET_SEALS);
  constexpr int kNeeded = F_SEAL_GROW | F_SEAL_SHRINK;
  constexpr int kInTheWay = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (seals < 0 || (seals & kNeeded) != kNeeded || (seals & kInTheWay) != 0) {
    return absl::InvalidArgumentError(
        "the image must be read into a memfd that is sealed with F_SEAL_GROW "
        "and F_SEAL_SHRINK, and not against writes or more seals");
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) != O_RDWR) {
    return absl::InvalidArgumentError(
        "the image must be read into a memfd that is open for reading and "
        "writing");
  }
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoToStatus(errno, "look at the memfd");
  return static_cast<uint64_t>(info.st_size);
}

absl::Status CheckCount(absl::string_view what, int count, int limit) {
  if (count <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(count, " ", what, "; at most ", limit, " are allowed"));
}

// Checks that the shards are open for reading, but not that they are regular
// files: fstat can block on a network file system.
absl::StatusOr<RegisterModelArgs> RegisterModelFromProto(
    const hoist::v1::RegisterModelRequest& request,
    std::vector<hoist::UniqueFd> fds) {
  RegisterModelArgs args;
  HOIST_ASSIGN_OR_RETURN(
      args.name, NameFromProto("name", request.name(), kMaxModelNameBytes));
  if (request.shards().empty()) {
    return absl::InvalidArgumentError(
        "shards is empty; a model has one safetensors file at least");
  }
  absl::flat_hash_set<std::string> names;
  for (const auto& shard : request.shards()) {
    HOIST_ASSIGN_OR_RETURN(OpenFile file, FileFromProto(shard, fds));
    if (!names.insert(file.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two shards are called \"", file.name, "\""));
    }
    args.shards.push_back(std::move(file));
  }
  if (request.has_index()) {
    HOIST_ASSIGN_OR_RETURN(args.index, FileFromProto(request.index(), fds));
  }
  HOIST_RETURN_IF_ERROR(CheckAllTaken(fds));
  HOIST_ASSIGN_OR_RETURN(args.joined, JoinedFromProto(request.joined()));
  HOIST_ASSIGN_OR_RETURN(args.grouping, GroupingFromProto(request.grouping()));
  HOIST_ASSIGN_OR_RETURN(args.readers, ReadersFromProto(request.readers()));
  return args;
}

// Checks that the image is a sealed memfd, and large enough for the group.
absl::StatusOr<PublishArgs> PublishFromProto(
    const hoist::v1::PublishRequest& request,
    std::vector<hoist::UniqueFd> fds) {
  PublishArgs args;
  HOIST_ASSIGN_OR_RETURN(
      args.model, NameFromProto("model", request.model(), kMaxModelNameBytes));
  HOIST_ASSIGN_OR_RETURN(args.group, GroupFromProto(request.group()));
  HOIST_ASSIGN_OR_RETURN(args.readers, ReadersFromProto(request.readers()));
  if (request.deadline_ms() != 0) {
    args.deadline = DeadlineFromProto(request.deadline_ms());
  }
  args.of_session = request.of_session();
  if (args.of_session && args.readers == Readers::kEveryone) {
    return absl::InvalidArgumentError(
        "an image that ends with its session is for its own user; leave "
        "readers out");
  }
  if (!request.content().empty()) {
    HOIST_ASSIGN_OR_RETURN(args.expected, ContentFromProto(request.content()));
  }
  HOIST_ASSIGN_OR_RETURN(args.image,
                         TakeFd("the image", request.fd_index(), fds));
  HOIST_RETURN_IF_ERROR(CheckAllTaken(fds));
  HOIST_RETURN_IF_ERROR(CheckImage(args.image.get(), args.group.image_bytes));
  return args;
}

absl::StatusOr<StageArgs> StageFromProto(
    const hoist::v1::StageRequest& request) {
  StageArgs args;
  args.key = {ModelId(request.model_id()), GroupIndex(request.group())};
  args.device = DeviceIndex(request.device());
  args.deadline = DeadlineFromProto(request.deadline_ms());
  args.apart = request.apart();
  args.background = request.background();
  return args;
}

// Checks that the memfd's size is sealed, and its contents are not. Whether its
// memory is allocated is checked when it is written.
absl::StatusOr<ReadImageArgs> ReadImageFromProto(
    const hoist::v1::ReadImageRequest& request,
    std::vector<hoist::UniqueFd> fds) {
  ReadImageArgs args;
  args.key = {ModelId(request.model_id()), GroupIndex(request.group())};
  args.deadline = DeadlineFromProto(request.deadline_ms());
  HOIST_ASSIGN_OR_RETURN(args.memfd,
                         TakeFd("the memfd", request.fd_index(), fds));
  HOIST_RETURN_IF_ERROR(CheckAllTaken(fds));
  HOIST_ASSIGN_OR_RETURN(args.memfd_bytes, CheckTarget(args.memfd.get()));
  return args;
}

absl::StatusOr<PrefetchArgs> PrefetchFromProto(
    const hoist::v1::PrefetchRequest& request) {
  PrefetchArgs args;
  HOIST_RETURN_IF_ERROR(
      CheckCount("groups", request.groups_size(), kMaxGroupsPerModel));
  HOIST_ASSIGN_OR_RETURN(args.to,
                         TierFromProto(request.tier(), request.device()));
  args.model = ModelId(request.model_id());
  args.groups = GroupIndicesFromProto(request.groups());
  return args;
}

absl::StatusOr<ReleaseArgs> ReleaseFromProto(
    const hoist::v1::ReleaseRequest& request) {
  HOIST_RETURN_IF_ERROR(
      CheckCount("lease_ids", request.lease_ids_size(), kMaxLeasesPerRelease));
  ReleaseArgs args;
  args.leases.reserve(static_cast<size_t>(request.lease_ids_size()));
  for (uint64_t id : request.lease_ids()) args.leases.emplace_back(id);
  return args;
}

absl::StatusOr<SlabsClosedArgs> SlabsClosedFromProto(
    const hoist::v1::SlabsClosedRequest& request) {
  HOIST_RETURN_IF_ERROR(
      CheckCount("slab_ids", request.slab_ids_size(), kMaxSlabsClosed));
  SlabsClosedArgs closed;
  closed.device = DeviceIndex(request.device());
  closed.number = request.number();
  for (const uint64_t id : request.slab_ids()) closed.slabs.emplace_back(id);
  return closed;
}

// The engine checks the group numbers.
absl::StatusOr<SetPlanArgs> SetPlanFromProto(
    const hoist::v1::SetPlanRequest& request) {
  HOIST_RETURN_IF_ERROR(
      CheckCount("groups in order", request.order_size(), kMaxPlanOrder));
  SetPlanArgs args;
  HOIST_ASSIGN_OR_RETURN(args.share, ShareFromProto(request.share()));
  args.model = ModelId(request.model_id());
  args.device = DeviceIndex(request.device());
  args.budget_bytes = request.budget_bytes();
  args.order = GroupIndicesFromProto(request.order());
  args.deadline = DeadlineFromProto(request.deadline_ms());
  if (request.replaces() > 0) args.replaces = PlanId(request.replaces());
  args.gives_way = request.gives_way();
  args.blocks.assign(request.blocks().begin(), request.blocks().end());
  if (request.stage_deadline_ms() > 0) {
    args.stage_deadline = DeadlineFromProto(request.stage_deadline_ms());
  }
  return args;
}

// The engine checks the size.
ArenaArgs OpenArenaFromProto(const hoist::v1::OpenArenaRequest& request) {
  return {request.size_bytes(), DeadlineFromProto(request.deadline_ms())};
}

// The node checks that the device exists.
SpareArgs SpareFromProto(const hoist::v1::SpareRequest& request) {
  return {DeviceIndex(request.device()), request.bytes(),
          DeadlineFromProto(request.deadline_ms())};
}

// The engine checks that the device exists.
absl::StatusOr<OpenPermitArgs> OpenPermitFromProto(
    const hoist::v1::OpenPermitRequest& request) {
  OpenPermitArgs args;
  HOIST_ASSIGN_OR_RETURN(args.share, ShareFromProto(request.share()));
  args.device = DeviceIndex(request.device());
  return args;
}

absl::StatusOr<DescribeModelArgs> DescribeModelFromProto(
    const hoist::v1::DescribeModelRequest& request) {
  DescribeModelArgs args;
  HOIST_ASSIGN_OR_RETURN(
      args.name, NameFromProto("name", request.name(), kMaxModelNameBytes));
  return args;
}

absl::StatusOr<FindContentArgs> FindContentFromProto(
    const hoist::v1::FindContentRequest& request) {
  FindContentArgs args;
  HOIST_ASSIGN_OR_RETURN(args.content, ContentFromProto(request.content()));
  return args;
}

// InvalidArgument: not one value per group, or a value that is negative or not
// finite.
absl::StatusOr<HeatArgs> HeatFromProto(const hoist::v1::HeatRequest& request) {
  HOIST_RETURN_IF_ERROR(
      CheckCount("groups", request.heat().groups_size(), kMaxGroupsPerModel));
  HeatArgs args;
  args.model = ModelId(request.model_id());
  args.device = DeviceIndex(request.device());
  args.touched_hot_bytes = request.touched_hot_bytes();
  args.touched_cold_bytes = request.touched_cold_bytes();
  const hoist::v1::Heat& heat = request.heat();
  if (heat.groups_size() != heat.heat_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("heat of ", heat.groups_size(), " groups in ",
                     heat.heat_size(), " numbers"));
  }
  for (int i = 0; i < heat.groups_size(); ++i) {
    const float of = heat.heat(i);
    if (!std::isfinite(of) || of < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the heat of group ", heat.groups(i), " is ", of,
                       "; it must be a finite number of bytes, 0 or more"));
    }
    args.heat.push_back({GroupIndex(heat.groups(i)), of});
  }
  return args;
}

absl::StatusOr<SetOrderArgs> SetOrderFromProto(
    const hoist::v1::SetOrderRequest& request) {
  HOIST_RETURN_IF_ERROR(
      CheckCount("groups", request.groups_size(), kMaxGroupsPerModel));
  return SetOrderArgs{ModelId(request.model_id()),
                      GroupIndicesFromProto(request.groups()),
                      request.forget()};
}

// An unknown verb may take descriptors.
bool MayTakeFds(hoist::v1::ClientMessage::BodyCase verb) {
  using Body = hoist::v1::ClientMessage;
  return verb == Body::kRegisterModel || verb == Body::kPublish ||
         verb == Body::kReadImage || verb == Body::BODY_NOT_SET;
}

}  // namespace

absl::StatusOr<OpenSessionArgs> OpenSessionFromProto(
    const hoist::v1::OpenSessionRequest& request, const Peer& peer) {
  OpenSessionArgs args;
  if (request.client_name().size() > kMaxClientNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("client_name has ", request.client_name().size(),
                     " bytes; at most ", kMaxClientNameBytes, " are allowed"));
  }
  args.client_name = request.client_name();
  args.peer = peer;
  args.device_budget_bytes = request.device_budget_bytes();
  args.closes_slabs = request.closes_slabs();
  return args;
}

ResumeArgs ResumeFromProto(const hoist::v1::ResumeRequest& request) {
  ResumeArgs args;
  for (const uint64_t id : request.lease_ids()) args.leases.emplace_back(id);
  for (const uint64_t id : request.plan_ids()) args.plans.emplace_back(id);
  for (const uint64_t id : request.arena_ids()) args.arenas.emplace_back(id);
  for (const auto& slab : request.slabs()) {
    args.slabs.push_back({DeviceIndex(slab.device()), SlabId(slab.slab_id())});
  }
  if (request.knows_models()) {
    auto& models = args.models.emplace();
    for (const uint64_t id : request.model_ids()) models.emplace_back(id);
  }
  return args;
}

absl::StatusOr<SessionRequest> RequestFromProto(
    const hoist::v1::ClientMessage& message, std::vector<hoist::UniqueFd> fds) {
  using Body = hoist::v1::ClientMessage;
  if (!fds.empty() && !MayTakeFds(message.body_case())) {
    return absl::InvalidArgumentError(
        "descriptors came with a verb that takes none");
  }
  switch (message.body_case()) {
    case Body::kRegisterModel:
      return RegisterModelFromProto(message.register_model(), std::move(fds));
    case Body::kPublish:
      return PublishFromProto(message.publish(), std::move(fds));
    case Body::kDescribeModel:
      return DescribeModelFromProto(message.describe_model());
    case Body::kFindContent:
      return FindContentFromProto(message.find_content());
    case Body::kForgetModel:
      return ForgetModelArgs{ModelId(message.forget_model().model_id())};
    case Body::kStage:
      return StageFromProto(message.stage());
    case Body::kReadImage:
      return ReadImageFromProto(message.read_image(), std::move(fds));
    case Body::kPrefetch:
      return PrefetchFromProto(message.prefetch());
    case Body::kRelease:
      return ReleaseFromProto(message.release());
    case Body::kHeat:
      return HeatFromProto(message.heat());
    case Body::kSetOrder:
      return SetOrderFromProto(message.set_order());
    case Body::kSlabsClosed:
      return SlabsClosedFromProto(message.slabs_closed());
    case Body::kSetPlan:
      return SetPlanFromProto(message.set_plan());
    case Body::kClearPlan:
      return ClearPlanArgs{PlanId(message.clear_plan().plan_id())};
    case Body::kOpenArena:
      return OpenArenaFromProto(message.open_arena());
    case Body::kCloseArena:
      return CloseArenaArgs{ArenaId(message.close_arena().arena_id())};
    case Body::kOpenPermit:
      return OpenPermitFromProto(message.open_permit());
    case Body::kClosePermit:
      return ClosePermitArgs{PermitId(message.close_permit().permit_id())};
    case Body::kSpare:
      return SpareFromProto(message.spare());
    case Body::kResume:
    case Body::kOpenSession:
      return absl::FailedPreconditionError(
          "this session is open; close the connection to open another");
    case Body::BODY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "the message carries no verb that this hoistd knows");
}

}  // namespace hoistd
