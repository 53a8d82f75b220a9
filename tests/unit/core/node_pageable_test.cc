// Images go from the pool to pageable memory, and back.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_pageable_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;
using ::testing::SizeIs;

class NodePageable : public ::testing::Test {
 protected:
  explicit NodePageable(NodeRigOptions options = {.host_pages = 6,
                                                  .pageable_pages = 4,
                                                  .can_spill = true,
                                                  .saves_at_once = true})
      : rig_(std::move(options)) {}

  // Of two pages; the disk has it, too.
  GroupKey Saved(const std::string& group) {
    const RequestId request = rig_.Publish(session_, "p", group, 2);
    rig_.FinishAll();
    rig_.Advance(absl::Seconds(1));
    const ModelPtr model = rig_.AnswerTo(request)->model;
    return {model->id, *FindGroup(*model->spec, group)};
  }
  // Publishes `group`, for which `victim` is being copied out.
  RequestId PushOut(GroupKey victim, const std::string& group) {
    const RequestId request = rig_.Publish(session_, "p", group, 2);
    EXPECT_THAT(rig_.Moving<HostToPageable>(), SizeIs(1));
    EXPECT_EQ(rig_.TransferOf(rig_.Moving<HostToPageable>().at(0)).key, victim);
    return request;
  }
  bool Pageable(GroupKey key) const { return rig_.Has(key, OnPageable()); }

  NodeRig rig_;
  const SessionId session_ = rig_.Open();
};

TEST_F(NodePageable, WhatMakesRoomComesBackFromThere) {
  const GroupKey a = Saved("a");
  Saved("b");
  Saved("c");
  PushOut(a, "d");
  EXPECT_EQ(rig_.StateOf(a, OnHost()), Residency::kLeaving);
  rig_.FinishAll();
  EXPECT_FALSE(rig_.Has(a, OnHost()));
  EXPECT_TRUE(Pageable(a));
  EXPECT_EQ(rig_.TierOf(OnPageable()).used_bytes, 2 * kPage);
  EXPECT_EQ(rig_.counters().host_evictions, 1u);
  rig_.StageNow(session_, a);
  EXPECT_TRUE(rig_.Has(a, OnHost()));
  EXPECT_FALSE(Pageable(a)) << "it is in one of the two";
  EXPECT_EQ(rig_.counters().pageable_read_bytes, 2 * kPage);
  const auto from = static_cast<size_t>(Tier::kPageable);
  EXPECT_EQ(rig_.counters().stage_times[from].total, 1u);
  EXPECT_EQ(rig_.counters().spill_read_bytes, 0u);
}

TEST_F(NodePageable, TheOldestIsReadFromTheDiskAgain) {
  const GroupKey a = Saved("a");
  const GroupKey b = Saved("b");
  for (const char* group : {"c", "d", "e", "f"}) Saved(group);
  EXPECT_FALSE(Pageable(a));
  EXPECT_TRUE(Pageable(b));
  rig_.StageNow(session_, a);
  EXPECT_EQ(rig_.counters().spill_read_bytes, 2 * kPage);
}

TEST_F(NodePageable, WithoutMemoryItGoesToTheDiskAlone) {
  const GroupKey a = Saved("a");
  Saved("b");
  Saved("c");
  PushOut(a, "d");
  rig_.Finish<HostToPageable>(absl::ResourceExhaustedError("no memory"));
  EXPECT_FALSE(rig_.Has(a, OnHost()));
  EXPECT_FALSE(Pageable(a));
  EXPECT_EQ(rig_.TierOf(OnPageable()).used_bytes, 0u);
  rig_.FinishAll();
  // The next ones do not try.
  Saved("e");
  EXPECT_EQ(rig_.TierOf(OnPageable()).used_bytes, 0u);
  rig_.Advance(PageableBook::kRetry);
  Saved("f");
  EXPECT_EQ(rig_.TierOf(OnPageable()).used_bytes, 2 * kPage);
  rig_.StageNow(session_, a);
  EXPECT_EQ(rig_.counters().spill_read_bytes, 2 * kPage);
}

TEST_F(NodePageable, OnAFullDiskWhatItHasStillMakesRoom) {
  const GroupKey a = Saved("a");
  Saved("b");
  rig_.Publish(session_, "p", "c", 2);
  rig_.Finish<ClientToHost>();
  rig_.Finish<HostToSpill>(absl::ResourceExhaustedError("the disk is full"));
  const RequestId d = PushOut(a, "d");
  rig_.FinishAll();
  EXPECT_OK(rig_.AnswerTo(d)->status);
  EXPECT_TRUE(Pageable(a));
  EXPECT_EQ(rig_.TierOf(OnHost()).unsaved_bytes, 4 * kPage) << "c and d stay";
  rig_.StageNow(session_, a);
  EXPECT_EQ(rig_.counters().pageable_read_bytes, 2 * kPage);
}

TEST_F(NodePageable, WhatIsStagedWhileItLeavesStays) {
  const GroupKey a = Saved("a");
  Saved("b");
  Saved("c");
  PushOut(a, "d");
  const RequestId stage = rig_.Stage(session_, a);
  ASSERT_THAT(rig_.Moving<HostToDevice>(), SizeIs(1));
  rig_.Finish<HostToPageable>();
  EXPECT_TRUE(rig_.Has(a, OnHost()));
  EXPECT_FALSE(Pageable(a));
  rig_.FinishAll();
  EXPECT_OK(rig_.AnswerTo(stage)->status);
}

TEST_F(NodePageable, WhatIsForgottenWhileItLeavesIsGone) {
  const GroupKey a = Saved("a");
  Saved("b");
  Saved("c");
  PushOut(a, "d");
  rig_.Close(session_);
  ASSERT_OK(rig_.Forget(a.model));
  EXPECT_EQ(rig_.TierOf(OnPageable()).used_bytes, 2 * kPage);
  rig_.FinishAll();
  EXPECT_EQ(rig_.TierOf(OnPageable()).used_bytes, 0u);
  EXPECT_EQ(rig_.TierOf(OnHost()).used_bytes, 0u);
  EXPECT_THAT(rig_.spills(), IsEmpty());
}

TEST_F(NodePageable, AnAdminsEvictionReachesBoth) {
  const GroupKey a = Saved("a");
  for (const char* group : {"b", "c", "d"}) Saved(group);
  ASSERT_TRUE(Pageable(a));
  EXPECT_EQ(rig_.Evict("p").groups, 4u);
  rig_.FinishAll();
  EXPECT_EQ(rig_.TierOf(OnPageable()).used_bytes, 0u);
  EXPECT_EQ(rig_.TierOf(OnHost()).used_bytes, 0u);
}

TEST_F(NodePageable, ADrainCopiesOn) {
  const GroupKey a = Saved("a");
  Saved("b");
  Saved("c");
  const RequestId d = PushOut(a, "d");
  rig_.Drain(true);
  rig_.FinishAll();
  EXPECT_OK(rig_.AnswerTo(d)->status);
  EXPECT_TRUE(Pageable(a));
  rig_.StageNow(session_, a);
}

TEST_F(NodePageable, AnotherHoistdReadsTheDisk) {
  const GroupKey a = Saved("a");
  const GroupKey b = Saved("b");
  for (const char* group : {"c", "d"}) Saved(group);
  ASSERT_TRUE(Pageable(a));
  rig_.Publish(session_, "p", "e", 2);
  ASSERT_THAT(rig_.Moving<HostToPageable>(), SizeIs(1));
  ASSERT_TRUE(rig_.Die());
  rig_.FinishAll();
  EXPECT_EQ(rig_.TierOf(OnPageable()).used_bytes, 0u);
  for (const GroupKey key : {a, b}) rig_.StageNow(session_, key);
}

TEST_F(NodePageable, ACheckReadsItThere) {
  const GroupKey a = Saved("a");
  for (const char* group : {"b", "c", "d"}) Saved(group);
  ASSERT_TRUE(Pageable(a));
  const RequestId check = rig_.CheckGroup(a);
  EXPECT_THAT(rig_.Moving<CheckOnPageable>(), SizeIs(1));
  rig_.FinishAll();
  EXPECT_EQ(rig_.AnswerTo(check)->checked.bytes, 4 * kPage) << "the disk too";
  EXPECT_THAT(rig_.AnswerTo(check)->checked.findings, IsEmpty());
  EXPECT_TRUE(Pageable(a));
}

TEST_F(NodePageable, ADamagedOneIsFoundAndTheDiskServes) {
  const GroupKey a = Saved("a");
  for (const char* group : {"b", "c", "d"}) Saved(group);
  ASSERT_TRUE(Pageable(a));
  rig_.ChangeOnHost(a);
  const RequestId check = rig_.CheckGroup(a);
  rig_.FinishAll();
  const CheckedGroup& checked = rig_.AnswerTo(check)->checked;
  ASSERT_THAT(checked.findings, SizeIs(1));
  EXPECT_EQ(checked.findings[0].at, OnPageable());
  EXPECT_THAT(checked.findings[0].what, HasSubstr("its bytes changed"));
  EXPECT_FALSE(Pageable(a));
  EXPECT_EQ(rig_.TierOf(OnPageable()).used_bytes, 0u);
  rig_.StageNow(session_, a);
  EXPECT_EQ(rig_.counters().spill_read_bytes, 2 * kPage);
}

TEST_F(NodePageable, ADamagedOneIsLostIfTheDiskIsDamagedToo) {
  for (const bool disk_first : {true, false}) {
    SCOPED_TRACE(disk_first);
    const GroupKey key = Saved(disk_first ? "a" : "e");
    for (const char* group : {"x", "y", "z"}) {
      Saved(group + std::to_string(disk_first));
    }
    ASSERT_TRUE(Pageable(key));
    rig_.ChangeOnHost(key);
    const RequestId check = rig_.CheckGroup(key);
    const auto disk = [&] {
      rig_.Finish<CheckOnDisk>(absl::DataLossError("wrong bytes"));
    };
    if (disk_first) disk();
    rig_.Finish<CheckOnPageable>();
    if (!disk_first) disk();
    EXPECT_THAT(rig_.AnswerTo(check)->checked.findings, SizeIs(2));
    EXPECT_EQ(rig_.StateOf(key, OnDisk()), Residency::kLost);
    EXPECT_FALSE(Pageable(key));
  }
}

// Whatever makes it leave, its place is not another's before the check's end.
TEST_F(NodePageable, ACheckReadsOnWhenItLeaves) {
  const GroupKey a = Saved("a");
  for (const char* group : {"b", "c", "d"}) Saved(group);
  ASSERT_TRUE(Pageable(a));
  const RequestId check = rig_.CheckGroup(a);
  rig_.Evict("p");
  EXPECT_FALSE(Pageable(a));
  EXPECT_EQ(rig_.TierOf(OnPageable()).used_bytes, 2 * kPage);
  for (const char* group : {"e", "f", "g", "h"}) Saved(group);
  rig_.FinishAll();
  EXPECT_THAT(rig_.AnswerTo(check)->checked.findings, IsEmpty());
}

TEST_F(NodePageable, ADamagedOneThatIsStagedMeanwhileIsSaid) {
  const GroupKey a = Saved("a");
  for (const char* group : {"b", "c", "d"}) Saved(group);
  ASSERT_TRUE(Pageable(a));
  rig_.ChangeOnHost(a);
  const RequestId check = rig_.CheckGroup(a);
  rig_.Stage(session_, a);
  rig_.Finish<HostToPageable>();  // It makes room.
  ASSERT_THAT(rig_.Moving<PageableToHost>(), SizeIs(1));
  rig_.Finish<CheckOnPageable>();
  rig_.FinishAll();
  const CheckedGroup& checked = rig_.AnswerTo(check)->checked;
  ASSERT_THAT(checked.findings, SizeIs(1));
  EXPECT_THAT(checked.findings[0].what, HasSubstr("check again"));
}

// The disk's image proves damaged while pageable memory has the other one.
TEST_F(NodePageable, ADamagedDiskIsRepairedFromThere) {
  const GroupKey a = Saved("a");
  for (const char* group : {"b", "c", "d"}) Saved(group);
  ASSERT_TRUE(Pageable(a));
  const RequestId check = rig_.CheckGroup(a);
  rig_.Finish<CheckOnDisk>(absl::DataLossError("wrong bytes"));
  rig_.Finish<CheckOnPageable>();
  ASSERT_THAT(rig_.AnswerTo(check)->checked.findings, SizeIs(1));
  EXPECT_THAT(rig_.AnswerTo(check)->checked.findings[0].what,
              HasSubstr("pageable memory has its bytes"));
  EXPECT_FALSE(rig_.Has(a, OnDisk()));
  // It is the only one, so it stays.
  for (const char* group : {"e", "f", "g"}) Saved(group);
  EXPECT_TRUE(Pageable(a));
  rig_.StageNow(session_, a);
  rig_.FinishAll();
  EXPECT_TRUE(rig_.Has(a, OnDisk())) << "it is written again";
}

TEST_F(NodePageable, GroupsOfFilesAreReadAgain) {
  const ModelId files = rig_.AddModel(session_, "f", {2, 2, 2, 2});
  for (uint32_t g = 0; g < 4; ++g) {
    const LeaseId lease = rig_.StageNow(session_, {files, GroupIndex(g)});
    EXPECT_OK(rig_.Release(session_, lease));
  }
  EXPECT_EQ(rig_.TierOf(OnPageable()).used_bytes, 0u);
  EXPECT_EQ(rig_.counters().pageable_written_bytes, 0u);
}

class NodeWithoutPageable : public NodePageable {
 protected:
  NodeWithoutPageable()
      : NodePageable(
            {.host_pages = 6, .can_spill = true, .saves_at_once = true}) {}
};

TEST_F(NodeWithoutPageable, CleanCopiesAreDroppedAtOnce) {
  const GroupKey a = Saved("a");
  for (const char* group : {"b", "c", "d"}) Saved(group);
  EXPECT_FALSE(rig_.Has(a, OnHost()));
  EXPECT_THAT(rig_.Tiers(), SizeIs(3)) << "a device, the host, the disk";
}

}  // namespace hoistd::node_pageable_test
