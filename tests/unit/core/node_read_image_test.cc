// Images that are copied to clients: the host copy stays for as long as the
// copy runs, and not a step longer, whatever ends it.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_read_image_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kLate = absl::StatusCode::kDeadlineExceeded;

GroupKey Key(ModelId model, uint32_t group) {
  return {model, GroupIndex(group)};
}

absl::Status StatusOf(const NodeRig& rig, RequestId request) {
  const Answer* answer = rig.AnswerTo(request);
  return answer == nullptr ? absl::UnknownError("not answered")
                           : answer->status;
}

// Nothing keeps the model: it can be forgotten, and takes nothing then.
void ExpectFree(NodeRig& rig, ModelId model) {
  EXPECT_OK(rig.Forget(model));
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 0u);
}

TEST(NodeReadImage, ComesUpToTheHostAndFromThereToTheClient) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2, 3});
  const RequestId request = rig.ReadImage(session, Key(model, 1));
  ASSERT_THAT(rig.Moving(), SizeIs(1));
  EXPECT_TRUE(rig.TransferOf(rig.Moving<FilesToHost>().at(0)).urgent);
  rig.Finish<FilesToHost>();
  ASSERT_THAT(rig.Moving<HostToClient>(), SizeIs(1));
  const Transfer copy = rig.TransferOf(rig.Moving()[0]);
  EXPECT_EQ(copy.key, Key(model, 1));
  EXPECT_NE(copy.by<HostToClient>()->memfd, nullptr);
  EXPECT_TRUE(rig.waiting(request));
  rig.Finish<HostToClient>();
  EXPECT_OK(StatusOf(rig, request));
  EXPECT_EQ(rig.TierOf(NodeRig::FirstDevice()).used_bytes, 0u);
  EXPECT_EQ(rig.counters().stages, 0u);
  ExpectFree(rig, model);
}

TEST(NodeReadImage, WhatIsOnTheHostIsCopiedAtOnceThoughNothingMayWait) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const GroupKey key = rig.Published(session, "p", "a", 2);
  const RequestId request = rig.ReadImage(session, key, absl::ZeroDuration());
  ASSERT_THAT(rig.Moving<HostToClient>(), SizeIs(1));
  rig.FinishAll();
  EXPECT_OK(StatusOf(rig, request));
}

TEST(NodeReadImage, TheHostCopyStaysWhileItIsCopied) {
  NodeRig rig({.host_pages = 4});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {3, 3});
  const RequestId first = rig.ReadImage(session, Key(model, 0));
  rig.Finish<FilesToHost>();
  EXPECT_EQ(rig.Evict("m").kept, 1u);
  EXPECT_THAT(rig.Forget(model), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("being copied")));
  const RequestId second = rig.ReadImage(session, Key(model, 1));
  EXPECT_TRUE(rig.waiting(second));  // There is room for one.
  rig.Finish<HostToClient>();
  EXPECT_OK(StatusOf(rig, first));
  EXPECT_FALSE(rig.Has(Key(model, 0), OnHost()));  // Evicted for the other.
  rig.FinishAll();
  EXPECT_OK(StatusOf(rig, second));
  ExpectFree(rig, model);
}

TEST(NodeReadImage, TwoWhoWantTheSameShareOneReadFromDisk) {
  NodeRig rig;
  const SessionId a = rig.Open(), b = rig.Open();
  const ModelId model = rig.AddModel(a, "m", {2});
  const RequestId first = rig.ReadImage(a, Key(model, 0));
  const RequestId second = rig.ReadImage(b, Key(model, 0));
  EXPECT_THAT(rig.Moving(), SizeIs(1));
  rig.Finish<FilesToHost>();
  EXPECT_THAT(rig.Moving<HostToClient>(), SizeIs(2));
  rig.Finish<HostToClient>();
  EXPECT_THAT(rig.Evict("m").kept_reason, HasSubstr("copied"));
  rig.Finish<HostToClient>();
  EXPECT_OK(StatusOf(rig, first));
  EXPECT_OK(StatusOf(rig, second));
  ExpectFree(rig, model);
}

TEST(NodeReadImage, ASpilledGroupComesFromTheStore) {
  NodeRig rig({.can_spill = true});
  const SessionId session = rig.Open();
  const GroupKey key = rig.Published(session, "p", "a", 2);
  rig.Evict("p");
  rig.Finish<HostToSpill>();
  ASSERT_FALSE(rig.Has(key, OnHost()));
  const RequestId request = rig.ReadImage(session, key);
  rig.FinishAll();
  EXPECT_OK(StatusOf(rig, request));
  EXPECT_EQ(rig.counters().spill_read_bytes, 2 * kPage);
}

TEST(NodeReadImage, ACopyThatIsReadMaySpillMeanwhile) {
  NodeRig rig({.can_spill = true});
  const SessionId session = rig.Open();
  const GroupKey key = rig.Published(session, "p", "a", 2);
  rig.Evict("p");
  const RequestId request = rig.ReadImage(session, key);
  rig.Finish<HostToSpill>();
  EXPECT_TRUE(rig.Has(key, OnHost()));  // The client's copy reads it.
  rig.Finish<HostToClient>();
  EXPECT_OK(StatusOf(rig, request));
  EXPECT_EQ(rig.Evict("p").groups, 1u);
  ExpectFree(rig, key.model);
}

TEST(NodeReadImage, AFailedCopyIsToldAndKeepsNothing) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  const RequestId request = rig.ReadImage(session, Key(model, 0));
  rig.Finish<FilesToHost>();
  rig.Finish<HostToClient>(absl::InvalidArgumentError("it has holes"));
  EXPECT_THAT(StatusOf(rig, request),
              StatusIs(absl::StatusCode::kInvalidArgument, "it has holes"));
  EXPECT_TRUE(rig.Has(Key(model, 0), OnHost()));  // It is still good.
  ExpectFree(rig, model);
}

TEST(NodeReadImage, AFileThatCannotBeReadIsToldAndKeepsNothing) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  const RequestId request = rig.ReadImage(session, Key(model, 0));
  rig.Finish<FilesToHost>(absl::DataLossError("the file changed"));
  EXPECT_THAT(StatusOf(rig, request), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(rig.Moving(), IsEmpty());
  ExpectFree(rig, model);
}

TEST(NodeReadImage, ASessionThatClosesInTheCopyLeavesNothingBehind) {
  NodeRig rig;
  const SessionId session = rig.Open(), other = rig.Open();
  const ModelId model = rig.AddModel(other, "m", {2});
  rig.ReadImage(session, Key(model, 0));
  rig.Finish<FilesToHost>();
  rig.Close(session);
  // Until its end the copy reads the host's memory.
  EXPECT_EQ(rig.Evict("m").kept, 1u);
  rig.Finish<HostToClient>();
  ExpectFree(rig, model);
}

TEST(NodeReadImage, ASessionThatClosesBeforeTheCopyStartsNone) {
  NodeRig rig;
  const SessionId session = rig.Open(), other = rig.Open();
  const ModelId model = rig.AddModel(other, "m", {2});
  rig.ReadImage(session, Key(model, 0));
  rig.Close(session);
  rig.Finish<FilesToHost>();
  EXPECT_THAT(rig.Moving(), IsEmpty());
  ExpectFree(rig, model);
}

TEST(NodeReadImage, NoSpaceInTimeIsRefusedWithNumbers) {
  NodeRig rig({.host_pages = 4});
  const SessionId session = rig.Open();
  rig.Published(session, "p", "a", 3);  // Cannot leave: nothing spills.
  const ModelId model = rig.AddModel(session, "m", {2});
  const RequestId now =
      rig.ReadImage(session, Key(model, 0), absl::ZeroDuration());
  EXPECT_THAT(StatusOf(rig, now), StatusIs(kExhausted, HasSubstr("published")));
  const RequestId later =
      rig.ReadImage(session, Key(model, 0), absl::Seconds(5));
  EXPECT_TRUE(rig.waiting(later));
  rig.Advance(absl::Seconds(6));
  EXPECT_THAT(StatusOf(rig, later), StatusIs(kExhausted));
}

TEST(NodeReadImage, BytesThatComeTooLateAreADeadlineExceeded) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  const RequestId request =
      rig.ReadImage(session, Key(model, 0), absl::Seconds(5));
  rig.Advance(absl::Seconds(6));
  EXPECT_THAT(StatusOf(rig, request), StatusIs(kLate));
  rig.FinishAll();
  ExpectFree(rig, model);
}

TEST(NodeReadImage, AGroupLargerThanTheHostIsRefused) {
  NodeRig rig({.host_pages = 4});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {5});
  EXPECT_THAT(StatusOf(rig, rig.ReadImage(session, Key(model, 0))),
              StatusIs(kExhausted, HasSubstr("host.pool")));
}

TEST(NodeReadImage, OnlyReadersMayReadAndOnlyWhatIsThere) {
  NodeRig rig;
  const SessionId owner = rig.Open(/*uid=*/1), other = rig.Open(/*uid=*/2);
  const ModelId model = rig.AddModel(owner, "m", {2});
  EXPECT_THAT(StatusOf(rig, rig.ReadImage(other, Key(model, 0))),
              StatusIs(kNotFound));
  EXPECT_THAT(StatusOf(rig, rig.ReadImage(owner, Key(model, 1))),
              StatusIs(kNotFound));
  EXPECT_THAT(StatusOf(rig, rig.ReadImage(owner, Key(ModelId(77), 0))),
              StatusIs(kNotFound));
  EXPECT_THAT(rig.Moving(), IsEmpty());
}

TEST(NodeReadImage, AMemfdOfAnotherSizeIsRefused) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  for (const uint64_t bytes : {uint64_t{0}, kPage, 3 * kPage, UINT64_MAX}) {
    EXPECT_THAT(StatusOf(rig, rig.ReadImage(session, Key(model, 0),
                                            absl::Seconds(1), bytes)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("image has 8192")));
  }
  EXPECT_THAT(rig.Moving(), IsEmpty());
}

TEST(NodeReadImage, ADrainingNodeGivesBackWhatAWorkerHandedOver) {
  NodeRig rig({.can_spill = true});
  const SessionId session = rig.Open();
  const GroupKey host = rig.Published(session, "p", "a", 2);
  const GroupKey disk = rig.Published(session, "q", "a", 2);
  rig.Evict("q", OnHost());
  rig.FinishAll();
  rig.Drain(true);
  for (const GroupKey key : {host, disk}) {
    const RequestId read = rig.ReadImage(session, key);
    rig.FinishAll();
    EXPECT_OK(StatusOf(rig, read));
  }
}

}  // namespace hoistd::node_read_image_test
