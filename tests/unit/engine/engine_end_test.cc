// Sessions that are told to end.
#include <utility>
#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/engine_rig.h"
#include "tests/support/io_wait.h"
#include "tests/support/status_matchers.h"

namespace hoistd::engine_end_test {

using testing::Answer;
using testing::EngineRig;
using ::testing::HasSubstr;
using testing::StatusIs;

using Ended = absl::Status;

class EngineEnd : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(rig_.Start()); }

  // One of that uid that listens.
  SessionId Open(uint32_t uid, OnSessionWord on_word) {
    OpenSessionArgs args;
    args.client_name = "worker";
    args.peer.uid = User(uid);
    args.peer.via = "socket";
    Answer<absl::StatusOr<SessionId>> opened;
    rig_.engine().OpenSession(args, std::move(on_word), opened.done());
    return opened.Wait().value_or(SessionId());
  }
  static Peer Of(uint32_t uid) { return {.uid = User(uid)}; }

  EngineRig rig_;
};

TEST_F(EngineEnd, ItIsToldWhyAndLivesUntilItIsClosed) {
  Answer<SessionWord> heard;
  const SessionId session = Open(1, heard.done());
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig_.Register(session, "m"));
  ASSERT_OK(rig_.Stage(session, {model->id, GroupIndex(0)}));
  Answer<Ended> answer;
  rig_.engine().Ask(EndSessionArgs{EngineRig::kAdmin, session}, answer.done());
  const SessionWord word = heard.Wait();
  ASSERT_TRUE(std::holds_alternative<absl::Status>(word));
  EXPECT_THAT(std::get<absl::Status>(word),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("an admin")));
  // What it leases is its own yet.
  EXPECT_EQ(rig_.Look([&](const NodeView& view) {
    return view.node.tenure().sessions().At(session).leases.size();
  }),
            1u);
  rig_.engine().CloseSession(session);
  EXPECT_OK(answer.Wait());
}

TEST_F(EngineEnd, ItsOwnUserMayAndOthersDoNotKnowOfIt) {
  Answer<SessionWord> heard;
  const SessionId session = Open(5, heard.done());
  Answer<Ended> strangers, own;
  rig_.engine().Ask(EndSessionArgs{Of(6), session}, strangers.done());
  EXPECT_THAT(strangers.Wait(), StatusIs(absl::StatusCode::kNotFound));
  rig_.engine().Ask(EndSessionArgs{Of(5), session}, own.done());
  EXPECT_THAT(std::get<absl::Status>(heard.Wait()).message(),
              HasSubstr("its user"));
  rig_.engine().CloseSession(session);
  EXPECT_OK(own.Wait());
}

TEST_F(EngineEnd, ThatDoesNotListenIsRefused) {
  Answer<Ended> answer;
  rig_.engine().Ask(EndSessionArgs{EngineRig::kAdmin, rig_.Open()},
                    answer.done());
  EXPECT_THAT(answer.Wait(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("cannot be asked to let go")));
}

// However often it is asked for, one waits.
TEST_F(EngineEnd, ALaterCallerTakesTheFirstOnesPlace) {
  const SessionId session = Open(1, [](const SessionWord&) {});
  Answer<Ended> first, second;
  rig_.engine().Ask(EndSessionArgs{EngineRig::kAdmin, session}, first.done());
  rig_.engine().Ask(EndSessionArgs{EngineRig::kAdmin, session}, second.done());
  EXPECT_THAT(first.Wait(), StatusIs(absl::StatusCode::kAborted));
  rig_.engine().CloseSession(session);
  EXPECT_OK(second.Wait());
}

TEST_F(EngineEnd, WhoWaitsHearsOfHoistdsStop) {
  Answer<SessionWord> heard;
  const SessionId session = Open(1, heard.done());
  Answer<Ended> answer;
  rig_.engine().Ask(EndSessionArgs{EngineRig::kAdmin, session}, answer.done());
  heard.Wait();
  rig_.Stop();
  EXPECT_THAT(answer.Wait(), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace hoistd::engine_end_test
