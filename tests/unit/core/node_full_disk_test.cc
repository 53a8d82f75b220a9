// A disk that is full: what it has is reached all the same, and it is said.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_full_disk_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;
using ::testing::SizeIs;
using testing::StatusIs;

// A node whose disk takes so many images more.
class FillingDisk {
 public:
  FillingDisk(const NodeRigOptions& options, int room)
      : rig(options), session(rig.Open()), room_(room) {}

  // Until nothing moves any more.
  void Settle() {
    while (!rig.Moving().empty()) {
      const TransferId next = rig.Moving()[0];
      const bool spills = rig.TransferOf(next).by<HostToSpill>() != nullptr;
      if (spills && room_ == 0) {
        rig.Finish(next, absl::ResourceExhaustedError("the disk is full"));
        continue;
      }
      if (spills) --room_;
      rig.Finish(next);
    }
  }
  // nullopt: it was refused.
  std::optional<GroupKey> Publish(const std::string& group, uint64_t pages,
                                  const std::string& to = "p") {
    const RequestId request =
        rig.Publish(session, to, group, pages, 0, absl::Seconds(1));
    Settle();
    if (rig.waiting(request)) rig.Advance(absl::Seconds(2));
    Settle();
    refused = rig.AnswerTo(request)->status;
    if (!refused.ok()) return std::nullopt;
    const ModelPtr model = rig.AnswerTo(request)->model;
    return GroupKey{
        model->id,
        GroupIndex(static_cast<uint32_t>(model->spec->groups.size() - 1))};
  }
  // Whether the group can be staged.
  absl::Status Reach(GroupKey key) {
    const RequestId request = rig.Stage(session, key, absl::Seconds(1));
    Settle();
    if (rig.waiting(request)) rig.Advance(absl::Seconds(2));
    Settle();
    const absl::Status status = rig.AnswerTo(request)->status;
    if (status.ok()) {
      EXPECT_OK(rig.Release(session, rig.LeaseOf(request)));
    }
    return status;
  }

  void MakeRoom(int images) {
    room_ += images;
    rig.Advance(SpillBook::kRetry);
    Settle();
  }
  // What was said of the disk, in order.
  std::vector<NodeEvent> Told() const {
    std::vector<NodeEvent> told = rig.events();
    std::erase_if(told, [](const NodeEvent& event) {
      return event.kind != EventKind::kDiskFull &&
             event.kind != EventKind::kDiskWritable;
    });
    return told;
  }
  absl::Duration FullFor() const { return rig.TierOf(OnDisk()).full_for; }

  NodeRig rig;
  const SessionId session;
  absl::Status refused;

 private:
  int room_;
};

NodeRigOptions Options(uint64_t host_pages, bool saves_at_once) {
  NodeRigOptions options;
  options.host_pages = host_pages;
  options.can_spill = true;
  options.saves_at_once = saves_at_once;
  return options;
}

TEST(NodeFullDisk, WhateverWasTakenIsReachedWheneverTheDiskFills) {
  constexpr uint64_t kPages[] = {2, 1, 3, 1, 2, 3, 1, 2, 2};
  for (const bool saves_at_once : {false, true}) {
    for (int room = 0; room <= 9; ++room) {
      SCOPED_TRACE(absl::StrCat("room ", room, " at once ", saves_at_once));
      FillingDisk disk(Options(8, saves_at_once), room);
      std::vector<GroupKey> taken;
      for (size_t i = 0; i < std::size(kPages); ++i) {
        const auto key = disk.Publish(absl::StrCat("g", i), kPages[i]);
        if (key.has_value()) taken.push_back(*key);
      }
      EXPECT_GE(taken.size(), 3u);
      for (int pass = 0; pass < 2; ++pass) {
        for (const GroupKey key : taken) EXPECT_OK(disk.Reach(key));
      }
    }
  }
}

TEST(NodeFullDisk, WhatIsKeptFreeIsSaidToWhoIsRefused) {
  FillingDisk disk(Options(6, /*saves_at_once=*/true), /*room=*/1);
  ASSERT_TRUE(disk.Publish("a", 2).has_value());
  ASSERT_TRUE(disk.Publish("b", 2).has_value());
  ASSERT_TRUE(disk.Publish("c", 2).has_value());
  EXPECT_FALSE(disk.Publish("d", 2).has_value());
  EXPECT_THAT(disk.refused,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("8.0 KiB of it is reserved"),
                             HasSubstr("only the disk holds"))));
}

// It could not stay: what was read back is not read again and again for it.
TEST(NodeFullDisk, WhoIsRefusedPushesNothingOut) {
  FillingDisk disk(Options(6, /*saves_at_once=*/true), /*room=*/1);
  const auto spilled = disk.Publish("a", 2);
  ASSERT_TRUE(spilled.has_value());
  ASSERT_TRUE(disk.Publish("b", 2).has_value());
  ASSERT_TRUE(disk.Publish("c", 2).has_value());
  ASSERT_TRUE(disk.rig.Has(*spilled, OnHost()));
  EXPECT_FALSE(disk.Publish("d", 2).has_value());
  EXPECT_TRUE(disk.rig.Has(*spilled, OnHost()));
}

TEST(NodeFullDisk, IsSaidAtOnceAndOnceAndSoIsItsEnd) {
  FillingDisk disk(Options(16, /*saves_at_once=*/true), /*room=*/1);
  disk.Publish("a", 2);
  EXPECT_THAT(disk.Told(), SizeIs(0));
  EXPECT_EQ(disk.FullFor(), absl::ZeroDuration());
  disk.Publish("b", 2);
  ASSERT_THAT(disk.Told(), SizeIs(1));
  EXPECT_EQ(disk.Told()[0].kind, EventKind::kDiskFull);
  EXPECT_EQ(disk.Told()[0].bytes, 2 * kPage);
  EXPECT_EQ(disk.Told()[0].detail, "the disk is full");
  EXPECT_GT(disk.FullFor(), absl::ZeroDuration());
  // It is tried again, and found full again.
  disk.MakeRoom(0);
  disk.Publish("c", 1);
  disk.MakeRoom(0);
  EXPECT_GE(disk.FullFor(), 2 * SpillBook::kRetry);
  ASSERT_THAT(disk.Told(), SizeIs(1));
  disk.MakeRoom(1);
  ASSERT_THAT(disk.Told(), SizeIs(3));  // It has room for one of the two.
  EXPECT_EQ(disk.Told()[1].kind, EventKind::kDiskWritable);
  disk.MakeRoom(1);
  ASSERT_THAT(disk.Told(), SizeIs(4));
  EXPECT_EQ(disk.Told()[3].bytes, 0u);
  EXPECT_EQ(disk.FullFor(), absl::ZeroDuration());
}

TEST(NodeFullDisk, IsNoMatterWhereNothingIsToBeWritten) {
  FillingDisk disk(Options(16, /*saves_at_once=*/true), /*room=*/0);
  const auto key = disk.Publish("a", 2);
  ASSERT_TRUE(key.has_value());
  EXPECT_GT(disk.FullFor(), absl::ZeroDuration());
  ASSERT_OK(disk.rig.Forget(key->model));
  EXPECT_EQ(disk.FullFor(), absl::ZeroDuration());
}

TEST(NodeFullDisk, WhoWaitsForSpillsGoesOnOnceTheyEnd) {
  for (const bool saves_at_once : {false, true}) {
    FillingDisk disk(Options(8, saves_at_once), /*room=*/9);
    for (int i = 0; i < 9; ++i) {
      const RequestId request =
          disk.rig.Publish(disk.session, "p", absl::StrCat("g", i), 2);
      disk.Settle();
      EXPECT_FALSE(disk.rig.waiting(request)) << i << " " << saves_at_once;
    }
  }
}

TEST(NodeFullDisk, APoolOfOneImageIsStillPublishedTo) {
  FillingDisk disk(Options(2, /*saves_at_once=*/false), /*room=*/9);
  for (const char* group : {"a", "b", "c"}) {
    const auto key = disk.Publish(group, 2);
    ASSERT_TRUE(key.has_value()) << group;
    EXPECT_OK(disk.Reach(*key));
  }
}

// "d" fits where "b" was, and "b" then finds no place beside it.
TEST(NodeFullDisk, WhatLiesAmidOthersMakesWayForTheWayBack) {
  FillingDisk disk(Options(12, /*saves_at_once=*/true), /*room=*/9);
  ASSERT_TRUE(disk.Publish("a", 3).has_value());
  const auto amid = disk.Publish("b", 6, "q");
  ASSERT_TRUE(amid.has_value());
  ASSERT_TRUE(disk.Publish("c", 3).has_value());
  ASSERT_EQ(disk.rig.Evict("q").groups, 1u);
  const auto key = disk.Publish("d", 5);
  ASSERT_TRUE(key.has_value()) << disk.refused;
  EXPECT_OK(disk.Reach(*key));
  EXPECT_OK(disk.Reach(*amid));
}

}  // namespace hoistd::node_full_disk_test
