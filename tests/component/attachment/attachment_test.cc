// Attachments (hoist/c/attachment.h) over real hoistds that die in every phase.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "hoist/hoist_attachment.h"
#include "tests/component/attachment/attachment_rig.h"

namespace hoistd::testing::attachment_test {

using hoist::internal::Sized;

TEST_F(AttachmentTest, IsFoundAgainByFilesWithoutAnError) {
  StartHoistd();
  ASSERT_TRUE(Attach().ok());
  ExpectPass();
  const hoist_plan_info before = PlanInfo();
  EXPECT_GT(before.streamed_count, 0u);
  for (uint64_t death = 1; death <= 3; ++death) {
    Restart();
    ExpectPass();
    const hoist_attachment_info info = Info();
    EXPECT_EQ(attachment_->state(), AttachmentState::kReady);
    EXPECT_EQ(info.renewals, death);
    EXPECT_GT(info.generation, before.generation);
    EXPECT_EQ(PlanInfo().budget_bytes, before.budget_bytes);
    EXPECT_EQ(PlanInfo().generation, info.generation);
  }
}

TEST_F(AttachmentTest, EndsItsStagesFirst) {
  StartHoistd();
  ASSERT_TRUE(Attach().ok());
  const void* const data = Stage(2);
  Restart();
  ASSERT_TRUE(Readable());
  // Its bytes stay until its end.
  EXPECT_EQ(WrongWords(data, 1, 2, kBytes), 0u);
  const hoist::Status other = Use(3, 3);
  EXPECT_EQ(other.code(), Code::kUnavailable);
  EXPECT_NE(other.message().find("not done; end them"), std::string::npos)
      << other.message();
  EXPECT_EQ(attachment_->state(), AttachmentState::kEnded);
  EXPECT_EQ(WrongWords(data, 1, 2, kBytes), 0u);
  EXPECT_TRUE(Done(2).ok());
  EXPECT_EQ(Done(2).code(), Code::kFailedPrecondition);
  ExpectPass();
  EXPECT_EQ(Info().renewals, 1u);
}

TEST_F(AttachmentTest, AStageInTurnWaitsForAnotherThreadsDone) {
  StartHoistd();
  ASSERT_TRUE(Attach().ok());
  const void* const data = Stage(2);
  Restart();
  std::thread other(
      [&] { EXPECT_TRUE(Use(3, 3, std::chrono::seconds(60)).ok()); });
  while (attachment_->state() != AttachmentState::kEnded) {
  }
  EXPECT_EQ(WrongWords(data, 1, 2, kBytes), 0u);
  EXPECT_TRUE(Done(2).ok());
  other.join();
  EXPECT_EQ(Info().renewals, 1u);
}

TEST_F(AttachmentTest, AStageThatWaitsForItsBytesGoesOnWithTheNextHoistd) {
  StartHoistd({.link = "256KiB/s"});
  ASSERT_TRUE(Attach().ok());
  std::thread killer([&] { Restart(); });
  // Some of these wait while hoistd dies, wherever it is in their load.
  for (int pass = 0; pass < 3; ++pass) ExpectPass();
  killer.join();
  ExpectPass();
  EXPECT_EQ(Info().renewals, 1u);
}

// Only the plan ends; its successor is of the same session.
TEST_F(AttachmentTest, AStageThatComesTooLateIsToldAndTheNextOneRenews) {
  StartHoistd({.link = "16KiB/s"});
  hoist::AttachmentOptions options = Options();
  options.plan.budget_bytes = 2 * kBytes;
  options.plan.stage_deadline = std::chrono::milliseconds(50);
  ASSERT_TRUE(Attach(options).ok());
  const hoist::Status late = Use(7, 7);
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded) << late.message();
  EXPECT_NE(late.message().find("is void"), std::string::npos)
      << late.message();
  EXPECT_EQ(attachment_->state(), AttachmentState::kEnded);
  EXPECT_EQ(Check().code(), Code::kDeadlineExceeded);  // Once.
  EXPECT_TRUE(Check().ok());
  EXPECT_TRUE(Renew().ok());
  EXPECT_EQ(Info().renewals, 1u);
  hoistd_->Kill();  // It would wait for the copy.
}

TEST_F(AttachmentTest, AHoistdThatDiesDuringARenewalIsFollowedByTheNext) {
  StartHoistd();
  ASSERT_TRUE(Attach().ok());
  hoistd_->Kill();
  hoistd_->Start();
  ASSERT_TRUE(hoistd_->Connect().ok());
  kill(hoistd_->pid(), SIGSTOP);  // It accepts, and says nothing.
  std::thread worker([&] { EXPECT_TRUE(Use(1, 1).ok()) << hoistd_->Log(); });
  while (attachment_->state() != AttachmentState::kRenewing) {
  }
  hoistd_->Kill();
  hoistd_->Start();
  worker.join();
  EXPECT_EQ(Info().renewals, 1u);
  ExpectPass();
}

TEST_F(AttachmentTest, AHoistdThatStaysAwayIsToldWithTheRemedy) {
  StartHoistd();
  hoist::AttachmentOptions options = Options();
  options.renew_deadline = std::chrono::milliseconds(50);
  ASSERT_TRUE(Attach(options).ok());
  KillAndSee();
  const hoist::Status away = Use(0, 0);
  EXPECT_EQ(away.code(), Code::kUnavailable);
  EXPECT_NE(away.message().find("none took its place in 50 ms; start it"),
            std::string::npos)
      << away.message();
  EXPECT_EQ(attachment_->state(), AttachmentState::kEnded);
  EXPECT_EQ(Renew().code(), Code::kUnavailable);
  hoistd_->Start();
  ASSERT_TRUE(hoistd_->Connect().ok());
  ExpectPass();
}

TEST_F(AttachmentTest, OtherWeightsUnderTheNameAreRefused) {
  StartHoistd();
  auto session = hoistd_->Connect();
  ASSERT_TRUE(PublishAs(*session, "mine", 1, Ascending()).ok());
  ASSERT_TRUE(AttachTo("mine").ok());
  ExpectPass();
  Restart();
  session = hoistd_->Connect();
  const hoist::Status gone = Use(0, 0);
  EXPECT_EQ(gone.code(), Code::kNotFound);
  EXPECT_NE(gone.message().find("publish them"), std::string::npos)
      << gone.message();
  auto other = PublishAs(*session, "mine", 2, Ascending());
  ASSERT_TRUE(other.ok());
  const hoist::Status refused = Use(0, 0);
  EXPECT_EQ(refused.code(), Code::kDataLoss) << refused.message();
  EXPECT_NE(refused.message().find("\"mine\" has other weights"),
            std::string::npos)
      << refused.message();
  // The old ones again, numbered otherwise: the first numbers hold.
  ASSERT_TRUE(session->Forget(*other).ok());
  ASSERT_TRUE(PublishAs(*session, "mine", 1, Descending()).ok());
  ExpectPass();
}

TEST_F(AttachmentTest, OtherFilesAreRefused) {
  StartHoistd();
  ASSERT_TRUE(Attach().ok());
  ExpectPass();
  Restart();
  WriteFiles(path_, 2);
  const hoist::Status refused = Use(0, 0);
  EXPECT_EQ(refused.code(), Code::kDataLoss) << refused.message();
  WriteFiles(path_, 1);
  // Not the same files: their times differ, and hoistd trusts no name.
  EXPECT_NE(Use(0, 0).code(), Code::kOk);
}

TEST_F(AttachmentTest, IsFoundAgainByContentUnderAnyName) {
  StartHoistd();
  auto session = hoistd_->Connect();
  auto model = PublishAs(*session, "one", 1, Ascending());
  ASSERT_TRUE(model.ok());
  std::vector<hoist::Content> contents;
  for (uint32_t g = 0; g < kGroups; ++g) {
    contents.push_back(model->group_content(g).value());
  }
  const hoist::Content content = hoist::ModelContent(contents);
  hoist::AttachmentOptions options = Options();
  options.source = content;
  ASSERT_TRUE(Attach(options).ok());
  ExpectPass();
  Restart();
  session = hoistd_->Connect();
  EXPECT_EQ(Use(0, 0).code(), Code::kNotFound);
  ASSERT_TRUE(PublishAs(*session, "another", 1, Descending()).ok());
  ExpectPass();
  // Group 1 is the last but one there.
  const auto tensor = attachment_->tensor(1, 0);
  ASSERT_TRUE(tensor.ok());
  const void* const data = Stage(1);
  EXPECT_EQ(tensor->raw(), data);
  EXPECT_EQ(WrongWords(data, 1, 1, kBytes), 0u);
  EXPECT_TRUE(Done(1).ok());
  const auto first = attachment_->model();
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->name(), "one");
}

TEST_F(AttachmentTest, TheLastBudgetAndOrderOutliveHoistd) {
  StartHoistd();
  hoist::AttachmentOptions options = Options();
  options.plan.order = {};
  ASSERT_TRUE(Attach(options).ok());
  EXPECT_EQ(PlanInfo().learning, 1);
  ExpectPass(Descending());  // Learned.
  EXPECT_EQ(PlanInfo().learning, 0);
  constexpr uint64_t kLess = 3 * kBytes;
  ASSERT_TRUE(attachment_->SetBudget(kLess).ok());
  const hoist_plan_info before = PlanInfo();
  Restart();
  ExpectPass(Descending());
  const hoist_plan_info after = PlanInfo();
  EXPECT_EQ(after.learning, 0);
  EXPECT_EQ(after.budget_bytes, before.budget_bytes);
  EXPECT_EQ(after.streamed_bytes, before.streamed_bytes);
  // A budget that is refused is not kept.
  EXPECT_EQ(attachment_->SetBudget(1).code(), Code::kResourceExhausted);
  const std::vector<uint32_t> order = {3, 1, 4, 1, 5};
  ASSERT_TRUE(attachment_->SetOrder(order).ok());
  EXPECT_EQ(PlanInfo().group_count, 4u);
  Restart();
  ExpectPass(order);
  EXPECT_EQ(PlanInfo().group_count, 4u);
  EXPECT_EQ(PlanInfo().budget_bytes, before.budget_bytes);
}

TEST_F(AttachmentTest, ResidentsAreForcedAgain) {
  StartHoistd();
  hoist::AttachmentOptions options = Options();
  options.residents = {6, 1, 6};
  ASSERT_TRUE(Attach(options).ok());
  for (int hoistd = 0; hoistd < 2; ++hoistd) {
    ExpectPass();
    const hoist_plan_info info = PlanInfo();
    EXPECT_EQ(info.group_count, kGroups - 2);
    EXPECT_EQ(attachment_->kind(6), hoist::Planned::kResident);
    EXPECT_EQ(attachment_->kind(7), hoist::Planned::kStreamed);
    EXPECT_EQ(attachment_->kind(kGroups), hoist::Planned::kNot);
    EXPECT_LE(info.budget_bytes, kBudget - 2 * kBytes);
    // Staged beside a ring that they do not share.
    const void* const one = Stage(1);
    const void* const two = Stage(6);
    EXPECT_EQ(WrongWords(one, 1, 1, kBytes), 0u);
    EXPECT_EQ(WrongWords(two, 1, 6, kBytes), 0u);
    EXPECT_TRUE(Done(1).ok());
    EXPECT_TRUE(Done(6).ok());
    if (hoistd == 0) Restart();
  }
  attachment_.reset();
  options.residents = {6, 1};
  options.plan.budget_bytes = 2 * kBytes;
  const hoist::Status small = Attach(options);
  EXPECT_EQ(small.code(), Code::kResourceExhausted);
  EXPECT_NE(small.message().find("its residents have 131072 bytes"),
            std::string::npos)
      << small.message();
  options.residents = Ascending();
  options.plan.budget_bytes = kBudget;
  EXPECT_EQ(Attach(options).code(), Code::kResourceExhausted);
  options.plan.budget_bytes = 0;
  EXPECT_EQ(Attach(options).code(), Code::kInvalidArgument);
  options.residents = {kGroups};
  EXPECT_EQ(Attach(options).code(), Code::kOutOfRange);
}

// As the bytes of a group that a caller reads outside of a stage.
TEST_F(AttachmentTest, ARenewalGivesMemoryBackOnceAHoistdIsThere) {
  StartHoistd();
  auto session = hoistd_->Connect();
  ASSERT_TRUE(PublishAs(*session, "mine", 1, Ascending()).ok());
  hoist::AttachmentOptions options = Options();
  options.source = "mine";
  options.residents = {1};
  options.renew_deadline = std::chrono::milliseconds(50);
  ASSERT_TRUE(Attach(options).ok());
  const void* const data = Stage(1);
  EXPECT_TRUE(Done(1).ok());
  const uint64_t generation = Info().generation;
  KillAndSee();
  EXPECT_EQ(Use(0, 0).code(), Code::kUnavailable);
  EXPECT_EQ(Renew().code(), Code::kUnavailable);
  EXPECT_EQ(WrongWords(data, 1, 1, kBytes), 0u);
  EXPECT_EQ(Info().generation, generation);
  EXPECT_EQ(attachment_->kind(1), hoist::Planned::kResident);
  hoistd_->Start();
  session = hoistd_->Connect();
  EXPECT_EQ(Use(0, 0).code(), Code::kNotFound);
  EXPECT_GT(Info().generation, generation);
  ASSERT_TRUE(PublishAs(*session, "mine", 1, Ascending()).ok());
  ExpectPass();
  EXPECT_GT(Info().generation, generation + 1);
  EXPECT_EQ(Info().renewals, 1u);
}

TEST_F(AttachmentTest, BeginsWithTheSessionAndTheModelOfItsCaller) {
  StartHoistd();
  auto session = hoistd_->Connect();
  auto model = PublishAs(*session, "mine", 1, Ascending());
  ASSERT_TRUE(model.ok());
  hoist::AttachmentOptions options = Options();
  options.source = "mine";
  const auto attach = [&] {
    auto made = hoist::Attachment::Create(options, *session, *model);
    if (made.ok()) attachment_.emplace(std::move(*made));
    return made.status();
  };
  ASSERT_TRUE(attach().ok());
  ExpectPass();
  EXPECT_GT(attachment_->stats().stages, 0u);
  attachment_.reset();
  EXPECT_TRUE(session->Check().ok());  // It is the caller's, too.
  ASSERT_TRUE(attach().ok());
  session->Close();
  EXPECT_EQ(Use(0, 0).code(), Code::kFailedPrecondition);
  EXPECT_EQ(Check().code(), Code::kFailedPrecondition);  // Once.
  ExpectPass();
  EXPECT_EQ(Info().renewals, 1u);
  attachment_.reset();
  EXPECT_EQ(attach().code(), Code::kFailedPrecondition);
  session = hoistd_->Connect();
  ASSERT_TRUE(attach().ok());
  Restart();
  session = hoistd_->Connect();
  // The model is the former hoistd's.
  EXPECT_EQ(attach().code(), Code::kFailedPrecondition);
}

TEST_F(AttachmentTest, EventsTellOfTheEndAndTheRenewal) {
  StartHoistd();
  ASSERT_TRUE(Attach().ok());
  ExpectPass();
  hoistd_->Kill();
  ASSERT_TRUE(Readable());
  ReadEvent();
  EXPECT_EQ(attachment_->state(), AttachmentState::kEnded);
  EXPECT_TRUE(Check().ok());  // What was computed here is right.
  hoistd_->Start();
  EXPECT_TRUE(Renew().ok());
  ASSERT_TRUE(Readable());
  ReadEvent();
  EXPECT_EQ(attachment_->state(), AttachmentState::kReady);
}

TEST_F(AttachmentTest, ThreadsRenewOnce) {
  StartHoistd();
  // Room for a group a thread.
  hoist::AttachmentOptions options = Options();
  options.plan.budget_bytes = 6 * kBytes;
  ASSERT_TRUE(Attach(options).ok());
  std::vector<std::thread> threads;
  for (uint32_t first = 0; first < 3; ++first) {
    threads.emplace_back([&, first] {
      for (uint32_t i = 0; i < 40; ++i) {
        const uint32_t group = (first * 3 + i) % kGroups;
        const hoist::Status used = Use(group, group, std::chrono::seconds(60));
        ASSERT_TRUE(used.ok()) << used.message();
      }
    });
  }
  Restart();
  for (std::thread& thread : threads) thread.join();
  ExpectPass();
  EXPECT_EQ(Info().renewals, 1u);
}

// Under a keeper the session and the plan go on by themselves.
TEST_F(AttachmentTest, GoesOnUnderAKeeper) {
  StartHoistd({.keeper = KEEPER_BINARY});
  auto session = hoistd_->Connect();
  ASSERT_TRUE(PublishAs(*session, "mine", 1, Ascending()).ok());
  ASSERT_TRUE(AttachTo("mine").ok());
  const auto kill_one = [&] {
    pid_t pid = 0;
    while ((pid = hoistd_->kept()) == 0) {
    }
    kill(pid, SIGKILL);
  };
  ExpectPass();
  kill_one();  // Idle.
  ExpectPass();
  const void* const data = Stage(3);
  kill_one();  // Between stage and done.
  EXPECT_EQ(WrongWords(data, 1, 3, kBytes), 0u);
  EXPECT_TRUE(Done(3).ok());
  std::thread killer(kill_one);  // While groups are staged.
  for (int pass = 0; pass < 5; ++pass) ExpectPass();
  killer.join();
  ExpectPass();
}

// Six of eight groups: a ring of two, and one group of each block.
TEST_F(AttachmentTest, KeepsAPartOfEachBlockOverHoistdsEnd) {
  StartHoistd();
  hoist::AttachmentOptions options = Options();
  options.plan.budget_bytes = 6 * kBytes;
  options.plan.blocks = {0, 0, 1, 1, 2, 2, 3, 3};
  ASSERT_TRUE(Attach(options).ok());
  for (int life = 0; life < 2; ++life) {
    ExpectPass();
    EXPECT_EQ(PlanInfo().streamed_count, 4u);
    EXPECT_EQ(PlanInfo().ring_bytes, 2 * kBytes);
    if (life == 0) Restart();
  }
}

TEST_F(AttachmentTest, RefusesOptionsThatItCannotKeep) {
  StartHoistd();
  hoist::AttachmentOptions options = Options();
  options.plan.blocks = {0, 0};
  const hoist::Status blocks = Attach(options);
  EXPECT_EQ(blocks.code(), Code::kInvalidArgument);
  EXPECT_NE(blocks.message().find("blocks for 2 groups"), std::string::npos);
  // C++ has a type for this.
  const hoist::Content content = {};
  const auto plan = Sized<hoist_plan_options>();
  auto both = Sized<hoist_attachment_options>();
  both.name = "mine";
  both.content = content.data();
  both.plan = &plan;
  hoist_attachment* none = nullptr;
  const hoist::Status two = hoist::internal::Call(hoist_attach, &both, &none);
  EXPECT_EQ(two.code(), Code::kInvalidArgument);
  EXPECT_NE(two.message().find("just one source"), std::string::npos);
  EXPECT_EQ(AttachTo("none such").code(), Code::kNotFound);
  options = Options();
  options.plan.order = {kGroups};
  EXPECT_EQ(Attach(options).code(), Code::kOutOfRange);
  EXPECT_EQ(hoist_attachment_done(nullptr, 0, nullptr, nullptr),
            HOIST_INVALID_ARGUMENT);
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(Use(kGroups, 0).code(), Code::kOutOfRange);
  EXPECT_EQ(Done(0).code(), Code::kFailedPrecondition);
  // One that was moved from.
  const hoist::Attachment taken = std::move(*attachment_);
  EXPECT_EQ(Use(0, 0).code(), Code::kInvalidArgument);
  EXPECT_EQ(attachment_->model().status().code(), Code::kInvalidArgument);
  EXPECT_EQ(attachment_->event_fd(), -1);
}

TEST_F(AttachmentTest, AForksChildIsRefused) {
  StartHoistd();
  ASSERT_TRUE(Attach().ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = Use(0, 0).code() == Code::kFailedPrecondition &&
                         Check().code() == Code::kFailedPrecondition;
    attachment_.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ExpectPass();
}

}  // namespace hoistd::testing::attachment_test
