// gRPC's requests, as Admin and Worker check them before the engine is asked.
#include <google/protobuf/stubs/logging.h>

#include "daemon/convert/types_convert.h"
#include "daemon/rpc/admin_convert.h"
#include "hoist/v1/admin.pb.h"
#include "hoist/v1/worker.pb.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/model_checks.h"

namespace hoistd {
namespace {

template <typename T>
bool Accepted(const absl::StatusOr<T>& made) {
  if (!made.ok()) FUZZ_REQUIRE(absl::IsInvalidArgument(made.status()));
  return made.ok();
}

// What a model's name may be in a selector: "1000:" stands before it.
void Check(const pb::CopySelector& request) {
  for (const TierNeeded needed : {TierNeeded::kYes, TierNeeded::kNo}) {
    const auto which = SelectorFromProto(request, needed);
    if (!Accepted(which)) continue;
    fuzz::RequireName(which->model, kMaxModelNameBytes + 16);
    FUZZ_REQUIRE(which->group.size() <= kMaxGroupNameBytes);
    FUZZ_REQUIRE(which->at.has_value() || needed == TierNeeded::kNo);
    FUZZ_REQUIRE(!which->at.has_value() || which->at->tier != Tier::kDisk);
  }
}

void Check(const pb::SetShareRequest& request) {
  (void)Accepted(ShareOfFromProto(request));
  FUZZ_REQUIRE(!ShareOfText(request).empty());
  const auto change = ShareChangeFromProto(request.change());
  if (!Accepted(change)) return;
  FUZZ_REQUIRE(change->weight.has_value() || change->priority.has_value() ||
               change->max_bytes_per_second.has_value());
  FUZZ_REQUIRE(CheckShare(change->AppliedTo(ShareOptions())).ok());
}

// Load, and Worker.RegisterModel: the same fields, and no descriptors.
template <typename Request>
void CheckRegister(const Request& request) {
  RegisterModelArgs args;
  auto name = NameFromProto("name", request.name(), kMaxModelNameBytes);
  if (!Accepted(name)) return;
  args.name = *std::move(name);
  auto joined = JoinedFromProto(request.joined());
  auto grouping = GroupingFromProto(request.grouping());
  if (!Accepted(joined) || !Accepted(grouping) ||
      !Accepted(ReadersFromProto(request.readers()))) {
    return;
  }
  args.joined = *std::move(joined);
  args.grouping = *std::move(grouping);
  fuzz::RequireSoundRegister(args);
  fuzz::BuildAsWished(args);
}

void Check(const pb::LoadRequest& request) {
  const auto to = TierFromProto(request.tier(), request.device(), OnHost());
  if (!Accepted(to)) return;
  FUZZ_REQUIRE(to->tier == Tier::kDevice || to->device == DeviceIndex(0));
  CheckRegister(request);
}

// A group goes round: as it is published, told, and read.
void Check(const pb::WorkerPublishRequest& request) {
  if (!request.has_header()) return;
  auto said = GroupFromProto(request.header().group());
  if (!Accepted(said)) return;
  fuzz::RequireSoundGroup(*said);
  const auto group = fuzz::PublishAsSaid(*std::move(said));
  if (group == nullptr) return;
  pb::Group told;
  GroupToProto(*group, GroupIndex(0), &told);
  const auto again = GroupFromProto(told);
  FUZZ_REQUIRE(again.ok());
  pb::Group twice;
  GroupToProto(*again, GroupIndex(0), &twice);
  FUZZ_REQUIRE(twice.SerializeAsString() == told.SerializeAsString());
}

void Check(const pb::WorkerPrefetchRequest& request) {
  (void)Accepted(TierFromProto(request.tier(), request.device()));
  const absl::Duration deadline = DeadlineFromProto(request.device());
  FUZZ_REQUIRE(deadline >= absl::ZeroDuration() && deadline <= kMaxDeadline);
}

void Check(const pb::WorkerRegisterModelRequest& request) {
  CheckRegister(request);
}

template <typename Request>
void Try(std::string_view bytes) {
  Request request;
  if (request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    Check(request);
  }
}

}  // namespace

namespace fuzz {

Seeds MakeSeeds() {
  Seeds seeds;
  const auto add = [&](const char* name, uint8_t kind, const auto& message) {
    seeds.emplace_back(
        name, Output().Put(kind).Bytes(message.SerializeAsString()).str());
  };
  pb::CopySelector copies;
  copies.set_model("1000:m");
  copies.set_group("g");
  copies.set_tier(pb::TIER_DEVICE);
  add("copies", 0, copies);
  pb::SetShareRequest share;
  share.set_plan_id(3);
  share.mutable_change()->set_change_weight(true);
  share.mutable_change()->set_weight(4);
  add("share", 1, share);
  pb::LoadRequest load;
  load.set_path("/models/m");
  load.set_name("m");
  auto& joined = *load.add_joined();
  joined.set_name("both");
  joined.add_shape(1536);
  joined.add_parts()->set_tensor("h.1.w");
  joined.add_parts()->set_tensor("e");
  load.mutable_grouping()->set_rule(pb::Grouping::RULE_MODULE);
  add("load", 2, load);
  pb::WorkerPublishRequest publish;
  publish.mutable_header()->set_model("m");
  auto& group = *publish.mutable_header()->mutable_group();
  group.set_name("g");
  group.set_image_bytes(4096);
  auto& tensor = *group.add_tensors();
  tensor.set_name("t");
  tensor.set_dtype(pb::DTYPE_F32);
  tensor.add_shape(4);
  tensor.add_strides(2);
  tensor.set_size_bytes(28);
  add("publish", 3, publish);
  pb::WorkerPrefetchRequest prefetch;
  prefetch.set_model("m");
  prefetch.set_tier(pb::TIER_HOST);
  add("prefetch", 4, prefetch);
  pb::WorkerRegisterModelRequest registering;
  registering.set_name("m");
  registering.mutable_grouping()->set_rule(pb::Grouping::RULE_EXPLICIT);
  auto& named = *registering.mutable_grouping()->add_groups();
  named.set_name("all");
  for (const char* name : {"h.0.w", "h.0.b", "h.1.w", "e", "z", "q"}) {
    named.add_tensors(name);
  }
  add("register", 5, registering);
  return seeds;
}

}  // namespace fuzz
}  // namespace hoistd

// u8 which request, then it, serialized.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hoistd;
  // As SessionServer has it.
  static auto* const quiet = google::protobuf::SetLogHandler(nullptr);
  (void)quiet;
  fuzz::Input input(data, size);
  const uint8_t which = input.Take() % 6;
  const std::string_view bytes = input.Rest();
  if (which == 0) Try<pb::CopySelector>(bytes);
  if (which == 1) Try<pb::SetShareRequest>(bytes);
  if (which == 2) Try<pb::LoadRequest>(bytes);
  if (which == 3) Try<pb::WorkerPublishRequest>(bytes);
  if (which == 4) Try<pb::WorkerPrefetchRequest>(bytes);
  if (which == 5) Try<pb::WorkerRegisterModelRequest>(bytes);
  return 0;
}
