#include "daemon/session/request_convert.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <utility>
#include <variant>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/convert/types_convert.h"
#include "hoist/shared/packet_socket.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing::request_convert_test {

using ::hoist::v1::ClientMessage;
using ::hoist::v1::OpenPermitRequest;
using ::hoist::v1::PrefetchRequest;
using ::hoist::v1::PublishRequest;
using ::hoist::v1::ReadImageRequest;
using ::hoist::v1::RegisterModelRequest;
using ::hoist::v1::ReleaseRequest;
using ::hoist::v1::SetPlanRequest;
using ::hoist::v1::StageRequest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// A request by way of the message that carries it.
template <typename Args, typename Request>
absl::StatusOr<Args> Convert(Request* (ClientMessage::*field)(),
                             const Request& request,
                             std::vector<hoist::UniqueFd> fds = {}) {
  ClientMessage message;
  *(message.*field)() = request;
  absl::StatusOr<SessionRequest> converted =
      RequestFromProto(message, std::move(fds));
  if (!converted.ok()) return converted.status();
  return std::get<Args>(*std::move(converted));
}

absl::StatusOr<RegisterModelArgs> RegisterModelFromProto(
    const RegisterModelRequest& request, std::vector<hoist::UniqueFd> fds) {
  return Convert<RegisterModelArgs>(&ClientMessage::mutable_register_model,
                                    request, std::move(fds));
}
absl::StatusOr<PublishArgs> PublishFromProto(const PublishRequest& request,
                                             std::vector<hoist::UniqueFd> fds) {
  return Convert<PublishArgs>(&ClientMessage::mutable_publish, request,
                              std::move(fds));
}
absl::StatusOr<ReadImageArgs> ReadImageFromProto(
    const ReadImageRequest& request, std::vector<hoist::UniqueFd> fds) {
  return Convert<ReadImageArgs>(&ClientMessage::mutable_read_image, request,
                                std::move(fds));
}
absl::StatusOr<PrefetchArgs> PrefetchFromProto(const PrefetchRequest& request) {
  return Convert<PrefetchArgs>(&ClientMessage::mutable_prefetch, request);
}
absl::StatusOr<StageArgs> StageFromProto(const StageRequest& request) {
  return Convert<StageArgs>(&ClientMessage::mutable_stage, request);
}
absl::StatusOr<ReleaseArgs> ReleaseFromProto(const ReleaseRequest& request) {
  return Convert<ReleaseArgs>(&ClientMessage::mutable_release, request);
}
absl::StatusOr<SetPlanArgs> SetPlanFromProto(const SetPlanRequest& request) {
  return Convert<SetPlanArgs>(&ClientMessage::mutable_set_plan, request);
}
absl::StatusOr<OpenPermitArgs> OpenPermitFromProto(
    const OpenPermitRequest& request) {
  return Convert<OpenPermitArgs>(&ClientMessage::mutable_open_permit, request);
}

std::vector<hoist::UniqueFd> Fds(int count, int flags = O_RDONLY) {
  std::vector<hoist::UniqueFd> fds;
  for (int i = 0; i < count; ++i) {
    fds.emplace_back(open("/dev/null", flags | O_CLOEXEC));
  }
  return fds;
}

RegisterModelRequest TwoShards() {
  RegisterModelRequest request;
  request.set_name("m");
  request.add_shards()->set_name("a");
  request.add_shards()->set_name("b");
  request.mutable_shards(1)->set_fd_index(1);
  return request;
}

TEST(RegisterModelFromProto, NamesMustBeBaseNames) {
  for (const std::string& name :
       {std::string(""), std::string("."), std::string(".."),
        std::string("/etc/passwd"), std::string("../a"), std::string("a/b"),
        std::string("a\0b", 3), std::string(256, 'x')}) {
    SCOPED_TRACE(name);
    RegisterModelRequest request = TwoShards();
    request.mutable_shards(1)->set_name(name);
    EXPECT_THAT(RegisterModelFromProto(request, Fds(2)), StatusIs(kInvalid));
    request = TwoShards();
    request.mutable_index()->set_name(name);
    request.mutable_index()->set_fd_index(2);
    EXPECT_THAT(RegisterModelFromProto(request, Fds(3)), StatusIs(kInvalid));
  }
  RegisterModelRequest request = TwoShards();
  request.mutable_shards(1)->set_name("odd \xe2\x98\x83 \n name");
  EXPECT_OK(RegisterModelFromProto(request, Fds(2)));
}

TEST(RegisterModelFromProto, TwoShardsOfOneNameAreRefused) {
  RegisterModelRequest request = TwoShards();
  request.mutable_shards(1)->set_name("a");
  EXPECT_THAT(RegisterModelFromProto(request, Fds(2)),
              StatusIs(kInvalid, HasSubstr("two shards")));
}

TEST(RegisterModelFromProto, AModelNeedsANameAndAShard) {
  RegisterModelRequest request = TwoShards();
  request.set_name("");
  EXPECT_THAT(RegisterModelFromProto(request, Fds(2)), StatusIs(kInvalid));
  request.set_name(std::string(kMaxModelNameBytes + 1, 'x'));
  EXPECT_THAT(RegisterModelFromProto(request, Fds(2)), StatusIs(kInvalid));
  request.set_name("m");
  request.clear_shards();
  EXPECT_THAT(RegisterModelFromProto(request, {}),
              StatusIs(kInvalid, HasSubstr("shards")));
}

TEST(RegisterModelFromProto, FilesMustBeOpenForReading) {
  for (const int flags : {O_WRONLY, O_PATH}) {
    EXPECT_THAT(RegisterModelFromProto(TwoShards(), Fds(2, flags)),
                StatusIs(kInvalid, HasSubstr("open for reading")));
  }
  EXPECT_OK(RegisterModelFromProto(TwoShards(), Fds(2, O_RDWR)));
}

TEST(RegisterModelFromProto, UnknownEnumsAreRefused) {
  RegisterModelRequest request = TwoShards();
  request.set_readers(static_cast<hoist::v1::Readers>(77));
  EXPECT_THAT(RegisterModelFromProto(request, Fds(2)), StatusIs(kInvalid));
  request = TwoShards();
  request.mutable_grouping()->set_rule(
      static_cast<hoist::v1::Grouping::Rule>(77));
  EXPECT_THAT(RegisterModelFromProto(request, Fds(2)), StatusIs(kInvalid));
}

PublishRequest OneTensor() {
  PublishRequest request;
  request.set_model("m");
  request.mutable_group()->set_name("g");
  request.mutable_group()->set_image_bytes(8192);
  auto* tensor = request.mutable_group()->add_tensors();
  tensor->set_name("t");
  tensor->set_dtype(hoist::v1::DTYPE_U8);
  tensor->add_shape(8192);
  tensor->set_size_bytes(8192);
  return request;
}

std::vector<hoist::UniqueFd> Memfd(uint64_t bytes, int seals) {
  hoist::Result<hoist::UniqueFd> fd = hoist::CreateMemfd("image", bytes);
  HOIST_CHECK(fd.ok() && fcntl(fd->get(), F_ADD_SEALS, seals) == 0);
  std::vector<hoist::UniqueFd> fds;
  fds.push_back(std::move(fd).value());
  return fds;
}

TEST(PublishFromProto, WithoutADeadlineItIsAMinute) {
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK;
  PublishRequest request = OneTensor();
  ASSERT_OK_AND_ASSIGN(const PublishArgs patient,
                       PublishFromProto(request, Memfd(8192, kSeals)));
  EXPECT_EQ(patient.deadline, absl::Seconds(60));
  request.set_deadline_ms(250);
  ASSERT_OK_AND_ASSIGN(const PublishArgs brief,
                       PublishFromProto(request, Memfd(8192, kSeals)));
  EXPECT_EQ(brief.deadline, absl::Milliseconds(250));
}

TEST(PublishFromProto, WhatIsExpectedIsASha256OrNothing) {
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK;
  PublishRequest request = OneTensor();
  ASSERT_OK_AND_ASSIGN(const PublishArgs any,
                       PublishFromProto(request, Memfd(8192, kSeals)));
  EXPECT_FALSE(any.expected.has_value());
  request.set_content(std::string(32, 'c'));
  ASSERT_OK_AND_ASSIGN(const PublishArgs one,
                       PublishFromProto(request, Memfd(8192, kSeals)));
  ASSERT_TRUE(one.expected.has_value());
  EXPECT_EQ(one.expected->front(), 'c');
  request.set_content(std::string(31, 'c'));
  EXPECT_THAT(PublishFromProto(request, Memfd(8192, kSeals)).status(),
              StatusIs(kInvalid, HasSubstr("31 bytes")));
}

TEST(PublishFromProto, TheImageMustBeSealed) {
  for (const int seals : {F_SEAL_GROW, F_SEAL_WRITE | F_SEAL_GROW,
                          F_SEAL_SHRINK, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK}) {
    EXPECT_THAT(PublishFromProto(OneTensor(), Memfd(8192, seals)),
                StatusIs(kInvalid, HasSubstr("sealed")))
        << seals;
  }
  EXPECT_OK(
      PublishFromProto(OneTensor(), Memfd(8192, F_SEAL_WRITE | F_SEAL_SHRINK)));
  EXPECT_THAT(PublishFromProto(OneTensor(), Fds(1)),
              StatusIs(kInvalid, HasSubstr("memfd")));
}

TEST(PublishFromProto, TheImageMustHoldTheGroup) {
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK;
  EXPECT_THAT(PublishFromProto(OneTensor(), Memfd(4096, kSeals)),
              StatusIs(kInvalid, HasSubstr("4096")));
  EXPECT_OK(PublishFromProto(OneTensor(), Memfd(12288, kSeals)));
}

TEST(ReadImageFromProto, EveryFieldReachesTheEngine) {
  hoist::v1::ReadImageRequest request;
  request.set_model_id(3);
  request.set_group(4);
  request.set_deadline_ms(250);
  const auto args =
      ReadImageFromProto(request, Memfd(12345, F_SEAL_GROW | F_SEAL_SHRINK));
  ASSERT_OK(args);
  EXPECT_EQ(args->key, (GroupKey{ModelId(3), GroupIndex(4)}));
  EXPECT_EQ(args->deadline, absl::Milliseconds(250));
  EXPECT_EQ(args->memfd_bytes, 12345u);
  EXPECT_TRUE(args->memfd.valid());
}

TEST(ReadImageFromProto, TheMemfdMustKeepItsSizeAndTakeWrites) {
  constexpr int kSeals = F_SEAL_GROW | F_SEAL_SHRINK;
  for (const int seals : {0, F_SEAL_GROW, F_SEAL_SHRINK, kSeals | F_SEAL_WRITE,
                          kSeals | F_SEAL_FUTURE_WRITE, kSeals | F_SEAL_SEAL}) {
    EXPECT_THAT(ReadImageFromProto({}, Memfd(4096, seals)),
                StatusIs(kInvalid, HasSubstr("sealed")))
        << seals;
  }
}

TEST(ReadImageFromProto, WhatIsNoMemfdIsRefused) {
  EXPECT_THAT(ReadImageFromProto({}, Fds(1, O_RDWR)), StatusIs(kInvalid));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const hoist::UniqueFd read_end(ends[0]);
  std::vector<hoist::UniqueFd> write_end;
  write_end.emplace_back(ends[1]);
  EXPECT_THAT(ReadImageFromProto({}, std::move(write_end)),
              StatusIs(kInvalid, HasSubstr("memfd")));
  const std::vector<hoist::UniqueFd> memfd =
      Memfd(4096, F_SEAL_GROW | F_SEAL_SHRINK);
  std::vector<hoist::UniqueFd> readable;
  readable.emplace_back(
      open(("/proc/self/fd/" + std::to_string(memfd[0].get())).c_str(),
           O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(ReadImageFromProto({}, std::move(readable)),
              StatusIs(kInvalid, HasSubstr("reading and writing")));
}

TEST(ReadImageFromProto, TheDescriptorMustBeTheOneThatCame) {
  constexpr int kSeals = F_SEAL_GROW | F_SEAL_SHRINK;
  hoist::v1::ReadImageRequest request;
  EXPECT_THAT(ReadImageFromProto(request, {}),
              StatusIs(kInvalid, HasSubstr("descriptor 0")));
  request.set_fd_index(1);
  EXPECT_THAT(ReadImageFromProto(request, Memfd(4096, kSeals)),
              StatusIs(kInvalid, HasSubstr("descriptor 1")));
  request.set_fd_index(0);
  std::vector<hoist::UniqueFd> two = Memfd(4096, kSeals);
  two.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(ReadImageFromProto(request, std::move(two)),
              StatusIs(kInvalid, HasSubstr("does not name")));
}

TEST(PrefetchFromProto, ATierMustBeOne) {
  PrefetchRequest request;
  request.set_device(3);
  for (const auto tier :
       {hoist::v1::TIER_UNSPECIFIED, static_cast<hoist::v1::Tier>(9)}) {
    request.set_tier(tier);
    EXPECT_THAT(PrefetchFromProto(request), StatusIs(kInvalid)) << tier;
  }
  request.set_tier(hoist::v1::TIER_DEVICE);
  ASSERT_OK_AND_ASSIGN(PrefetchArgs args, PrefetchFromProto(request));
  EXPECT_EQ(args.to, OnDevice(DeviceIndex(3)));
}

TEST(StageFromProto, ADeadlineOfForeverIsCutToTheLongestOne) {
  hoist::v1::StageRequest request;
  request.set_deadline_ms(UINT64_MAX);
  ASSERT_OK_AND_ASSIGN(StageArgs args, StageFromProto(request));
  EXPECT_EQ(args.deadline, kMaxDeadline);
  request.set_deadline_ms(0);
  ASSERT_OK_AND_ASSIGN(args, StageFromProto(request));
  EXPECT_EQ(args.deadline, absl::ZeroDuration());
}

TEST(ReleaseFromProto, TakesAsManyLeasesAsAllowedAndNotOneMore) {
  hoist::v1::ReleaseRequest request;
  for (int i = 0; i < kMaxLeasesPerRelease; ++i) request.add_lease_ids(i);
  ASSERT_OK_AND_ASSIGN(const auto args, ReleaseFromProto(request));
  EXPECT_EQ(args.leases.size(), static_cast<size_t>(kMaxLeasesPerRelease));
  request.add_lease_ids(1);
  EXPECT_THAT(ReleaseFromProto(request), StatusIs(kInvalid));
}

TEST(SetPlanFromProto, EveryFieldReachesTheEngine) {
  SetPlanRequest request;
  request.set_model_id(uint64_t{1} << 40);
  request.set_device(3);
  request.set_budget_bytes(uint64_t{1} << 50);
  for (const uint32_t group : {7u, 0u, 7u, UINT32_MAX}) {
    request.add_order(group);
  }
  request.set_deadline_ms(1500);
  request.set_replaces(12);
  request.set_stage_deadline_ms(250);
  request.mutable_share()->set_weight(5);
  request.mutable_share()->set_priority(-2);
  request.mutable_share()->set_max_bytes_per_second(99);
  ASSERT_OK_AND_ASSIGN(const SetPlanArgs args, SetPlanFromProto(request));
  EXPECT_EQ(args.model, ModelId(uint64_t{1} << 40));
  EXPECT_EQ(args.device, DeviceIndex(3));
  EXPECT_EQ(args.budget_bytes, uint64_t{1} << 50);
  EXPECT_THAT(args.order, ElementsAre(GroupIndex(7), GroupIndex(0),
                                      GroupIndex(7), GroupIndex(UINT32_MAX)));
  EXPECT_EQ(args.deadline, absl::Milliseconds(1500));
  EXPECT_EQ(args.replaces, PlanId(12));
  EXPECT_EQ(args.stage_deadline, absl::Milliseconds(250));
  EXPECT_EQ(args.share.weight, 5u);
  EXPECT_EQ(args.share.priority, -2);
  EXPECT_EQ(args.share.max_bytes_per_second, 99u);
}

TEST(OpenPermitFromProto, EveryFieldReachesTheEngine) {
  hoist::v1::OpenPermitRequest request;
  request.set_device(3);
  request.mutable_share()->set_weight(5);
  request.mutable_share()->set_priority(-2);
  request.mutable_share()->set_max_bytes_per_second(99);
  ASSERT_OK_AND_ASSIGN(const OpenPermitArgs args, OpenPermitFromProto(request));
  EXPECT_EQ(args.device, DeviceIndex(3));
  EXPECT_EQ(args.share.weight, 5u);
  EXPECT_EQ(args.share.priority, -2);
  EXPECT_EQ(args.share.max_bytes_per_second, 99u);
  request.mutable_share()->set_weight(1001);
  EXPECT_THAT(OpenPermitFromProto(request),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(SetPlanFromProto, WhatIsNotSaidIsAsSessionProtoSays) {
  ASSERT_OK_AND_ASSIGN(const SetPlanArgs args,
                       SetPlanFromProto(SetPlanRequest()));
  EXPECT_EQ(args.budget_bytes, 0u);
  EXPECT_EQ(args.deadline, absl::ZeroDuration());
  EXPECT_EQ(args.replaces, std::nullopt);
  EXPECT_EQ(args.stage_deadline, absl::Seconds(60));
  EXPECT_EQ(args.share.weight, 1u);
  EXPECT_EQ(args.share.priority, 0);
  EXPECT_EQ(args.share.max_bytes_per_second, 0u);
}

TEST(SetPlanFromProto, DeadlinesOfForeverAreCutToTheLongestOne) {
  SetPlanRequest request;
  request.set_deadline_ms(UINT64_MAX);
  request.set_stage_deadline_ms(UINT64_MAX);
  ASSERT_OK_AND_ASSIGN(const SetPlanArgs args, SetPlanFromProto(request));
  EXPECT_EQ(args.deadline, kMaxDeadline);
  EXPECT_EQ(args.stage_deadline, kMaxDeadline);
}

TEST(SetPlanFromProto, TakesAsLongAnOrderAsAllowedAndNotOneGroupMore) {
  SetPlanRequest request;
  for (int i = 0; i < kMaxPlanOrder; ++i) request.add_order(0);
  ASSERT_OK_AND_ASSIGN(const SetPlanArgs args, SetPlanFromProto(request));
  EXPECT_EQ(args.order.size(), static_cast<size_t>(kMaxPlanOrder));
  request.add_order(0);
  EXPECT_THAT(SetPlanFromProto(request),
              StatusIs(kInvalid, HasSubstr("at most 65536")));
}

TEST(SetPlanFromProto, SharesOutOfBoundsAreRefused) {
  SetPlanRequest request;
  request.mutable_share()->set_weight(ShareOptions::kMaxWeight + 1);
  EXPECT_THAT(SetPlanFromProto(request),
              StatusIs(kInvalid, HasSubstr("weight")));
  request.mutable_share()->set_weight(ShareOptions::kMaxWeight);
  EXPECT_OK(SetPlanFromProto(request));
  request.mutable_share()->set_priority(ShareOptions::kMaxPriority + 1);
  EXPECT_THAT(SetPlanFromProto(request),
              StatusIs(kInvalid, HasSubstr("priority")));
}

}  // namespace hoistd::testing::request_convert_test
