#include "daemon/engine/engine_log.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/captured_log.h"

namespace hoistd::engine_log_test {

using ::hoistd::testing::CapturedLog;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::Time At(int64_t ms) { return absl::UnixEpoch() + absl::Milliseconds(ms); }

class EngineLogTest : public ::testing::Test {
 protected:
  EngineLogTest() { spdlog::set_level(spdlog::level::debug); }
  ~EngineLogTest() override { spdlog::set_level(spdlog::level::info); }

  // One of "m/g", of two million bytes.
  static Transfer TransferOf(uint64_t id, TransferWay way) {
    Transfer transfer;
    transfer.id = TransferId(id);
    auto model = std::make_shared<ModelSpec>();
    model->name = "m";
    transfer.model = std::move(model);
    auto group = std::make_shared<Group>();
    group->name = "g";
    group->image_bytes = 2'000'000;
    transfer.group = std::move(group);
    transfer.way = std::move(way);
    return transfer;
  }
  void Begin(Transfer transfer, absl::Time now) {
    Effects effects;
    effects.transfers.push_back(std::move(transfer));
    log_.Tell(effects, now);
  }

  CapturedLog captured_;
  EngineLog log_;
};

TEST_F(EngineLogTest, ATransferIsOneLineWhenItEnds) {
  Begin(TransferOf(1, HostToDevice{{}, DeviceIndex(3), 0}), At(0));
  FilesToHost files;
  files.reads = {{{0, 0, 300}}, {{1, 0, 700}}};
  Begin(TransferOf(2, std::move(files)), At(1));
  EXPECT_THAT(captured_.lines(""), IsEmpty());
  log_.Ended(TransferId(1), absl::OkStatus(), At(4));
  log_.Ended(TransferId(2), absl::DataLossError("bad\nblock"), At(5));
  log_.Ended(TransferId(2), absl::OkStatus(), At(6));  // It has ended.
  EXPECT_THAT(captured_.lines(""),
              ElementsAre("host -> device 3 m/g: 2000000 B in 4.0 ms, 500 MB/s",
                          "file -> host m/g: failed after 4.0 ms: DATA_LOSS: "
                          "bad\\nblock"));
}

TEST_F(EngineLogTest, ATransferThatTakesNoTimeHasNoRate) {
  Begin(TransferOf(1, CheckOnHost{}), At(0));
  log_.Ended(TransferId(1), absl::OkStatus(), At(0));
  EXPECT_THAT(captured_.lines("check on host m/g: 2000000 B in 0.0 ms, 0 MB/s"),
              ElementsAre(HasSubstr("")));
}

TEST_F(EngineLogTest, WhatIsPublishedBelongsToNoModelYet) {
  Transfer transfer = TransferOf(1, ClientToHost{nullptr, 0});
  transfer.model = nullptr;
  Begin(std::move(transfer), At(0));
  log_.Ended(TransferId(1), absl::OkStatus(), At(1));
  EXPECT_THAT(captured_.lines(""),
              ElementsAre(HasSubstr("client -> host g: ")));
}

TEST_F(EngineLogTest, EachEventIsALineAsWatchHasIt) {
  Effects effects;
  NodeEvent dropped;
  dropped.kind = EventKind::kCopyDropped;
  dropped.model = "m\n";
  dropped.group = "g";
  dropped.at = OnDevice(DeviceIndex(1));
  dropped.bytes = 512;
  dropped.detail = "evicted";
  NodeEvent closed;
  closed.kind = EventKind::kSessionClosed;
  closed.session = SessionId(5);
  effects.events = {dropped, closed};
  effects.ended.push_back({PlanId(4), DeviceIndex(0)});
  SlabWork work;
  work.kind = SlabWork::Kind::kDestroy;
  work.slab.id = SlabId(9);
  work.slab.bytes = 1024;
  effects.slabs = {work};
  log_.Tell(effects, At(0));
  EXPECT_THAT(
      captured_.lines(""),
      ElementsAre("slab 9 of device 0 is destroyed: 1.0 KiB",
                  "copy-dropped m\\n/g on device 1, 512 B: evicted",
                  "session-closed session 5", "plan 4 on device 0 ends"));
}

TEST_F(EngineLogTest, NothingIsToldAtAnotherLevel) {
  Begin(TransferOf(1, CheckOnHost{}), At(0));
  spdlog::set_level(spdlog::level::info);
  Begin(TransferOf(2, CheckOnHost{}), At(0));
  log_.Ended(TransferId(1), absl::OkStatus(), At(1));
  log_.SlabMade(DeviceIndex(0), SlabId(1), absl::OkStatus());
  log_.Staged(LeaseGrant(), "m/g", SessionId(1), absl::Seconds(1));
  log_.Planned(PlanGrant(), SessionId(1), absl::Seconds(1));
  EXPECT_THAT(captured_.lines(""), IsEmpty());
  // What began meanwhile is not known, and what ended is forgotten.
  spdlog::set_level(spdlog::level::debug);
  log_.Ended(TransferId(1), absl::OkStatus(), At(1));
  log_.Ended(TransferId(2), absl::OkStatus(), At(1));
  EXPECT_THAT(captured_.lines(""), IsEmpty());
}

TEST_F(EngineLogTest, APlanSaysWhatItHas) {
  PlanGrant plan;
  plan.id = PlanId(8);
  plan.budget_bytes = 3 << 20;
  plan.ring_bytes = 1 << 20;
  plan.resident_bytes = 2 << 20;
  plan.streamed_bytes = 5 << 20;
  plan.lead = 2;
  plan.groups.resize(3);
  plan.groups[1].resident = true;
  log_.Planned(plan, SessionId(5), absl::Milliseconds(7));
  EXPECT_THAT(
      captured_.lines(""),
      ElementsAre("plan 8 of session 5 stands on device 0: budget 3.0 MiB, 3 "
                  "groups, 1 resident (2.0 MiB), ring 1.0 MiB, 5.0 MiB "
                  "streamed a pass, 2 steps ahead; waited 7.0 ms"));
}

}  // namespace hoistd::engine_log_test
