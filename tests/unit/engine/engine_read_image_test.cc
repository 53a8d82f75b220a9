// Images that the engine copies to clients' memfds, over real files, a real
// spill store and a real mover.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/engine_rig.h"

namespace hoistd::engine_read_image_test {

using testing::Answer;
using testing::EngineRig;
using testing::IsOk;
using testing::StatusIs;

GroupKey Key(const ModelPtr& model, uint32_t group) {
  return {model->id, GroupIndex(group)};
}

// As a client makes it; `bytes` may be wrong.
hoist::UniqueFd Target(uint64_t bytes) {
  hoist::UniqueFd fd(memfd_create("target", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto size = static_cast<off_t>(bytes);
  HOIST_CHECK(ftruncate(fd.get(), size) == 0);
  HOIST_CHECK(fallocate(fd.get(), 0, 0, size) == 0);
  HOIST_CHECK(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0);
  return fd;
}

ReadImageArgs Args(GroupKey key, const hoist::UniqueFd& target,
                   uint64_t bytes) {
  ReadImageArgs args;
  args.key = key;
  args.memfd = hoist::UniqueFd(dup(target.get()));
  args.memfd_bytes = bytes;
  return args;
}

class EngineReadImage : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(rig_.Start()); }

  // The group's bytes as they came, or why they did not.
  absl::StatusOr<std::string> Read(SessionId session, const ModelPtr& model,
                                   uint32_t group) {
    const uint64_t bytes = model->spec->groups[group]->image_bytes;
    const hoist::UniqueFd target = Target(bytes);
    Answer<absl::Status> answer;
    rig_.engine().Ask(session, Args(Key(model, group), target, bytes),
                      answer.done());
    HOIST_RETURN_IF_ERROR(answer.Wait());
    std::string read(bytes, '?');
    EXPECT_EQ(pread(target.get(), read.data(), bytes, 0),
              static_cast<ssize_t>(bytes));
    return read;
  }
  static std::string Right(const Group& group) {
    std::string want(group.image_bytes, '\0');
    for (const Tensor& tensor : group.tensors) {
      want.replace(
          tensor.offset, tensor.bytes,
          testing::TensorBytes(EngineRig::kSeed, tensor.name, tensor.bytes));
    }
    return want;
  }

  EngineRig rig_;
};

TEST_F(EngineReadImage, EveryGroupOfAModelComesFromItsFiles) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(session, "m"));
  for (uint32_t g = 0; g < model->spec->groups.size(); ++g) {
    ASSERT_OK_AND_ASSIGN(const std::string read, Read(session, model, g));
    EXPECT_TRUE(read == Right(*model->spec->groups[g])) << g;
  }
  EXPECT_EQ(rig_.UsedOf(OnDevice(DeviceIndex(0))), 0u);
  ASSERT_OK(rig_.Evict("m", /*forget=*/true));  // Nothing is held.
  EXPECT_EQ(rig_.UsedOf(OnHost()), 0u);
}

TEST_F(EngineReadImage, PublishedBytesComeFromTheHostAndFromTheSpillStore) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Publish(session, "p", "a"));
  ASSERT_OK_AND_ASSIGN(const std::string from_host, Read(session, model, 0));
  EXPECT_TRUE(from_host == Right(*model->spec->groups[0]));
  ASSERT_OK(rig_.Evict("p"));
  ASSERT_TRUE(rig_.Empties(OnHost()));
  ASSERT_OK_AND_ASSIGN(const std::string from_disk, Read(session, model, 0));
  EXPECT_TRUE(from_disk == from_host);
  EXPECT_EQ(rig_.counters().spill_read_bytes, from_disk.size());
}

TEST_F(EngineReadImage, AMemfdThatIsNotWhatItMustBeIsRefusedAndHoldsNothing) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(session, "m"));
  const uint64_t bytes = model->spec->groups[0]->image_bytes;
  const hoist::UniqueFd shorter = Target(bytes - 4096);
  Answer<absl::Status> small, lies;
  rig_.engine().Ask(session, Args(Key(model, 0), shorter, bytes - 4096),
                    small.done());
  EXPECT_THAT(small.Wait(), StatusIs(absl::StatusCode::kInvalidArgument));
  // Its size is looked at again before it is written.
  rig_.engine().Ask(session, Args(Key(model, 0), shorter, bytes), lies.done());
  EXPECT_THAT(lies.Wait(), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK(rig_.Evict("m", /*forget=*/true));
}

TEST_F(EngineReadImage, AFileThatChangedIsNotRead) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(session, "m"));
  for (const std::string& file : model->spec->files) {
    const std::string path = rig_.dir / "m" + "/" + file;
    ASSERT_EQ(truncate(path.c_str(), 100), 0);
  }
  EXPECT_THAT(Read(session, model, 0), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(rig_.UsedOf(OnHost()), 0u);
}

TEST_F(EngineReadImage, ClosedSessionsAreAnsweredAndLeaveNothingHeld) {
  const SessionId owner = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(owner, "m"));
  const uint64_t bytes = model->spec->groups[0]->image_bytes;
  // Wherever each of them has come to when its session closes.
  for (int i = 0; i < 20; ++i) {
    const SessionId session = rig_.Open();
    const hoist::UniqueFd target = Target(bytes);
    Answer<absl::Status> answer;
    rig_.engine().Ask(session, Args(Key(model, 0), target, bytes),
                      answer.done());
    if (i % 2 == 0) rig_.counters();  // The engine has moved on.
    rig_.engine().CloseSession(session);
    const absl::Status status = answer.Wait();
    EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
  }
  // When the last copy has ended, the model can go.
  absl::Status forgotten;
  testing::Until([&] {
    forgotten = rig_.Evict("m", /*forget=*/true).status();
    return forgotten.ok();
  });
  EXPECT_OK(forgotten);
  EXPECT_EQ(rig_.UsedOf(OnHost()), 0u);
}

TEST_F(EngineReadImage, StoppingAnswersEveryReadOnce) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(session, "m"));
  const auto groups = static_cast<uint32_t>(model->spec->groups.size());
  std::atomic<uint32_t> answered = 0;
  std::vector<hoist::UniqueFd> targets;
  for (uint32_t g = 0; g < groups; ++g) {
    const uint64_t bytes = model->spec->groups[g]->image_bytes;
    targets.push_back(Target(bytes));
    rig_.engine().Ask(session, Args(Key(model, g), targets[g], bytes),
                      [&](absl::Status status) {
                        ++answered;
                        EXPECT_TRUE(status.ok() || absl::IsUnavailable(status))
                            << status;
                      });
  }
  rig_.Stop();
  EXPECT_EQ(answered, groups);
}

}  // namespace hoistd::engine_read_image_test
