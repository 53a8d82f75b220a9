// Which model a name or a content means, for whom.
#include "daemon/model/model_name.h"
#include "daemon/model/published_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_names_test {

using ::hoistd::testing::IsOk;
using ::hoistd::testing::NodeRig;
using ::hoistd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
constexpr auto kExists = absl::StatusCode::kAlreadyExists;
constexpr uint32_t kMine = 1, kTheirs = 2, kRoot = 0;

TEST(MeantBy, OnesOwnThenRootsAndOthersOnlyIfNamed) {
  EXPECT_THAT(MeantBy(User(7), "m"),
              ElementsAre(OwnedName{User(7), "m"}, OwnedName{User(0), "m"}));
  EXPECT_THAT(MeantBy(User(0), "m"), ElementsAre(OwnedName{User(0), "m"}));
  EXPECT_THAT(MeantBy(User(7), "8:a:b"),
              ElementsAre(OwnedName{User(8), "a:b"}));
  EXPECT_THAT(MeantBy(User(7), "a:b"),
              ElementsAre(OwnedName{User(7), "a:b"}, OwnedName{User(0), "a:b"},
                          OwnedName{*User::Tenant("a"), "b"}));
  EXPECT_THAT(MeantBy(User(7), "A:b"), ElementsAre(OwnedName{User(7), "A:b"},
                                                   OwnedName{User(0), "A:b"}));
  EXPECT_THAT(MeantBy(User(7), "99999999999:m"), IsEmpty());
}

TEST(User, ATenantIsItsNameAndNoUid) {
  const User a = *User::Tenant("team-a"), b = *User::Tenant("team-b");
  EXPECT_NE(a, b);
  EXPECT_EQ(a, *User::Tenant("team-a"));
  for (const uint32_t uid : {0u, 65534u, UINT32_MAX}) EXPECT_NE(a, User(uid));
  EXPECT_EQ(ToString(a), "tenant team-a");
  EXPECT_EQ(ToString(User(7)), "uid 7");
  EXPECT_EQ(ToString(OwnedName{a, "m"}), "team-a:m");
  EXPECT_TRUE(User::Tenant(std::string(31, 'a')).has_value());
  for (const std::string& bad :
       {std::string(), std::string("1a"), std::string("A"), std::string("a:b"),
        std::string("a b"), std::string(32, 'a'), std::string("a\0b", 3)}) {
    EXPECT_FALSE(User::Tenant(bad).has_value()) << bad;
  }
}

TEST(ModelName, CannotLookLikeAnotherUsers) {
  EXPECT_THAT(ValidateModelName("1000:llama"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_OK(ValidateModelName("llama:1000"));
  EXPECT_OK(ValidateModelName(":llama"));
}

// What everyone may read is no model of everyone's.
class NodeNames : public ::testing::Test {
 protected:
  ModelPtr Publish(SessionId session, const std::string& model,
                   uint8_t content) {
    const RequestId request = rig_.Publish(session, model, "g", 2, content);
    rig_.Finish<ClientToHost>();
    const Answer* answer = rig_.AnswerTo(request);
    EXPECT_OK(answer->status);
    return answer->model;
  }

  NodeRig rig_{{.readers = Readers::kEveryone}};
  const SessionId mine_ = rig_.Open(kMine), theirs_ = rig_.Open(kTheirs),
                  root_ = rig_.Open(kRoot);
};

TEST_F(NodeNames, AnothersModelIsNeverMeantByItsName) {
  Publish(theirs_, "m", 1);
  EXPECT_THAT(rig_.node().tenure().Find(mine_, "m"), StatusIs(kNotFound));
  EXPECT_OK(rig_.node().tenure().Find(mine_, "2:m"));
  const ModelPtr roots = Publish(root_, "m", 2);
  EXPECT_EQ((*rig_.node().tenure().Find(mine_, "m"))->id, roots->id);
  const ModelPtr own = Publish(mine_, "m", 3);
  EXPECT_EQ((*rig_.node().tenure().Find(mine_, "m"))->id, own->id);
  EXPECT_EQ((*rig_.node().tenure().Find(theirs_, "0:m"))->id, roots->id);
}

TEST_F(NodeNames, OnlyItsOwnerAddsToAModel) {
  const ModelPtr theirs = Publish(theirs_, "m", 1);
  rig_.Published(mine_, "m", "more", 1);
  EXPECT_EQ((*rig_.node().tenure().Find(theirs_, "m"))->spec->groups.size(),
            1u);
  EXPECT_NE((*rig_.node().tenure().Find(mine_, "m"))->id, theirs->id);
}

TEST_F(NodeNames, AContentIsSharedWhateverItIsCalled) {
  const ModelPtr theirs = Publish(theirs_, "some name", 9);
  const Content content = ContentOf(*theirs->spec);
  ASSERT_OK_AND_ASSIGN(const ModelPtr found,
                       rig_.node().tenure().FindByContent(mine_, content));
  EXPECT_EQ(found->id, theirs->id);
  EXPECT_EQ(found->owner, User(kTheirs));
  // Root's goes before another user's, one's own before root's.
  const ModelPtr roots = Publish(root_, "r", 9);
  EXPECT_EQ((*rig_.node().tenure().FindByContent(mine_, content))->id,
            roots->id);
  const ModelPtr own = Publish(mine_, "o", 9);
  EXPECT_EQ((*rig_.node().tenure().FindByContent(mine_, content))->id, own->id);
}

TEST_F(NodeNames, AGrownModelHasAnotherContent) {
  const ModelPtr before = Publish(mine_, "m", 9);
  rig_.Published(mine_, "m", "more", 1);
  const ModelPtr after = *rig_.node().tenure().Find(mine_, "m");
  EXPECT_THAT(
      rig_.node().tenure().FindByContent(mine_, ContentOf(*before->spec)),
      StatusIs(kNotFound));
  EXPECT_OK(rig_.node().tenure().FindByContent(mine_, ContentOf(*after->spec)));
  ASSERT_OK(rig_.Forget(mine_, after->id));
  EXPECT_THAT(
      rig_.node().tenure().FindByContent(mine_, ContentOf(*after->spec)),
      StatusIs(kNotFound));
}

TEST(NodeContent, KnowingItIsNoRightToRead) {
  NodeRig rig;  // Readers: the owner.
  const SessionId mine = rig.Open(kMine), theirs = rig.Open(kTheirs);
  rig.Published(theirs, "m", "g", 2);
  const Content content =
      ContentOf(*(*rig.node().tenure().Find(theirs, "m"))->spec);
  EXPECT_OK(rig.node().tenure().FindByContent(theirs, content));
  EXPECT_THAT(rig.node().tenure().FindByContent(mine, content),
              StatusIs(kNotFound));
  // Not even by an admin, who would then depend on their model.
  EXPECT_THAT(rig.node().tenure().FindByContent(rig.Open(kRoot), content),
              StatusIs(kNotFound));
}

// As on CUDA, where whoever has memory open could write to it.
TEST(NodeTrust, WhereUsersDoNotTrustEachOtherEachHasCopiesOfTheirOwn) {
  NodeRig rig({.readers = Readers::kEveryone, .users_share_devices = false});
  const SessionId mine = rig.Open(kMine), theirs = rig.Open(kTheirs),
                  root = rig.Open(kRoot);
  const ModelId files = rig.AddModel(theirs, "m", {1});
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  for (const SessionId other : {mine, root}) {
    const RequestId stage = rig.Stage(other, {files, GroupIndex(0)});
    EXPECT_THAT(rig.AnswerTo(stage)->status,
                StatusIs(kPrecondition, HasSubstr("device.trust")));
    const RequestId plan = rig.SetPlan(other, files, {0}, 8);
    EXPECT_THAT(rig.AnswerTo(plan)->status,
                StatusIs(kPrecondition, HasSubstr("device.trust")));
  }
  rig.StageNow(theirs, {files, GroupIndex(0)});
  // Who brings the same gets no share of it, by files or by content.
  EXPECT_NE(rig.AddModel(mine, "m", {1}), files);
  const GroupKey published = rig.Published(theirs, "p", "g", 1);
  const Content content =
      ContentOf(**rig.node().copies().SpecOf(published.model));
  EXPECT_OK(rig.node().tenure().FindByContent(theirs, content));
  EXPECT_THAT(rig.node().tenure().FindByContent(mine, content),
              StatusIs(kNotFound));
}

TEST_F(NodeNames, FilesAreNoContentThatCouldBeAskedFor) {
  const ModelId files = rig_.AddModel(theirs_, "m", {1});
  EXPECT_THAT(rig_.node().tenure().FindByContent(
                  mine_, ContentOf(**rig_.node().copies().SpecOf(files))),
              StatusIs(kNotFound));
  // Who opens the same files shares them, under a name of their own too.
  EXPECT_EQ(rig_.AddModel(mine_, "m", {1}), files);
}

TEST_F(NodeNames, ReadersOfAModelStayWhatTheyAre) {
  ASSERT_OK(rig_.TryAddModel(mine_, "m", {1}, 0, Readers::kOwner));
  EXPECT_OK(rig_.TryAddModel(mine_, "m", {1}));
  EXPECT_THAT(rig_.TryAddModel(mine_, "m", {1}, 0, Readers::kEveryone),
              StatusIs(kExists, HasSubstr("you alone")));
}

TEST_F(NodeNames, ItsOwnerForgetsAModelAndNobodyElse) {
  const ModelPtr model = Publish(mine_, "m", 1);
  EXPECT_THAT(rig_.Forget(theirs_, model->id), StatusIs(kDenied));
  const LeaseId lease = rig_.StageNow(theirs_, {model->id, GroupIndex(0)});
  EXPECT_THAT(rig_.Forget(mine_, model->id),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK(rig_.Release(theirs_, lease));
  EXPECT_OK(rig_.Forget(mine_, model->id));
  EXPECT_THAT(rig_.node().tenure().Find(mine_, "m"), StatusIs(kNotFound));
  EXPECT_THAT(rig_.Forget(mine_, model->id), StatusIs(kNotFound));
  Publish(mine_, "m", 2);  // The name is free.
  EXPECT_OK(rig_.Forget(root_, (*rig_.node().tenure().Find(mine_, "m"))->id));
}

// In containers every worker is uid 0: tenants are told apart by their sockets.
class NodeTenants : public ::testing::Test {
 protected:
  static Peer Worker(const char* tenant) {
    return {.uid = *User::Tenant(tenant), .pid = 1, .via = "socket"};
  }

  NodeRig rig_{
      {.quota = {.each = {.models = 100},
                 .of_tenants = {{*User::Tenant("a"), {.models = 1}}}}}};
  const SessionId a_ = rig_.Open(Worker("a")), b_ = rig_.Open(Worker("b"));
};

TEST_F(NodeTenants, NamesDoNotCollideAndAreOfTheTenantAlone) {
  const ModelId of_a = rig_.AddModel(a_, "m", {1});
  const ModelId of_b = rig_.AddModel(b_, "m", {2});
  EXPECT_NE(of_a, of_b);
  const SessionId again = rig_.Open(Worker("a"));
  ASSERT_OK_AND_ASSIGN(const ModelPtr found,
                       rig_.node().tenure().Find(again, "m"));
  EXPECT_EQ(found->id, of_a);
  for (const SessionId other : {b_, rig_.Open(65534)}) {
    EXPECT_THAT(rig_.node().tenure().Find(other, "a:m"), StatusIs(kNotFound));
    EXPECT_THAT(rig_.node().tenure().Find(other, of_a), StatusIs(kNotFound));
  }
  ASSERT_OK_AND_ASSIGN(const ModelPtr admins,
                       rig_.node().tenure().Find(rig_.Open(kRoot), "a:m"));
  EXPECT_EQ(admins->id, of_a);
  EXPECT_THAT(rig_.Forget(b_, of_a), StatusIs(kNotFound));
}

TEST_F(NodeTenants, EachHasItsOwnQuota) {
  rig_.AddModel(a_, "m", {1});
  EXPECT_THAT(rig_.TryAddModel(rig_.Open(Worker("a")), "n", {1}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("tenant a holds 1 of 1 models; forget one, or "
                                 "raise tenant.quota.models")));
  rig_.AddModel(b_, "m", {1, 1});
  rig_.AddModel(b_, "n", {1, 1, 1});
}

TEST_F(NodeTenants, MemoryOfOneIsNoOthersZone) {
  NodeRig rig({.users_share_devices = false});
  const SessionId a = rig.Open(Worker("a")), b = rig.Open(Worker("b"));
  const auto of_a = rig.TryAddModel(a, "m", {1}, 1, Readers::kEveryone);
  const auto of_b = rig.TryAddModel(b, "m", {1}, 2);
  ASSERT_OK(of_a);
  ASSERT_OK(of_b);
  rig.StageNow(a, {(*of_a)->id, GroupIndex(0)});
  rig.StageNow(b, {(*of_b)->id, GroupIndex(0)});
  const RequestId refused = rig.Stage(b, {(*of_a)->id, GroupIndex(0)});
  EXPECT_THAT(rig.AnswerTo(refused)->status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("is tenant a's")));
}

}  // namespace hoistd::node_names_test
