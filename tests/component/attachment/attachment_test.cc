// Attachments (hoist/c/attachment.h) over real hoistds that die in every phase.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "daemon/base/sha256.h"
#include "gtest/gtest.h"
#include "tests/component/plans/pattern_model.h"
#include "tests/support/real_hoistd.h"
#include "tests/support/temp_dir.h"

namespace hoistd::testing::attachment_test {

using hoist::Code;
using hoist::internal::Sized;

constexpr uint64_t kBytes = uint64_t{64} << 10;  // Of a group.
constexpr uint32_t kGroups = 8;
// Of device memory: half of the groups are streamed.
constexpr uint64_t kBudget = kGroups * kBytes / 2;

// A file of groups "layers.0" to "layers.7", with the pattern of `number`.
void WriteFiles(const std::string& path, uint64_t number) {
  std::string header = "{", bytes;
  for (uint64_t g = 0; g < kGroups; ++g) {
    header += (g > 0 ? ",\"layers." : "\"layers.") + std::to_string(g) +
              ".w\":{\"dtype\":\"U64\",\"shape\":[" +
              std::to_string(kBytes / 8) + "],\"data_offsets\":[" +
              std::to_string(g * kBytes) + "," +
              std::to_string((g + 1) * kBytes) + "]}";
    for (uint64_t i = 0; i < kBytes / 8; ++i) {
      const uint64_t word = PatternWord(number, g, i);
      bytes.append(reinterpret_cast<const char*>(&word), sizeof(word));
    }
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << header << bytes;
}

// As PublishPattern, in this order of groups, under any name.
hoist::Result<hoist::Model> PublishAs(hoist::Session& session,
                                      const std::string& name, uint64_t number,
                                      const std::vector<uint32_t>& groups) {
  hoist::Result<hoist::Model> model =
      hoist::Status(Code::kInvalidArgument, "no groups");
  for (const uint32_t g : groups) {
    std::vector<uint64_t> words(kBytes / 8);
    for (uint64_t i = 0; i < words.size(); ++i) {
      words[i] = PatternWord(number, g, i);
    }
    hoist::PublishOptions options;
    options.model = name;
    options.group = "g" + std::to_string(g);
    options.tensors = {{"w",
                        hoist::DType::kU64,
                        {static_cast<int64_t>(words.size())},
                        words.data()}};
    model = session.Publish(options);
    if (!model.ok()) return model;
  }
  return model;
}

// A published model's content, of its groups' (daemon/model/published_group.h).
Sha256Digest ContentOf(std::vector<Sha256Digest> groups) {
  std::sort(groups.begin(), groups.end());
  Sha256 hasher;
  hasher.String("hoist model 2").Number(groups.size());
  for (const Sha256Digest& group : groups) {
    hasher.Bytes(std::as_bytes(std::span(group)));
  }
  return hasher.Finish();
}

std::vector<uint32_t> Ascending() {
  std::vector<uint32_t> groups(kGroups);
  for (uint32_t g = 0; g < kGroups; ++g) groups[g] = g;
  return groups;
}
std::vector<uint32_t> Descending() {
  std::vector<uint32_t> groups = Ascending();
  std::reverse(groups.begin(), groups.end());
  return groups;
}

// What a test sets of an attachment's options.
struct Wish {
  const char* name = nullptr;
  const uint8_t* content = nullptr;
  std::vector<uint32_t> order = Ascending();
  std::vector<uint32_t> residents = {};
  uint64_t budget = kBudget;
  uint64_t renew_deadline_ms = 30'000;
  uint64_t stage_deadline_ms = 0;
  bool gives_way = false;
  std::vector<uint32_t> blocks = {};
};

struct FreeAttachment {
  void operator()(hoist_attachment* one) const { hoist_attachment_free(one); }
};

class AttachmentTest : public ::testing::Test {
 protected:
  void StartHoistd(const RealHoistdOptions& options = {}) {
    hoistd_ = std::make_unique<RealHoistd>(HOISTD_BINARY, options);
    WriteFiles(path_, 1);
    ASSERT_TRUE(hoistd_->Connect().ok()) << hoistd_->Log();
  }
  void Restart() {
    hoistd_->Kill();
    hoistd_->Start();
  }

  // Without a name and content: from the files.
  hoist::Status Attach(const Wish& wish = {}) {
    const std::string socket = hoistd_->socket();
    auto connect = Sized<hoist_connect_options>();
    connect.socket_path = socket.c_str();
    connect.connect_deadline_ms = 30'000;
    auto files = Sized<hoist_register_options>();
    files.name = "files";
    files.path = path_.c_str();
    auto plan = Sized<hoist_plan_options>();
    plan.budget_bytes = wish.budget;
    plan.order = wish.order.data();
    plan.order_length = wish.order.size();
    plan.deadline_ms = 10'000;
    plan.stage_deadline_ms = wish.stage_deadline_ms;
    plan.gives_way = wish.gives_way ? 1 : 0;
    plan.blocks = wish.blocks.data();
    plan.block_count = wish.blocks.size();
    auto options = Sized<hoist_attachment_options>();
    options.name = wish.name;
    options.content = wish.content;
    if (wish.name == nullptr && wish.content == nullptr) options.files = &files;
    options.connect = &connect;
    options.plan = &plan;
    options.residents = wish.residents.data();
    options.resident_count = wish.residents.size();
    options.renew_deadline_ms = wish.renew_deadline_ms;
    hoist_attachment* made = nullptr;
    hoist::Status attached = hoist::internal::Run([&](hoist_error** error) {
      return hoist_attach(&options, &made, error);
    });
    attachment_.reset(made);
    return attached;
  }

  hoist::Status Stage(uint32_t group, const void** data,
                      uint64_t turn_deadline_ms = 0) {
    return hoist::internal::Run([&](hoist_error** error) {
      return hoist_attachment_stage(attachment_.get(), group, nullptr,
                                    turn_deadline_ms, data, error);
    });
  }
  hoist::Status Done(uint32_t group) {
    return hoist::internal::Run([&](hoist_error** error) {
      return hoist_attachment_done(attachment_.get(), group, nullptr, error);
    });
  }
  hoist::Status EndPass() {
    return hoist::internal::Run([&](hoist_error** error) {
      return hoist_attachment_end_pass(attachment_.get(), nullptr, error);
    });
  }
  hoist::Status Check() {
    return hoist::internal::Run([&](hoist_error** error) {
      return hoist_attachment_check(attachment_.get(), error);
    });
  }
  hoist::Status Renew() {
    return hoist::internal::Run([&](hoist_error** error) {
      return hoist_attachment_renew(attachment_.get(), error);
    });
  }
  hoist_attachment_info Info() {
    auto info = Sized<hoist_attachment_info>();
    EXPECT_EQ(hoist_attachment_describe(attachment_.get(), &info, nullptr),
              HOIST_OK);
    return info;
  }
  hoist_plan_info PlanInfo() {
    auto info = Sized<hoist_plan_info>();
    EXPECT_EQ(hoist_attachment_plan(attachment_.get(), &info, nullptr),
              HOIST_OK);
    return info;
  }

  // One group of the first model's number; it holds the pattern of `is`.
  hoist::Status Use(uint32_t group, uint32_t is, uint64_t turn_ms = 0) {
    const void* data = nullptr;
    if (hoist::Status s = Stage(group, &data, turn_ms); !s.ok()) return s;
    EXPECT_EQ(WrongWords(data, 1, is, kBytes), 0u) << "group " << group;
    return Done(group);
  }
  void ExpectPass(const std::vector<uint32_t>& order = Ascending()) {
    for (const uint32_t group : order) {
      const hoist::Status used = Use(group, group);
      ASSERT_TRUE(used.ok()) << used.message() << hoistd_->Log();
    }
    EXPECT_TRUE(EndPass().ok());
    EXPECT_TRUE(Check().ok());
  }
  bool Readable() {
    pollfd one = {hoist_attachment_event_fd(attachment_.get()), POLLIN, 0};
    return poll(&one, 1, 30'000) == 1;
  }
  void ReadEvent() {
    uint64_t count = 0;
    EXPECT_EQ(read(hoist_attachment_event_fd(attachment_.get()), &count, 8), 8);
  }

  const TempDir folder_;
  const std::string path_ = folder_ / "model.safetensors";
  std::unique_ptr<RealHoistd> hoistd_;
  std::unique_ptr<hoist_attachment, FreeAttachment> attachment_;
};

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
    EXPECT_EQ(info.state, HOIST_ATTACHMENT_READY);
    EXPECT_EQ(info.renewals, death);
    EXPECT_GT(info.generation, before.generation);
    EXPECT_EQ(PlanInfo().budget_bytes, before.budget_bytes);
    EXPECT_EQ(PlanInfo().generation, info.generation);
  }
}

TEST_F(AttachmentTest, EndsItsStagesFirst) {
  StartHoistd();
  ASSERT_TRUE(Attach().ok());
  const void* data = nullptr;
  ASSERT_TRUE(Stage(2, &data).ok());
  Restart();
  ASSERT_TRUE(Readable());
  // Its bytes stay until its end.
  EXPECT_EQ(WrongWords(data, 1, 2, kBytes), 0u);
  const hoist::Status other = Use(3, 3);
  EXPECT_EQ(other.code(), Code::kUnavailable);
  EXPECT_NE(other.message().find("hoist_attachment_done"), std::string::npos)
      << other.message();
  EXPECT_EQ(Info().state, HOIST_ATTACHMENT_ENDED);
  EXPECT_EQ(WrongWords(data, 1, 2, kBytes), 0u);
  EXPECT_TRUE(Done(2).ok());
  EXPECT_EQ(Done(2).code(), Code::kFailedPrecondition);
  ExpectPass();
  EXPECT_EQ(Info().renewals, 1u);
}

TEST_F(AttachmentTest, AStageInTurnWaitsForAnotherThreadsDone) {
  StartHoistd();
  ASSERT_TRUE(Attach().ok());
  const void* data = nullptr;
  ASSERT_TRUE(Stage(2, &data).ok());
  Restart();
  std::thread other([&] { EXPECT_TRUE(Use(3, 3, 60'000).ok()); });
  while (Info().state != HOIST_ATTACHMENT_ENDED) {
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
  ASSERT_TRUE(Attach({.budget = 2 * kBytes, .stage_deadline_ms = 50}).ok());
  const hoist::Status late = Use(7, 7);
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded) << late.message();
  EXPECT_NE(late.message().find("is void"), std::string::npos)
      << late.message();
  EXPECT_EQ(Info().state, HOIST_ATTACHMENT_ENDED);
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
  while (Info().state != HOIST_ATTACHMENT_RENEWING) {
  }
  hoistd_->Kill();
  hoistd_->Start();
  worker.join();
  EXPECT_EQ(Info().renewals, 1u);
  ExpectPass();
}

TEST_F(AttachmentTest, AHoistdThatStaysAwayIsToldWithTheRemedy) {
  StartHoistd();
  ASSERT_TRUE(Attach({.renew_deadline_ms = 50}).ok());
  hoistd_->Kill();
  const hoist::Status away = Use(0, 0);
  EXPECT_EQ(away.code(), Code::kUnavailable);
  EXPECT_NE(away.message().find("none took its place in 50 ms; start it"),
            std::string::npos)
      << away.message();
  EXPECT_EQ(Info().state, HOIST_ATTACHMENT_ENDED);
  EXPECT_EQ(Renew().code(), Code::kUnavailable);
  hoistd_->Start();
  ASSERT_TRUE(hoistd_->Connect().ok());
  ExpectPass();
}

TEST_F(AttachmentTest, OtherWeightsUnderTheNameAreRefused) {
  StartHoistd();
  auto session = hoistd_->Connect();
  ASSERT_TRUE(PublishAs(*session, "mine", 1, Ascending()).ok());
  ASSERT_TRUE(Attach({.name = "mine"}).ok());
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
  std::vector<Sha256Digest> contents;
  for (uint32_t g = 0; g < kGroups; ++g) {
    auto info = Sized<hoist_group_info>();
    ASSERT_EQ(hoist_model_group(model->get(), g, &info, nullptr), HOIST_OK);
    contents.emplace_back();
    std::copy_n(info.content, HOIST_CONTENT_BYTES, contents.back().begin());
  }
  const Sha256Digest content = ContentOf(contents);
  ASSERT_TRUE(Attach({.content = content.data()}).ok());
  ExpectPass();
  Restart();
  session = hoistd_->Connect();
  EXPECT_EQ(Use(0, 0).code(), Code::kNotFound);
  ASSERT_TRUE(PublishAs(*session, "another", 1, Descending()).ok());
  ExpectPass();
  // Group 1 is the last but one there.
  auto tensor = Sized<hoist_tensor_info>();
  ASSERT_EQ(hoist_attachment_tensor(attachment_.get(), 1, 0, &tensor, nullptr),
            HOIST_OK);
  const void* data = nullptr;
  ASSERT_TRUE(Stage(1, &data).ok());
  EXPECT_EQ(tensor.data, data);
  EXPECT_EQ(WrongWords(tensor.data, 1, 1, kBytes), 0u);
  EXPECT_TRUE(Done(1).ok());
  hoist_model* first = nullptr;
  ASSERT_EQ(hoist_attachment_model(attachment_.get(), &first, nullptr),
            HOIST_OK);
  EXPECT_STREQ(hoist_model_name(first), "one");
  hoist_model_free(first);
}

TEST_F(AttachmentTest, TheLastBudgetAndOrderOutliveHoistd) {
  StartHoistd();
  ASSERT_TRUE(Attach({.order = {}}).ok());
  EXPECT_EQ(PlanInfo().learning, 1);
  ExpectPass(Descending());  // Learned.
  EXPECT_EQ(PlanInfo().learning, 0);
  constexpr uint64_t kLess = 3 * kBytes;
  ASSERT_EQ(hoist_attachment_set_budget(attachment_.get(), kLess, nullptr),
            HOIST_OK);
  const hoist_plan_info before = PlanInfo();
  Restart();
  ExpectPass(Descending());
  const hoist_plan_info after = PlanInfo();
  EXPECT_EQ(after.learning, 0);
  EXPECT_EQ(after.budget_bytes, before.budget_bytes);
  EXPECT_EQ(after.streamed_bytes, before.streamed_bytes);
  // A budget that is refused is not kept.
  hoist::Status refused = hoist::internal::Run([&](hoist_error** error) {
    return hoist_attachment_set_budget(attachment_.get(), 1, error);
  });
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  const std::vector<uint32_t> order = {3, 1, 4, 1, 5};
  ASSERT_EQ(hoist_attachment_set_order(attachment_.get(), order.data(),
                                       order.size(), nullptr),
            HOIST_OK);
  EXPECT_EQ(PlanInfo().group_count, 4u);
  Restart();
  ExpectPass(order);
  EXPECT_EQ(PlanInfo().group_count, 4u);
  EXPECT_EQ(PlanInfo().budget_bytes, before.budget_bytes);
}

TEST_F(AttachmentTest, ResidentsAreForcedAgain) {
  StartHoistd();
  ASSERT_TRUE(Attach({.residents = {6, 1, 6}}).ok());
  for (int hoistd = 0; hoistd < 2; ++hoistd) {
    ExpectPass();
    const hoist_plan_info info = PlanInfo();
    EXPECT_EQ(info.group_count, kGroups - 2);
    EXPECT_LE(info.budget_bytes, kBudget - 2 * kBytes);
    // Staged beside a ring that they do not share.
    const void *one = nullptr, *two = nullptr;
    ASSERT_TRUE(Stage(1, &one).ok());
    ASSERT_TRUE(Stage(6, &two).ok());
    EXPECT_EQ(WrongWords(one, 1, 1, kBytes), 0u);
    EXPECT_EQ(WrongWords(two, 1, 6, kBytes), 0u);
    EXPECT_TRUE(Done(1).ok());
    EXPECT_TRUE(Done(6).ok());
    if (hoistd == 0) Restart();
  }
  attachment_.reset();
  const hoist::Status small =
      Attach({.residents = {6, 1}, .budget = 2 * kBytes});
  EXPECT_EQ(small.code(), Code::kResourceExhausted);
  EXPECT_NE(small.message().find("its residents have 131072 bytes"),
            std::string::npos)
      << small.message();
  EXPECT_EQ(Attach({.residents = Ascending()}).code(),
            Code::kResourceExhausted);
  EXPECT_EQ(Attach({.residents = Ascending(), .budget = 0}).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(Attach({.residents = {kGroups}}).code(), Code::kOutOfRange);
}

TEST_F(AttachmentTest, EventsTellOfTheEndAndTheRenewal) {
  StartHoistd();
  ASSERT_TRUE(Attach().ok());
  ExpectPass();
  hoistd_->Kill();
  ASSERT_TRUE(Readable());
  ReadEvent();
  EXPECT_EQ(Info().state, HOIST_ATTACHMENT_ENDED);
  EXPECT_TRUE(Check().ok());  // What was computed here is right.
  hoistd_->Start();
  EXPECT_TRUE(Renew().ok());
  ASSERT_TRUE(Readable());
  ReadEvent();
  EXPECT_EQ(Info().state, HOIST_ATTACHMENT_READY);
}

TEST_F(AttachmentTest, ThreadsRenewOnce) {
  StartHoistd();
  // Room for a group a thread.
  ASSERT_TRUE(Attach({.budget = 6 * kBytes}).ok());
  std::vector<std::thread> threads;
  for (uint32_t first = 0; first < 3; ++first) {
    threads.emplace_back([&, first] {
      for (uint32_t i = 0; i < 40; ++i) {
        const uint32_t group = (first * 3 + i) % kGroups;
        const hoist::Status used = Use(group, group, 60'000);
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
  ASSERT_TRUE(Attach({.name = "mine"}).ok());
  const auto kill_one = [&] {
    pid_t pid = 0;
    while ((pid = hoistd_->kept()) == 0) {
    }
    kill(pid, SIGKILL);
  };
  ExpectPass();
  kill_one();  // Idle.
  ExpectPass();
  const void* data = nullptr;
  ASSERT_TRUE(Stage(3, &data).ok());
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
  ASSERT_TRUE(
      Attach({.budget = 6 * kBytes, .blocks = {0, 0, 1, 1, 2, 2, 3, 3}}).ok());
  for (int life = 0; life < 2; ++life) {
    ExpectPass();
    EXPECT_EQ(PlanInfo().streamed_count, 4u);
    EXPECT_EQ(PlanInfo().ring_bytes, 2 * kBytes);
    if (life == 0) Restart();
  }
}

TEST_F(AttachmentTest, RefusesOptionsThatItCannotKeep) {
  StartHoistd();
  const hoist::Status blocks = Attach({.blocks = {0, 0}});
  EXPECT_EQ(blocks.code(), Code::kInvalidArgument);
  EXPECT_NE(blocks.message().find("blocks for 2 groups"), std::string::npos);
  const hoist::Status way = Attach({.budget = 0, .gives_way = true});
  EXPECT_EQ(way.code(), Code::kInvalidArgument);
  EXPECT_NE(way.message().find("does not give way"), std::string::npos);
  const std::array<uint8_t, HOIST_CONTENT_BYTES> content = {};
  const hoist::Status two = Attach({.name = "mine", .content = content.data()});
  EXPECT_EQ(two.code(), Code::kInvalidArgument);
  EXPECT_NE(two.message().find("just one source"), std::string::npos);
  EXPECT_EQ(Attach({.name = "none such"}).code(), Code::kNotFound);
  EXPECT_EQ(Attach({.order = {kGroups}}).code(), Code::kOutOfRange);
  EXPECT_EQ(hoist_attachment_done(nullptr, 0, nullptr, nullptr),
            HOIST_INVALID_ARGUMENT);
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(Use(kGroups, 0).code(), Code::kOutOfRange);
  EXPECT_EQ(Done(0).code(), Code::kFailedPrecondition);
}

TEST_F(AttachmentTest, AForksChildIsRefused) {
  StartHoistd();
  ASSERT_TRUE(Attach().ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = Use(0, 0).code() == Code::kFailedPrecondition &&
                         Check().code() == Code::kFailedPrecondition;
    hoist_attachment_free(attachment_.release());
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ExpectPass();
}

}  // namespace hoistd::testing::attachment_test
