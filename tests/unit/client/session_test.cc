// libhoist.so through hoist.h, against a daemon that behaves.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist.h"
#include "tests/unit/client/fake_daemon.h"

#if defined(__SANITIZE_ADDRESS__)
#define HOIST_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HOIST_ADDRESS_SANITIZER 1
#endif
#endif

namespace hoist_test::session_test {

using hoist::Code;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

hoist::ConnectOptions To(const FakeDaemon& daemon) {
  hoist::ConnectOptions options;
  options.socket_path = daemon.path();
  return options;
}

struct Worker {
  explicit Worker(const FakeDaemon& daemon)
      : session(*hoist::Session::Connect(To(daemon))),
        model(*session.DescribeModel("m")) {}
  hoist::Session session;
  hoist::Model model;
};

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

TEST(Session, StagedTensorsShowTheImagesBytes) {
  FakeDaemon daemon;
  Worker worker(daemon);
  auto lease = worker.session.Stage(worker.model, "b");
  ASSERT_TRUE(lease.ok()) << lease.status().ToString();
  auto y = lease->tensor("y");
  ASSERT_TRUE(y.ok());
  EXPECT_THAT(y->shape(), ElementsAre(4));
  EXPECT_THAT(y->strides(), ElementsAre(1));
  auto bits = y->data<hoist::BFloat16>();
  ASSERT_TRUE(bits.ok());
  EXPECT_EQ((*bits)[3].bits, 0x2222);
  EXPECT_EQ(lease->image_bytes(), 4096u);
}

TEST(Session, ATensorIsNotGivenAsAnotherType) {
  FakeDaemon daemon;
  Worker worker(daemon);
  auto lease = worker.session.Stage(worker.model, "a");
  ASSERT_TRUE(lease.ok());
  auto wrong = lease->Data<double>("x");
  EXPECT_EQ(wrong.status().code(), hoist::Code::kInvalidArgument);
  EXPECT_THAT(wrong.status().message(), HasSubstr("F32"));
  EXPECT_TRUE(lease->Data<float>("x").ok());
}

TEST(Session, ATensorLiesAtItsOffset) {
  FakeDaemon daemon;
  Worker worker(daemon);
  auto lease = worker.session.Stage(worker.model, "a");
  ASSERT_TRUE(lease.ok());
  auto tensor = lease->tensor("z");
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->raw(), static_cast<const std::byte*>(lease->data()) + 512);
}

TEST(Session, AnEmptyTensorHasNoAddressAndIsNoError) {
  FakeDaemon daemon;
  Worker worker(daemon);
  auto lease = worker.session.Stage(worker.model, "a");
  ASSERT_TRUE(lease.ok());
  auto empty = lease->tensor("e");
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->raw(), nullptr);
}

TEST(Session, TheSlabIsMappedOnceForTwoSessionsOfAProcess) {
  FakeDaemon daemon;
  Worker one(daemon), two(daemon);
  auto first = one.session.Stage(one.model, "a");
  auto second = two.session.Stage(two.model, "a");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->data(), second->data());
}

TEST(Session, UnknownGroupsTensorsAndDevicesAreNamed) {
  FakeDaemon daemon;
  Worker worker(daemon);
  auto group = worker.session.Stage(worker.model, "nope");
  EXPECT_EQ(group.status().code(), hoist::Code::kNotFound);
  EXPECT_THAT(group.status().message(), HasSubstr("\"nope\""));
  auto lease = worker.session.Stage(worker.model, "a");
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(lease->tensor("y").status().code(), hoist::Code::kNotFound);
  hoist::StageOptions elsewhere;
  elsewhere.device = 5;
  EXPECT_EQ(worker.session.Stage(worker.model, 0, elsewhere).status().code(),
            hoist::Code::kNotFound);
  EXPECT_EQ(worker.session.Stage(worker.model, 9).status().code(),
            hoist::Code::kOutOfRange);
}

TEST(Session, ReleaseIsToldOnceAndEndsTheLease) {
  FakeDaemon daemon;
  Worker worker(daemon);
  {
    auto lease = worker.session.Stage(worker.model, "a");
    ASSERT_TRUE(lease.ok());
    ASSERT_TRUE(lease->Release().ok());
    EXPECT_TRUE(lease->Release().ok());
    EXPECT_EQ(lease->Check().code(), hoist::Code::kFailedPrecondition);
    EXPECT_EQ(lease->data(), nullptr);
    EXPECT_EQ(lease->tensor("x").status().code(),
              hoist::Code::kFailedPrecondition);
  }
  EXPECT_EQ(daemon.released().size(), 1u);
}

TEST(Session, ADroppedLeaseIsReleased) {
  FakeDaemon daemon;
  Worker worker(daemon);
  { auto lease = worker.session.Stage(worker.model, "a"); }
  // Answered in order: after this reply the release has been seen.
  ASSERT_TRUE(worker.session.DescribeModel("m").ok());
  EXPECT_EQ(daemon.released().size(), 1u);
}

TEST(Session, ARefusalKeepsItsCodeAndReason) {
  FakeDaemon daemon([](Peer& peer, const pb::ClientMessage& message,
                       const std::vector<int>&) {
    if (!message.has_stage()) return false;
    pb::DaemonMessage reply;
    reply.set_request_id(message.request_id());
    reply.set_code(8);
    reply.set_message("needs 2.1 GiB on GPU-1");
    peer.Send(reply);
    return true;
  });
  Worker worker(daemon);
  auto lease = worker.session.Stage(worker.model, "a");
  EXPECT_EQ(lease.status().code(), hoist::Code::kResourceExhausted);
  EXPECT_EQ(lease.status().message(), "needs 2.1 GiB on GPU-1");
}

TEST(Session, AWaitingStageHoldsUpNobody) {
  std::promise<void> waiting;
  FakeDaemon daemon([&](Peer& peer, const pb::ClientMessage& message,
                        const std::vector<int>&) {
    // Group "b" never comes; "a" does.
    (void)peer;
    if (!message.has_stage() || message.stage().group() != 1) return false;
    waiting.set_value();
    return true;
  });
  Worker worker(daemon);
  hoist::Status ended;
  std::thread blocked(
      [&] { ended = worker.session.Stage(worker.model, "b").status(); });
  waiting.get_future().wait();
  EXPECT_TRUE(worker.session.Stage(worker.model, "a").ok());
  EXPECT_TRUE(worker.session.DescribeModel("m").ok());
  worker.session.Close();
  blocked.join();
  EXPECT_EQ(ended.code(), hoist::Code::kFailedPrecondition);
}

TEST(Session, ManyThreadsGetTheirOwnReplies) {
  FakeDaemon daemon;
  Worker worker(daemon);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const uint32_t group = t % 2;
      for (int i = 0; i < 50; ++i) {
        auto lease = worker.session.Stage(worker.model, group);
        if (!lease.ok() || lease->group() != group ||
            *static_cast<const uint8_t*>(lease->data()) !=
                FakeDaemon::Byte(group)) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Session, ACallsDeadlinePassesAndALateLeaseIsGivenBack) {
  std::promise<uint64_t> asked;
  std::promise<Peer*> at;
  FakeDaemon daemon([&](Peer& peer, const pb::ClientMessage& message,
                        const std::vector<int>&) {
    if (!message.has_stage()) return false;
    at.set_value(&peer);
    asked.set_value(message.request_id());
    return true;
  });
  auto options = To(daemon);
  // Of every call, so no shorter than a busy machine may take for one.
  options.call_deadline = std::chrono::seconds(2);
  auto session = hoist::Session::Connect(options);
  ASSERT_TRUE(session.ok());
  auto model = session->DescribeModel("m");
  ASSERT_TRUE(model.ok());
  auto lease = session->Stage(*model, "a");
  EXPECT_EQ(lease.status().code(), hoist::Code::kDeadlineExceeded);
  const int fd = daemon.slab_fd();
  const uint64_t request = asked.get_future().get();
  at.get_future().get()->Send(daemon.LeaseReply(request, 0, true),
                              std::span(&fd, 1));
  // The late lease was read before this reply, and its release sent.
  ASSERT_TRUE(session->DescribeModel("m").ok());
  ASSERT_TRUE(session->DescribeModel("m").ok());
  EXPECT_THAT(daemon.released(), ElementsAre(100 + request));
}

TEST(Session, ADeadDaemonIsUnavailableForPendingAndLaterCalls) {
  FakeDaemon daemon([](Peer& peer, const pb::ClientMessage& message,
                       const std::vector<int>&) {
    if (!message.has_stage() || message.stage().group() != 1) return false;
    peer.HangUp();
    return true;
  });
  Worker worker(daemon);
  auto held = worker.session.Stage(worker.model, "a");
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(worker.session.Stage(worker.model, "b").status().code(),
            hoist::Code::kUnavailable);
  EXPECT_EQ(worker.session.DescribeModel("m").status().code(),
            hoist::Code::kUnavailable);
  EXPECT_EQ(worker.session.Check().code(), hoist::Code::kUnavailable);
  EXPECT_EQ(held->Check().code(), hoist::Code::kUnavailable);
  EXPECT_EQ(held->data(), nullptr);
}

// Nobody has made a call meanwhile, and the reading thread may be late.
TEST(Session, ADeadDaemonIsNoticedByTheNextCheck) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<Peer*> connection{nullptr};
    FakeDaemon daemon(
        [&](Peer& peer, const pb::ClientMessage&, const std::vector<int>&) {
          connection = &peer;
          return false;
        });
    Worker worker(daemon);
    auto held = worker.session.Stage(worker.model, "a");
    ASSERT_TRUE(held.ok());
    EXPECT_TRUE(worker.session.Check().ok());
    connection.load()->HangUp();
    EXPECT_EQ(held->Check().code(), hoist::Code::kUnavailable);
    EXPECT_EQ(worker.session.Check().code(), hoist::Code::kUnavailable);
  }
}

TEST(Session, NobodyListeningIsUnavailableAndSaysWhatToDo) {
  hoist::ConnectOptions options;
  options.socket_path = "/nonexistent/hoistd.sock";
  auto session = hoist::Session::Connect(options);
  EXPECT_EQ(session.status().code(), hoist::Code::kUnavailable);
  EXPECT_THAT(session.status().message(), HasSubstr("HOIST_SOCKET"));
  options.socket_path = std::string(200, 'x');
  EXPECT_EQ(hoist::Session::Connect(options).status().code(),
            hoist::Code::kInvalidArgument);
}

TEST(Session, PublishedBytesAreLaidOutAndAliasesStoredOnce) {
  FakeDaemon daemon;
  Worker worker(daemon);
  const std::vector<float> tied = {1, 2, 3, 4};
  const std::vector<uint8_t> other = {9, 8, 7};
  hoist::PublishOptions options;
  options.model = "p";
  options.group = "g";
  options.tensors = {
      {"wte", hoist::DType::kF32, {2, 2}, tied.data()},
      {"other", hoist::DType::kU8, {3}, other.data()},
      {"head.T", hoist::DType::kF32, {2, 2}, tied.data(), {1, 2}},
      {"empty", hoist::DType::kF32, {0, 5}, nullptr}};
  auto model = worker.session.Publish(options);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const auto [bytes, group] = daemon.published();
  ASSERT_EQ(group.tensors_size(), 4);
  EXPECT_EQ(group.tensors(0).offset_bytes(), group.tensors(2).offset_bytes());
  EXPECT_EQ(group.tensors(0).strides_size(), 0);
  EXPECT_THAT(group.tensors(2).strides(), ElementsAre(1, 2));
  EXPECT_EQ(group.tensors(1).offset_bytes(), 256u);
  EXPECT_EQ(group.image_bytes(), 4096u);
  EXPECT_EQ(
      bytes.compare(0, 16, reinterpret_cast<const char*>(tied.data()), 16), 0);
  EXPECT_EQ(bytes.substr(256, 3), "\x09\x08\x07");

  options.tensors[1].shape = {-3};
  EXPECT_EQ(worker.session.Publish(options).status().code(),
            hoist::Code::kInvalidArgument);
  options.tensors[1] = {"other", hoist::DType::kU8, {3}, nullptr};
  EXPECT_EQ(worker.session.Publish(options).status().code(),
            hoist::Code::kInvalidArgument);
}

// Of an emulated device the addresses are of host memory.
TEST(Session, WeightsArePublishedFromADevicesMemory) {
  FakeDaemon daemon;
  Worker worker(daemon);
  const std::vector<uint8_t> bytes = {5, 6, 7};
  hoist::PublishOptions options;
  options.model = "p";
  options.group = "g";
  options.tensors = {{"t", hoist::DType::kU8, {3}, bytes.data()}};
  options.on_device = worker.session.devices().front().index;
  ASSERT_TRUE(worker.session.Publish(options).ok());
  EXPECT_EQ(daemon.published().first.substr(0, 3), "\x05\x06\x07");
  options.on_device = 99;
  EXPECT_EQ(worker.session.Publish(options).status().code(), Code::kNotFound);
}

TEST(Session, WhatAPublishedGroupMustBeIsTold) {
  std::mutex mu;
  std::vector<std::string> told;
  FakeDaemon daemon(
      [&](Peer&, const pb::ClientMessage& message, const std::vector<int>&) {
        const std::lock_guard<std::mutex> lock(mu);
        if (message.has_publish()) told.push_back(message.publish().content());
        return false;
      });
  Worker worker(daemon);
  const std::vector<uint8_t> bytes = {5, 6, 7};
  hoist::PublishOptions options;
  options.model = "p";
  options.group = "g";
  options.tensors = {{"t", hoist::DType::kU8, {3}, bytes.data()}};
  ASSERT_TRUE(worker.session.Publish(options).ok());
  options.content.emplace().fill('c');
  ASSERT_TRUE(worker.session.Publish(options).ok());
  const std::lock_guard<std::mutex> lock(mu);
  EXPECT_THAT(told, ElementsAre("", std::string(32, 'c')));
}

TEST(Session, JoinedTensorsAreToldAsGiven) {
  std::mutex mu;
  pb::RegisterModelRequest asked;
  FakeDaemon daemon(
      [&](Peer&, const pb::ClientMessage& message, const std::vector<int>&) {
        const std::lock_guard<std::mutex> lock(mu);
        if (message.has_register_model()) asked = message.register_model();
        return false;
      });
  Worker worker(daemon);
  hoist::RegisterOptions options = {.name = "m", .path = "/proc/self/exe"};
  options.joined = {{"x", {2, 3}, {{"a"}, {"b", 8, 16}}}, {"y", {}, {{"c"}}}};
  ASSERT_TRUE(worker.session.RegisterModel(options).ok());
  const std::lock_guard<std::mutex> lock(mu);
  ASSERT_EQ(asked.joined_size(), 2);
  EXPECT_EQ(asked.joined(0).name(), "x");
  EXPECT_THAT(asked.joined(0).shape(), ElementsAre(2, 3));
  ASSERT_EQ(asked.joined(0).parts_size(), 2);
  EXPECT_EQ(asked.joined(0).parts(0).tensor(), "a");
  EXPECT_EQ(asked.joined(0).parts(0).size_bytes(), 0u);
  EXPECT_EQ(asked.joined(0).parts(1).offset_bytes(), 8u);
  EXPECT_EQ(asked.joined(0).parts(1).size_bytes(), 16u);
  EXPECT_EQ(asked.joined(1).shape_size(), 0);
  EXPECT_EQ(asked.joined(1).parts(0).tensor(), "c");
}

TEST(Session, JoinedTensorsWithoutPointersAreRefused) {
  FakeDaemon daemon;
  Worker worker(daemon);
  hoist_joined_part part = {nullptr, 0, 0};
  hoist_joined_tensor joined = {"x", 1, nullptr, &part, 1};
  const int64_t shape = 4;
  hoist_register_options options = {};
  options.struct_size = sizeof(options);
  options.name = "m";
  options.path = "/proc/self/exe";
  options.joined = &joined;
  options.joined_count = 1;
  const auto refusal = [&] {
    hoist_model* model = nullptr;
    hoist_error* error = nullptr;
    EXPECT_EQ(
        hoist_register_model(worker.session.get(), &options, &model, &error),
        HOIST_INVALID_ARGUMENT);
    const std::string why = hoist_error_message(error);
    hoist_error_free(error);
    return why;
  };
  EXPECT_THAT(refusal(), HasSubstr("shape"));
  joined.shape = &shape;
  EXPECT_THAT(refusal(), HasSubstr("part's tensor"));
  joined.rank = 65;
  EXPECT_THAT(refusal(), HasSubstr("rank"));
  joined = {nullptr, 1, &shape, &part, 1};
  EXPECT_THAT(refusal(), HasSubstr("name"));
  joined = {"x", 1, &shape, nullptr, 1};
  EXPECT_THAT(refusal(), HasSubstr("parts"));
  options.joined = nullptr;
  EXPECT_THAT(refusal(), HasSubstr("joined"));
}

TEST(Session, TheChildOfAForkIsRefusedAndTheParentGoesOn) {
  FakeDaemon daemon;
  Worker worker(daemon);
  auto lease = worker.session.Stage(worker.model, "a");
  ASSERT_TRUE(lease.ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool refused =
        worker.session.Check().code() == hoist::Code::kFailedPrecondition &&
        worker.session.Stage(worker.model, "a").status().code() ==
            hoist::Code::kFailedPrecondition &&
        lease->Release().code() == hoist::Code::kFailedPrecondition &&
        lease->data() == nullptr && worker.model.group_count() == 2;
    worker.session.Close();
    { auto dropped = std::move(*lease); }
    { auto gone = std::move(worker.session); }
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(daemon.released().empty());
  EXPECT_TRUE(worker.session.DescribeModel("m").ok());
  EXPECT_NE(lease->data(), nullptr);
}

TEST(Session, TheChildOfAForkMayConnectAgain) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "TSan ends a child that starts a thread after a fork";
#elif defined(HOIST_ADDRESS_SANITIZER)
  GTEST_SKIP() << "another thread may hold a lock of ASan's allocator at the "
                  "fork, and the child's thread waits for it";
#endif
  FakeDaemon daemon;
  Worker worker(daemon);
  auto lease = worker.session.Stage(worker.model, "a");
  const pid_t child = fork();
  if (child == 0) {
    Worker again(daemon);
    auto own = again.session.Stage(again.model, "b");
    _exit(own.ok() && *static_cast<const uint8_t*>(own->data()) == 0x22 ? 0
                                                                        : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Session, NoDescriptorIsLeftOver) {
  { FakeDaemon warm_up; }
  const size_t before = OpenDescriptors();
  {
    FakeDaemon daemon;
    Worker worker(daemon);
    auto lease = worker.session.Stage(worker.model, "a");
    const uint8_t byte = 1;
    hoist::PublishOptions options;
    options.model = "p";
    options.group = "g";
    options.tensors = {{"t", hoist::DType::kU8, {1}, &byte}};
    EXPECT_TRUE(worker.session.Publish(options).ok());
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(Session, EndsWithTheLastHandleThatSharesIt) {
  FakeDaemon daemon;
  std::optional<Worker> worker(std::in_place, daemon);
  auto shared = worker->session.Share();
  ASSERT_TRUE(shared.ok());
  auto lease = worker->session.Stage(worker->model, "b");
  ASSERT_TRUE(lease.ok());
  worker.reset();
  EXPECT_TRUE(shared->Check().ok());
  EXPECT_TRUE(lease->Check().ok());  // It was leased by the other one.
  EXPECT_TRUE(shared->DescribeModel("m").ok());
  EXPECT_EQ(shared->options().socket_path, daemon.path());
  { auto last = std::move(*shared); }
  EXPECT_EQ(lease->Check().code(), Code::kFailedPrecondition);
}

TEST(Session, ThatIsClosedByOneIsClosedForAllThatShareIt) {
  FakeDaemon daemon;
  Worker worker(daemon);
  auto shared = worker.session.Share();
  ASSERT_TRUE(shared.ok());
  shared->Close();
  EXPECT_EQ(worker.session.Check().code(), Code::kFailedPrecondition);
  EXPECT_EQ(worker.session.Share().status().code(), Code::kFailedPrecondition);
}

TEST(CApi, HandlesThatAreNullAreRefusedAndNeverFollowed) {
  EXPECT_EQ(hoist_session_share(nullptr, nullptr, nullptr),
            HOIST_INVALID_ARGUMENT);
  EXPECT_EQ(hoist_session_id(nullptr), 0u);
  EXPECT_STREQ(hoist_session_daemon_version(nullptr), "");
  EXPECT_EQ(hoist_session_device_count(nullptr), 0u);
  EXPECT_EQ(hoist_model_id(nullptr), 0u);
  EXPECT_STREQ(hoist_model_name(nullptr), "");
  EXPECT_EQ(hoist_model_fingerprint(nullptr)[15], 0);
  EXPECT_EQ(hoist_model_owner(nullptr), UINT32_MAX);
  EXPECT_STREQ(hoist_model_owner_tenant(nullptr), "");
  EXPECT_EQ(hoist_model_image_bytes(nullptr), 0u);
  EXPECT_EQ(hoist_model_group_count(nullptr), 0u);
  EXPECT_EQ(hoist_lease_bytes(nullptr), 0u);
  EXPECT_EQ(hoist_lease_device_kind(nullptr), 0);
  EXPECT_EQ(hoist_lease_tensor_count(nullptr), 0u);
  EXPECT_EQ(hoist_host_image_is_loaded(nullptr), 0);
  EXPECT_EQ(hoist_host_image_data(nullptr), nullptr);
  EXPECT_EQ(hoist_host_image_bytes(nullptr), 0u);
}

// As NULL handles.
TEST(Handles, ThatWereMovedFromAreRefused) {
  FakeDaemon daemon;
  Worker worker(daemon);
  auto lease = worker.session.Stage(worker.model, "b");
  ASSERT_TRUE(lease.ok());
  auto image = worker.session.ReserveHostImage(worker.model, 0);
  ASSERT_TRUE(image.ok());
  hoist::Plan plan(nullptr);
  {
    auto to_lease = std::move(*lease);
    auto to_image = std::move(*image);
    auto to_model = std::move(worker.model);
    auto to_session = std::move(worker.session);
  }
  const auto refused = [](const hoist::Status& status) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.ToString();
  };
  refused(lease->Check());
  refused(lease->tensor("y").status());
  EXPECT_EQ(lease->image_bytes() + lease->group() + lease->tensors().size(),
            0u);
  refused(image->Load());
  EXPECT_FALSE(image->loaded());
  EXPECT_EQ(worker.model.name(), "");
  EXPECT_EQ(worker.model.fingerprint(), std::string(16, '\0'));
  EXPECT_EQ(worker.model.group_count(), 0u);
  EXPECT_TRUE(worker.model.tensors(0).empty());
  refused(worker.model.FindGroup("a").status());
  refused(worker.session.Check());
  refused(worker.session.Share().status());
  refused(worker.session.DescribeModel("m").status());
  refused(worker.session.Stage(worker.model, 0).status());
  refused(worker.session.SetPlan(worker.model).status());
  EXPECT_TRUE(worker.session.devices().empty());
  refused(plan.Stage(0).status());
  refused(plan.Check());
  EXPECT_EQ(plan.info().id + plan.stats().stages, 0u);
  EXPECT_EQ(plan.kind(0), hoist::Planned::kNot);
  worker.session.Close();
}

TEST(CApi, FindsAllGroupsOrNamesTheFirstThatIsNotThere) {
  FakeDaemon daemon;
  Worker worker(daemon);
  const hoist_model* const model = worker.model.get();
  const char* names[] = {"a", "none", "no other", nullptr};
  uint32_t found[3] = {7, 7, 7};
  hoist_error* error = nullptr;
  EXPECT_EQ(hoist_model_find_groups(model, names, 1, found, nullptr), HOIST_OK);
  EXPECT_EQ(found[0], 0u);
  EXPECT_EQ(hoist_model_find_groups(model, names, 3, found, &error),
            HOIST_NOT_FOUND);
  EXPECT_THAT(hoist_error_message(error), HasSubstr("no group \"none\""));
  hoist_error_free(error);
  EXPECT_EQ(hoist_model_find_groups(model, names + 3, 1, found, nullptr),
            HOIST_INVALID_ARGUMENT);
  EXPECT_EQ(hoist_model_find_groups(model, nullptr, 0, nullptr, nullptr),
            HOIST_OK);
}

TEST(CApi, RefusesNullAndUnsizedStructs) {
  FakeDaemon daemon;
  Worker worker(daemon);
  hoist_error* error = nullptr;
  EXPECT_EQ(hoist_connect(nullptr, nullptr, &error), HOIST_INVALID_ARGUMENT);
  EXPECT_THAT(hoist_error_message(error), HasSubstr("session"));
  hoist_error_free(error);
  hoist_group_info info = {};
  EXPECT_EQ(hoist_model_group(worker.model.get(), 0, &info, nullptr),
            HOIST_INVALID_ARGUMENT);
  // An older caller's, shorter struct is filled as far as it goes.
  info.struct_size = offsetof(hoist_group_info, image_bytes);
  EXPECT_EQ(hoist_model_group(worker.model.get(), 0, &info, nullptr), HOIST_OK);
  EXPECT_STREQ(info.name, "a");
  EXPECT_EQ(info.image_bytes, 0u);
  hoist_error_free(nullptr);
  hoist_session_free(nullptr);
  hoist_lease_free(nullptr);
  hoist_model_free(nullptr);
}

}  // namespace hoist_test::session_test
