#include "daemon/core/model_book.h"

#include "daemon/model/published_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/recount.h"
#include "tests/support/status_matchers.h"

namespace hoistd::model_book_test {

using ::testing::HasSubstr;
using testing::StatusIs;

const User kRoot(0);
const User kAnn(1);
const User kBob(2);
constexpr auto kOwner = Readers::kOwner;
constexpr auto kEveryone = Readers::kEveryone;

Peer PeerOf(User uid) {
  Peer peer;
  peer.uid = uid;
  return peer;
}

Content ContentOf(uint8_t first) {
  Content content = {};
  content[0] = first;
  return content;
}

std::shared_ptr<const Group> GroupOf(const std::string& name) {
  auto group = std::make_shared<Group>();
  group->name = name;
  group->image_bytes = 4096;
  group->tensors.emplace_back();
  return group;
}

struct Books {
  explicit Books(bool users_share = true)
      : models(copies, quota, users_share) {}

  CopyTable copies;
  QuotaBook quota{QuotaOptions{.each = {.models = 2}}};
  ModelBook models;

  // Read from files, of one group.
  ModelPtr Add(uint64_t id, const std::string& name, User owner,
               Readers readers, uint8_t content) {
    auto spec = std::make_shared<ModelSpec>();
    spec->name = name;
    spec->content = ContentOf(content);
    spec->book_bytes = 100;
    spec->groups.push_back(GroupOf("g"));
    return models.Add(ModelId(id), spec, owner, readers).model;
  }
  void Check() const {
    models.Check();
    QuotaBook counted;
    testing::CountModelsInto(copies, counted);
    EXPECT_EQ(counted.users(), quota.users());
  }
};

TEST(ModelBook, ANameIsItsUsersOwn) {
  Books books;
  books.Add(1, "m", kAnn, kOwner, 7);
  books.Add(2, "m", kBob, kOwner, 8);
  EXPECT_EQ(books.models.Named(kAnn, "m")->model->id, ModelId(1));
  EXPECT_EQ(books.models.Named(kBob, "m")->model->id, ModelId(2));
  EXPECT_EQ(books.models.Named(kRoot, "m"), nullptr);
  EXPECT_TRUE(books.models.Named(kAnn, "m")->groups.at(0).in_files);
  books.Check();
}

TEST(ModelBook, WhatIsRemovedIsFoundNoMoreAndCountsNoMore) {
  Books books;
  books.Add(1, "m", kAnn, kEveryone, 7);
  books.Add(2, "n", kAnn, kEveryone, 7);
  books.models.Remove(ModelId(1));
  EXPECT_EQ(books.models.Named(kAnn, "m"), nullptr);
  EXPECT_EQ(books.models.Shared(kBob, ContentOf(7), false)->id, ModelId(2));
  books.Check();
  books.models.Remove(ModelId(2));
  EXPECT_EQ(books.models.Shared(kBob, ContentOf(7), false), nullptr);
  EXPECT_TRUE(books.quota.users().empty());
  books.Check();
}

TEST(ModelBook, OnesOwnIsSharedFirstThenRoots) {
  Books books;
  books.Add(1, "m", kBob, kEveryone, 7);
  EXPECT_EQ(books.models.Shared(kAnn, ContentOf(7), false)->owner, kBob);
  books.Add(2, "m", kRoot, kEveryone, 7);
  EXPECT_EQ(books.models.Shared(kAnn, ContentOf(7), false)->owner, kRoot);
  books.Add(3, "m", kAnn, kOwner, 7);
  EXPECT_EQ(books.models.Shared(kAnn, ContentOf(7), false)->owner, kAnn);
  EXPECT_EQ(books.models.Shared(kAnn, ContentOf(7), true), nullptr);
  EXPECT_EQ(books.models.Shared(kAnn, ContentOf(8), false), nullptr);
}

TEST(ModelBook, WhatOnlyItsOwnerMayReadIsSharedWithNobody) {
  Books books;
  const ModelPtr model = books.Add(1, "m", kBob, kOwner, 7);
  EXPECT_EQ(books.models.Shared(kAnn, ContentOf(7), false), nullptr);
  EXPECT_FALSE(ModelBook::MayRead(PeerOf(kAnn), *model));
  EXPECT_TRUE(ModelBook::MayRead(PeerOf(kBob), *model));
  EXPECT_THAT(books.models.Find(PeerOf(kAnn), ModelId(1)),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_OK(books.models.Find(PeerOf(kBob), ModelId(1)));
}

TEST(ModelBook, WhereUsersShareNoDevicesTheyShareNoModels) {
  Books books(/*users_share=*/false);
  const ModelPtr model = books.Add(1, "m", kBob, kEveryone, 7);
  EXPECT_EQ(books.models.Shared(kAnn, ContentOf(7), false), nullptr);
  EXPECT_THAT(books.models.CheckShares(PeerOf(kAnn), *model),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_OK(books.models.CheckShares(PeerOf(kBob), *model));
}

TEST(ModelBook, ANameMeansOnesOwnThenRootsIfOneMayReadIt) {
  Books books;
  books.Add(1, "m", kRoot, kEveryone, 7);
  books.Add(2, "n", kRoot, kOwner, 8);
  EXPECT_OK(books.models.Find(PeerOf(kAnn), "m"));
  EXPECT_THAT(books.models.Find(PeerOf(kAnn), "n"),
              StatusIs(absl::StatusCode::kNotFound));
  books.Add(3, "m", kAnn, kOwner, 9);
  EXPECT_EQ((*books.models.Find(PeerOf(kAnn), "m"))->id, ModelId(3));
  EXPECT_EQ((*books.models.Find(PeerOf(kAnn), "0:m"))->id, ModelId(1));
  Peer admin = PeerOf(kBob);
  admin.admin = true;
  books.Add(4, "k", kAnn, kOwner, 10);
  EXPECT_THAT(books.models.Find(admin, "k"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("1:k")));
}

TEST(ModelBook, AGroupMoreIsAnotherContent) {
  Books books;
  ModelEntry& entry =
      books.models.AddPublished(ModelId(1), "m", kAnn, kEveryone);
  const Content empty = ContentOf(*entry.model->spec);
  ASSERT_OK(books.models.Put(entry, GroupIndex(0), GroupOf("a"), ContentOf(1)));
  const Content one = ContentOf(*entry.model->spec);
  EXPECT_NE(one, empty);
  EXPECT_EQ(books.models.Shared(kBob, one, true)->id, ModelId(1));
  books.Check();
  ASSERT_OK(books.models.Put(entry, GroupIndex(1), GroupOf("b"), ContentOf(2)));
  EXPECT_EQ(books.models.Shared(kBob, one, true), nullptr);
  EXPECT_EQ(entry.groups.size(), 2u);
  EXPECT_THAT(
      books.models.Put(entry, GroupIndex(2), GroupOf("b"), ContentOf(2)),
      StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(entry.groups.size(), 2u);
  books.Check();
}

TEST(ModelBook, WhatIsMissingKeepsItsPlaceAndIsLost) {
  Books books;
  ModelEntry& entry =
      books.models.AddPublished(ModelId(1), "m", kAnn, kEveryone);
  books.models.LeavePlaces(entry, 2);
  ASSERT_OK(books.models.Put(entry, GroupIndex(2), GroupOf("c"), ContentOf(3)));
  books.Check();
  EXPECT_EQ(entry.missing(), 2u);
  EXPECT_EQ(entry.next_place, GroupIndex(0));
  EXPECT_THAT(entry.groups[1].lost,
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("group 1")));
  EXPECT_OK(entry.groups[2].lost);
  // Nobody takes it for a model of "c" alone.
  EXPECT_EQ(books.models.Shared(kBob, ModelContent({ContentOf(3)}), true),
            nullptr);
  ASSERT_OK(books.models.Put(entry, GroupIndex(1), GroupOf("b"), ContentOf(2)));
  EXPECT_OK(entry.groups[1].lost);
  EXPECT_EQ(entry.missing(), 1u);
  EXPECT_EQ(entry.model->spec->groups[1]->name, "b");
  EXPECT_EQ(entry.Find("b"), GroupIndex(1));
  EXPECT_EQ(entry.Find("a"), std::nullopt);
  ASSERT_OK(books.models.Put(entry, GroupIndex(0), GroupOf("a"), ContentOf(1)));
  EXPECT_EQ(entry.next_place, GroupIndex(3));
  books.Check();
}

TEST(ModelBook, AUserHasAsManyModelsAsTheirQuota) {
  Books books;
  books.Add(1, "m", kAnn, kOwner, 7);
  EXPECT_OK(books.models.CheckMore(kAnn, ModelSpec()));
  books.models.AddPublished(ModelId(2), "n", kAnn, kOwner);
  EXPECT_THAT(books.models.CheckMore(kAnn, ModelSpec()),
              StatusIs(absl::StatusCode::kResourceExhausted));
  // A group more of one that is there is no model more.
  EXPECT_OK(books.models.CheckAppend(kAnn, "n", *GroupOf("a")));
  EXPECT_THAT(books.models.CheckAppend(kAnn, "o", *GroupOf("a")),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(ModelBook, ReadersAreToldApart) {
  Books books;
  const ModelPtr ann = books.Add(1, "m", kAnn, kOwner, 7);
  const ModelPtr bob = books.Add(2, "m", kBob, kOwner, 7);
  const ModelPtr all = books.Add(3, "n", kAnn, kEveryone, 7);
  EXPECT_NE(books.models.ReadersOf(*ann), books.models.ReadersOf(*bob));
  EXPECT_NE(books.models.ReadersOf(*ann), books.models.ReadersOf(*all));
}

}  // namespace hoistd::model_book_test
