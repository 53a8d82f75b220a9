// Who may have how many permits, and when they end.
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/engine_rig.h"
#include "tests/support/permit_client.h"

namespace hoistd::engine_permits_test {

using testing::Answer;
using testing::EngineRig;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::PermitClient;
using ::testing::SizeIs;
using testing::StatusIs;
using testing::Until;

class EnginePermits : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(rig_.Start()); }

  absl::StatusOr<OpenedPermit> Open(SessionId session, uint32_t device = 0,
                                    const ShareOptions& share = {}) {
    Answer<absl::StatusOr<OpenedPermit>> answer;
    rig_.engine().Ask(session, OpenPermitArgs{DeviceIndex(device), share},
                      answer.done());
    return answer.Wait();
  }
  absl::Status Close(SessionId session, PermitId permit) {
    Answer<absl::Status> answer;
    rig_.engine().Ask(session, ClosePermitArgs{permit}, answer.done());
    return answer.Wait();
  }
  absl::StatusOr<ShareChanged> SetWeight(PermitId permit, uint32_t weight) {
    Answer<absl::StatusOr<ShareChanged>> answer;
    rig_.engine().Ask(SetShareArgs{permit, {.weight = weight}}, answer.done());
    return answer.Wait();
  }
  LinkStats Link() {
    return rig_.Look([](const NodeView& view) { return view.engine.links[0]; });
  }
  std::vector<PermitStats> Permits() {
    return rig_.Look([](const NodeView& view) { return view.permits[0]; });
  }
  static PermitClient ClientOf(OpenedPermit opened) {
    return PermitClient({std::move(opened.memory), std::move(opened.wake)});
  }

  EngineRig rig_;
};

TEST_F(EnginePermits, AreGrantedAndCounted) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(OpenedPermit opened, Open(session, 0, {.weight = 4}));
  const PermitId id = opened.id;
  PermitClient client = ClientOf(std::move(opened));
  client.Ask(5000);
  ASSERT_TRUE(client.AwaitGranted(5000));
  client.Done(5000);
  client.page().read.store(77);
  ASSERT_TRUE(Until([&] { return Link().own_bytes == 5000; }));
  const LinkStats link = Link();
  EXPECT_EQ(link.own_read_bytes, 77u);
  EXPECT_EQ(link.plan_bytes, 0u);
  const std::vector<PermitStats> permits = Permits();
  ASSERT_THAT(permits, SizeIs(1));
  EXPECT_EQ(permits[0].id, id);
  EXPECT_EQ(permits[0].session, session);
  EXPECT_EQ(permits[0].share.weight, 4u);
  EXPECT_EQ(permits[0].copied_bytes, 5000u);
  EXPECT_EQ(permits[0].read_bytes, 77u);
  EXPECT_OK(Close(session, id));
  ASSERT_TRUE(Until([&] { return Permits().empty(); }));
  EXPECT_EQ(Link().own_bytes, 5000u);
  EXPECT_THAT(Close(session, id), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(EnginePermits, EndWithTheirSession) {
  const SessionId session = rig_.Open();
  ASSERT_OK_AND_ASSIGN(OpenedPermit opened, Open(session));
  PermitClient client = ClientOf(std::move(opened));
  client.Ask(5000);
  rig_.engine().CloseSession(session);
  EXPECT_TRUE(client.AwaitGranted(uint32_t{1} << 29));  // All is let through.
  EXPECT_TRUE(Until([&] { return Permits().empty(); }));
  EXPECT_THAT(Open(session), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(EnginePermits, ASessionHasEightAndAUser256) {
  std::vector<OpenedPermit> opened;
  for (int i = 0; i < 32; ++i) {
    const SessionId session = rig_.Open(/*uid=*/1);
    for (int j = 0; j < 8; ++j) {
      ASSERT_OK_AND_ASSIGN(OpenedPermit one, Open(session));
      opened.push_back(std::move(one));
    }
    EXPECT_THAT(Open(session), StatusIs(absl::StatusCode::kResourceExhausted,
                                        HasSubstr("close one")));
  }
  EXPECT_THAT(Open(rig_.Open(/*uid=*/1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("uid 1 has 256 permits")));
  EXPECT_OK(Open(rig_.Open(/*uid=*/2)));
}

TEST_F(EnginePermits, AreOnlyOfDevicesThatThereAre) {
  EXPECT_THAT(Open(rig_.Open(), 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no device 1")));
  EXPECT_THAT(Permits(), IsEmpty());
}

TEST_F(EnginePermits, OfAnotherSessionCannotBeClosed) {
  ASSERT_OK_AND_ASSIGN(const OpenedPermit opened, Open(rig_.Open()));
  EXPECT_THAT(Close(rig_.Open(), opened.id),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Permits(), SizeIs(1));
}

TEST_F(EnginePermits, AnAdminChangesTheirShare) {
  ASSERT_OK_AND_ASSIGN(const OpenedPermit opened, Open(rig_.Open()));
  ASSERT_OK_AND_ASSIGN(const ShareChanged changed, SetWeight(opened.id, 9));
  EXPECT_EQ(changed.before.weight, 1u);
  EXPECT_EQ(changed.after.weight, 9u);
  EXPECT_TRUE(Until([&] { return Permits()[0].share.weight == 9; }));
  EXPECT_THAT(SetWeight(PermitId(opened.id.number() + 1), 9),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("`hoistctl status` lists them")));
}

}  // namespace hoistd::engine_permits_test
