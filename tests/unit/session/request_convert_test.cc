#include "daemon/session/request_convert.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "daemon/base/check.h"
#include "daemon/convert/types_convert.h"
#include "hoist/shared/packet_socket.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing {
namespace {

using ::hoist::v1::PrefetchRequest;
using ::hoist::v1::PublishRequest;
using ::hoist::v1::RegisterModelRequest;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

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

TEST(PrefetchFromProto, OnlyDeviceAndHostArePrefetchedTo) {
  PrefetchRequest request;
  request.set_device(3);
  for (const auto tier : {hoist::v1::TIER_UNSPECIFIED, hoist::v1::TIER_DISK,
                          static_cast<hoist::v1::Tier>(9)}) {
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
  ASSERT_OK_AND_ASSIGN(const auto leases, ReleaseFromProto(request));
  EXPECT_EQ(leases.size(), static_cast<size_t>(kMaxLeasesPerRelease));
  request.add_lease_ids(1);
  EXPECT_THAT(ReleaseFromProto(request), StatusIs(kInvalid));
}

}  // namespace
}  // namespace hoistd::testing
