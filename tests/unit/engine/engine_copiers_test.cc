// Who may have how many copiers, and when they end.
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/copier_client.h"
#include "tests/support/engine_rig.h"

namespace hoistd {
namespace {

using testing::Answer;
using testing::CopierClient;
using testing::EngineRig;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::StatusIs;
using testing::Until;

class EngineCopiers : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(rig_.Start()); }

  absl::StatusOr<OpenedCopier> Open(SessionId session, uint32_t device = 0,
                                    const ShareOptions& share = {}) {
    Answer<absl::StatusOr<OpenedCopier>> answer;
    rig_.engine().OpenCopier(session, {DeviceIndex(device), share},
                             answer.done());
    return answer.Wait();
  }
  absl::Status Close(SessionId session, CopierId copier) {
    Answer<absl::Status> answer;
    rig_.engine().CloseCopier(session, copier, answer.done());
    return answer.Wait();
  }
  absl::StatusOr<ShareChanged> SetWeight(CopierId copier, uint32_t weight) {
    Answer<absl::StatusOr<ShareChanged>> answer;
    rig_.engine().SetShare(copier, {.weight = weight}, answer.done());
    return answer.Wait();
  }
  LinkSnapshot Link() { return rig_.Snapshot().links[0]; }
  static CopierClient ClientOf(OpenedCopier opened) {
    return CopierClient({std::move(opened.memory), std::move(opened.wake)});
  }

  EngineRig rig_;
};

TEST_F(EngineCopiers, AreGrantedAndCounted) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(OpenedCopier opened, Open(session, 0, {.weight = 4}));
  const CopierId id = opened.id;
  CopierClient client = ClientOf(std::move(opened));
  client.Ask(5000);
  ASSERT_TRUE(client.AwaitGranted(5000));
  client.Done(5000);
  client.page().read.store(77);
  ASSERT_TRUE(Until([&] { return Link().own_bytes == 5000; }));
  const LinkSnapshot link = Link();
  EXPECT_EQ(link.own_read_bytes, 77u);
  EXPECT_EQ(link.plan_bytes, 0u);
  ASSERT_THAT(link.copiers, SizeIs(1));
  EXPECT_EQ(link.copiers[0].id, id);
  EXPECT_EQ(link.copiers[0].session, session);
  EXPECT_EQ(link.copiers[0].client_name, "test");
  EXPECT_EQ(link.copiers[0].share.weight, 4u);
  EXPECT_EQ(link.copiers[0].copied_bytes, 5000u);
  EXPECT_EQ(link.copiers[0].read_bytes, 77u);
  EXPECT_OK(Close(session, id));
  ASSERT_TRUE(Until([&] { return Link().copiers.empty(); }));
  EXPECT_EQ(Link().own_bytes, 5000u);
  EXPECT_THAT(Close(session, id), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(EngineCopiers, EndWithTheirSession) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(OpenedCopier opened, Open(session));
  CopierClient client = ClientOf(std::move(opened));
  client.Ask(5000);
  rig_.engine().CloseSession(session);
  EXPECT_TRUE(client.AwaitGranted(uint32_t{1} << 29));  // All is let through.
  EXPECT_TRUE(Until([&] { return Link().copiers.empty(); }));
  EXPECT_THAT(Open(session), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(EngineCopiers, ASessionHasEightAndAUser256) {
  std::vector<OpenedCopier> opened;
  for (int i = 0; i < 32; ++i) {
    const SessionId session = rig_.Open(/*uid=*/1);
    for (int j = 0; j < 8; ++j) {
      ASSERT_OK_AND_ASSIGN(OpenedCopier one, Open(session));
      opened.push_back(std::move(one));
    }
    EXPECT_THAT(Open(session), StatusIs(absl::StatusCode::kResourceExhausted,
                                        HasSubstr("close one")));
  }
  EXPECT_THAT(Open(rig_.Open(/*uid=*/1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("uid 1 has 256 copiers")));
  EXPECT_OK(Open(rig_.Open(/*uid=*/2)));
}

TEST_F(EngineCopiers, AreOnlyOfDevicesThatThereAre) {
  EXPECT_THAT(Open(rig_.Open(), 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no device 1")));
  EXPECT_THAT(Link().copiers, IsEmpty());
}

TEST_F(EngineCopiers, OfAnotherSessionCannotBeClosed) {
  ASSERT_OK_AND_ASSIGN(const OpenedCopier opened, Open(rig_.Open()));
  EXPECT_THAT(Close(rig_.Open(), opened.id),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Link().copiers, SizeIs(1));
}

TEST_F(EngineCopiers, AnAdminChangesTheirShare) {
  ASSERT_OK_AND_ASSIGN(const OpenedCopier opened, Open(rig_.Open()));
  ASSERT_OK_AND_ASSIGN(const ShareChanged changed, SetWeight(opened.id, 9));
  EXPECT_EQ(changed.before.weight, 1u);
  EXPECT_EQ(changed.after.weight, 9u);
  EXPECT_TRUE(Until([&] { return Link().copiers[0].share.weight == 9; }));
  EXPECT_THAT(SetWeight(CopierId(opened.id.number() + 1), 9),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("`hoistctl status` lists them")));
}

}  // namespace
}  // namespace hoistd
