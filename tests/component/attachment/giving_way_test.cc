// Attachments that give way, over a real hoistd that others need.
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "gtest/gtest.h"
#include "hoist/hoist_attachment.h"
#include "tests/component/attachment/attachment_rig.h"
#include "tests/support/no_threads.h"

namespace hoistd::testing::attachment_test {
namespace {

constexpr uint64_t kOthers = kPool / kGroups;  // Of a group.

class GivingWayTest : public AttachmentTest {
 protected:
  void Start() {
    StartHoistd({.device_bytes = kPool, .slab_bytes = kPool});
    ConnectAnew();
  }
  void ConnectAnew() {
    auto session = hoistd_->Connect();
    ASSERT_TRUE(session.ok()) << session.status().message();
    session_.emplace(std::move(*session));
  }
  // The budget is hoistd's choice: all of it.
  hoist::AttachmentOptions Giving() {
    hoist::AttachmentOptions options = Options();
    options.plan.budget_bytes = 0;
    options.plan.gives_way = true;
    return options;
  }
  // On session_, of which the model is, and known by its content.
  hoist::Status AttachOwn() {
    auto model = PublishAs(*session_, "own", 1, Ascending());
    if (!model.ok()) return model.status();
    hoist::AttachmentOptions options = Giving();
    options.source = *model->content();
    attachment_.reset();
    auto made = hoist::Attachment::Create(options, *session_, *model);
    if (made.ok()) attachment_.emplace(std::move(*made));
    return made.status();
  }
  // Of another model, which never gives way.
  hoist::Result<hoist::Attachment> AttachOther(uint64_t budget) {
    auto model = PublishAs(*session_, "other", 2, Ascending(), kOthers);
    if (!model.ok()) return model.status();
    hoist::AttachmentOptions options = Options();
    options.source = "other";
    options.plan.budget_bytes = budget;
    return hoist::Attachment::Create(options, *session_, *model);
  }
  void Ctl(const std::string& command) {
    const std::string line = std::string(HOISTCTL_BINARY) + " --socket " +
                             hoistd_->grpc_socket() + " " + command;
    EXPECT_EQ(std::system(line.c_str()), 0) << line;
  }
  void Sleep() {
    Ctl("sleep " + std::to_string(hoist_session_id(session_->get())));
  }
  void Wake() {
    Ctl("wake " + std::to_string(hoist_session_id(session_->get())));
  }
  // By its event, as a worker does.
  void Await(AttachmentState state) {
    while (attachment_->state() != state) {
      ASSERT_TRUE(Readable());
      ReadEvent();
    }
  }

  std::optional<hoist::Session> session_;
};

TEST_F(GivingWayTest, AnIdleOneMakesRoomForAnotherModel) {
  Start();
  ASSERT_TRUE(AttachOwn().ok());
  ExpectPass();
  EXPECT_EQ(PlanInfo().streamed_count, 0u);
  const uint64_t generation = Info().generation;
  auto other = AttachOther(7 * kOthers);
  ASSERT_TRUE(other.ok()) << other.status().message();
  Await(AttachmentState::kAsleep);
  EXPECT_GT(Info().generation, generation);
  EXPECT_EQ(attachment_->stats().stages, 0u);
  ExpectPass();  // Of what the other leaves.
  EXPECT_EQ(attachment_->state(), AttachmentState::kReady);
  EXPECT_GT(PlanInfo().streamed_count, 0u);
  const auto data = other->Stage(3);
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(WrongWords(*data, 2, 3, kOthers), 0u);
  EXPECT_TRUE(other->Done(3).ok());
}

TEST_F(GivingWayTest, SleepsAndWakesForAnAdmin) {
  Start();
  ASSERT_TRUE(AttachOwn().ok());
  for (int time = 1; time <= 2; ++time) {
    ExpectPass();
    Sleep();
    Await(AttachmentState::kAsleep);
    Wake();
    Await(AttachmentState::kReady);
    EXPECT_EQ(Info().renewals, static_cast<uint64_t>(time));
  }
  ExpectPass();
  Wake();  // It has nothing to do.
  ExpectPass();
  EXPECT_EQ(Info().renewals, 2u);
}

TEST_F(GivingWayTest, APassKeepsItsMemoryUntilItsEnd) {
  Start();
  ASSERT_TRUE(AttachOwn().ok());
  const void* const first = Stage(1);
  Sleep();
  EXPECT_TRUE(Use(2, 2).ok());
  EXPECT_EQ(WrongWords(first, 1, 1, kBytes), 0u);
  EXPECT_TRUE(Done(1).ok());
  EXPECT_EQ(Stage(1), first);
  EXPECT_TRUE(Done(1).ok());
  EXPECT_EQ(Info().renewals, 0u);
  EXPECT_TRUE(attachment_->EndPass().ok());
  Await(AttachmentState::kAsleep);
  ExpectPass();
}

TEST_F(GivingWayTest, APassWithoutAnEndIsOverOnceItIsIdle) {
  Start();
  ASSERT_TRUE(AttachOwn().ok());
  EXPECT_TRUE(Use(1, 1).ok());
  Sleep();
  Await(AttachmentState::kAsleep);
  EXPECT_TRUE(Use(1, 1).ok());
}

TEST_F(GivingWayTest, AWakingWithoutRoomIsRefusedAndLosesNothing) {
  Start();
  ASSERT_TRUE(AttachOwn().ok());
  ExpectPass();
  Sleep();
  Await(AttachmentState::kAsleep);
  std::optional<hoist::Attachment> other;
  {
    auto made = AttachOther(kPool);
    ASSERT_TRUE(made.ok()) << made.status().message();
    other.emplace(std::move(*made));
  }
  const hoist::Status full = Use(1, 1);
  EXPECT_EQ(full.code(), Code::kResourceExhausted) << full.message();
  Wake();
  EXPECT_EQ(Use(1, 1).code(), Code::kResourceExhausted);
  EXPECT_EQ(attachment_->state(), AttachmentState::kAsleep);
  EXPECT_TRUE(Check().ok());
  other.reset();
  ExpectPass();  // Only this session had its bytes.
}

TEST_F(GivingWayTest, AHoistdThatEndsMeanwhileIsFollowedByTheNext) {
  Start();
  ASSERT_TRUE(Attach(Giving()).ok());
  ExpectPass();
  auto other = AttachOther(7 * kOthers);
  ASSERT_TRUE(other.ok()) << other.status().message();
  Await(AttachmentState::kAsleep);
  Restart();
  ExpectPass();
  ConnectAnew();
  auto again = AttachOther(7 * kOthers);  // It asks the new plan, too.
  ASSERT_TRUE(again.ok()) << again.status().message();
  Await(AttachmentState::kAsleep);
  ExpectPass();
}

TEST_F(GivingWayTest, ADrainingHoistdLetsItGoOn) {
  Start();
  ASSERT_TRUE(AttachOwn().ok());
  ExpectPass();
  Sleep();
  Await(AttachmentState::kAsleep);
  Ctl("drain");
  ExpectPass();
  Sleep();
  Await(AttachmentState::kAsleep);
  ExpectPass();
}

TEST_F(GivingWayTest, AHoistdThatDiesMeanwhileVoidsNothing) {
  Start();
  hoist::AttachmentOptions options = Giving();
  auto model =
      session_->RegisterModel(std::get<hoist::RegisterOptions>(options.source));
  ASSERT_TRUE(model.ok()) << model.status().message();
  auto made = hoist::Attachment::Create(options, *session_, *model);
  ASSERT_TRUE(made.ok()) << made.status().message();
  attachment_.emplace(std::move(*made));
  ExpectPass();
  ASSERT_NE(Stage(1), nullptr);
  Sleep();
  kill(hoistd_->pid(), SIGSTOP);  // It does not answer to the plan's end.
  EXPECT_TRUE(Done(1).ok());
  EXPECT_TRUE(attachment_->EndPass().ok());
  ASSERT_TRUE(Readable());  // Its thread is about to end the plan, or has.
  hoistd_->Kill();
  EXPECT_TRUE(Check().ok());
  hoistd_->Start();
  ExpectPass();
}

TEST_F(GivingWayTest, WithoutAThreadItIsRefused) {
  Start();
  {
    const NoThreads none;
    const hoist::Status refused = AttachOwn();
    EXPECT_EQ(refused.code(), Code::kResourceExhausted);
    EXPECT_NE(refused.message().find("ulimit -u"), std::string::npos)
        << refused.message();
  }
  ASSERT_TRUE(AttachOwn().ok());
  ExpectPass();
}

TEST_F(GivingWayTest, ResidentsGoWithThePlan) {
  Start();
  hoist::AttachmentOptions options = Giving();
  options.residents = {1};
  ASSERT_TRUE(Attach(options).ok());
  ExpectPass();
  auto other = AttachOther(7 * kOthers);
  ASSERT_TRUE(other.ok()) << other.status().message();
  Await(AttachmentState::kAsleep);
  ExpectPass();
  EXPECT_EQ(attachment_->kind(1), hoist::Planned::kResident);
}

}  // namespace
}  // namespace hoistd::testing::attachment_test
