#include "daemon/keeper/keep.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hoist/shared/packet_socket.h"
#include "tests/support/status_matchers.h"

namespace hoistd::keep_test {

using ::hoistd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

hoist::UniqueFd Dup(int fd) {
  return hoist::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

hoist::UniqueFd NewFile() {
  auto memfd = hoist::CreateMemfd("kept", 1);
  EXPECT_TRUE(memfd.ok());
  return std::move(*memfd);
}

// systemd, or hoist-keeper.
class FakeStore final : public FdStore {
 public:
  absl::Status Store(const std::string& name,
                     const std::vector<int>& fds) override {
    if (!broken.ok()) return broken;
    for (const int fd : fds) held.emplace(name, Dup(fd));
    return absl::OkStatus();
  }
  absl::Status Remove(const std::string& name) override {
    held.erase(name);
    return absl::OkStatus();
  }
  // To the next process. The last first, as systemd does.
  std::vector<HandedFd> Hand() const {
    std::vector<HandedFd> handed;
    for (auto one = held.rbegin(); one != held.rend(); ++one) {
      handed.push_back({one->first, Dup(one->second.get())});
    }
    return handed;
  }

  absl::Status broken;
  std::multimap<std::string, hoist::UniqueFd> held;
};

// A process that begins with what is held, and ends at once when it goes.
struct Life {
  explicit Life(FakeStore& store) : handed(store.Hand()) {
    absl::StatusOr<Keep> made = Keep::Create(
        store, handed, found, [this](PersistedKey key, hoist::UniqueFd fd) {
          EXPECT_TRUE(fd.valid());
          EXPECT_TRUE(descriptors.insert(key).second);
        });
    EXPECT_OK(made);
    keep.emplace(*std::move(made));
  }

  std::vector<HandedFd> handed;
  Keep::Found found;
  std::set<PersistedKey> descriptors;
  std::optional<Keep> keep;
};

TEST(Keep, TheNextHasWhatWasKeptAndWritten) {
  FakeStore store;
  {
    Life life(store);
    EXPECT_TRUE(life.descriptors.empty());
    EXPECT_TRUE(life.found.records.empty());
    for (uint64_t i = 0; i < 3; ++i) {
      ASSERT_OK(life.keep->KeepDescriptor({1, i}, NewFile().get()));
      ASSERT_OK(life.keep->Write({1, i}, "record " + std::to_string(i)));
    }
    ASSERT_OK(life.keep->DropDescriptor({1, 1}));
    ASSERT_OK(life.keep->DropDescriptor({1, 1}));
    ASSERT_OK(life.keep->Erase({1, 1}));
  }
  store.held.emplace("hoistd.socket", NewFile());
  Life next(store);
  EXPECT_THAT(next.found.notes, IsEmpty());
  EXPECT_EQ(next.descriptors.size(), 2u);
  EXPECT_TRUE(next.descriptors.contains({1, 2}));
  EXPECT_EQ(next.found.records.size(), 2u);
  EXPECT_EQ(next.found.records[PersistedKey({1, 2})], "record 2");
  // What is not a Keep's is left to others.
  ASSERT_EQ(next.handed.size(), 1u);
  EXPECT_EQ(next.handed[0].name, "hoistd.socket");
}

TEST(Keep, TenThousandsCostTheStoreAHundred) {
  FakeStore store;
  constexpr uint64_t kMany = 20000;
  const hoist::UniqueFd file = NewFile();
  {
    Life life(store);
    for (uint64_t i = 0; i < kMany; ++i) {
      ASSERT_OK(life.keep->KeepDescriptor({1, i}, file.get()));
    }
    EXPECT_EQ(life.keep->stored_descriptors(), store.held.size());
  }
  EXPECT_LT(store.held.size(), 400u);
  {
    Life next(store);
    EXPECT_EQ(next.descriptors.size(), kMany);
    for (uint64_t i = 0; i < kMany; i += 10) {
      ASSERT_OK(next.keep->DropDescriptor({1, i}));
    }
  }
  Life last(store);
  EXPECT_EQ(last.descriptors.size(), kMany - kMany / 10);
}

TEST(Keep, WhatIsEmptyIsGivenBack) {
  FakeStore store;
  Life life(store);
  const hoist::UniqueFd file = NewFile();
  constexpr uint64_t kSome = 3 * DescriptorBundle::kMost;
  for (uint64_t i = 0; i < kSome; ++i) {
    ASSERT_OK(life.keep->KeepDescriptor({1, i}, file.get()));
  }
  EXPECT_GE(store.held.size(), 7u);
  for (uint64_t i = 0; i < kSome; ++i) {
    ASSERT_OK(life.keep->DropDescriptor({1, i}));
  }
  EXPECT_EQ(store.held.size(), 3u);  // The book and a bundle's ends.
}

TEST(Keep, ABookThatManyDiedOfIsDroppedAndSaidSo) {
  FakeStore store;
  {
    Life life(store);
    ASSERT_OK(life.keep->KeepDescriptor({1, 1}, NewFile().get()));
    ASSERT_OK(life.keep->Write({1, 1}, "poison"));
  }
  for (uint32_t i = 0; i < PersistedBook::kMaxAttempts; ++i) Life dies(store);
  {
    Life spared(store);
    EXPECT_THAT(spared.found.notes, ElementsAre(HasSubstr("is dropped")));
    EXPECT_TRUE(spared.found.records.empty());
    EXPECT_TRUE(spared.descriptors.empty());
    EXPECT_EQ(store.held.size(), 1u);  // The new book.
    ASSERT_OK(spared.keep->Write({1, 2}, "fine"));
  }
  Life next(store);
  EXPECT_THAT(next.found.notes, IsEmpty());
  EXPECT_EQ(next.found.records.size(), 1u);
}

TEST(Keep, OneThatAdoptedMayDieAsOftenAsItLikes) {
  FakeStore store;
  {
    Life life(store);
    ASSERT_OK(life.keep->Write({1, 1}, "a"));
  }
  for (int i = 0; i < 10; ++i) {
    Life next(store);
    EXPECT_EQ(next.found.records.size(), 1u);
    next.keep->Adopted();
  }
}

TEST(Keep, WhatNobodyHoldsIsNotKept) {
  FakeStore store;
  store.broken = absl::UnavailableError("nobody listens");
  std::vector<HandedFd> handed;
  Keep::Found found;
  const auto none = [](PersistedKey, hoist::UniqueFd) { ADD_FAILURE(); };
  EXPECT_THAT(Keep::Create(store, handed, found, none).status(),
              StatusIs(absl::StatusCode::kUnavailable));
  store.broken = absl::OkStatus();
  Life life(store);
  store.broken = absl::UnavailableError("nobody listens");
  EXPECT_THAT(life.keep->KeepDescriptor({1, 1}, NewFile().get()),
              StatusIs(absl::StatusCode::kUnavailable));
  store.broken = absl::OkStatus();
  ASSERT_OK(life.keep->KeepDescriptor({1, 1}, NewFile().get()));
}

TEST(Keep, HalfABundleIsDroppedAndSaidSo) {
  FakeStore store;
  {
    Life life(store);
    ASSERT_OK(life.keep->KeepDescriptor({1, 1}, NewFile().get()));
    ASSERT_OK(life.keep->Write({1, 1}, "a"));
  }
  store.held.erase("hoist-kept-1-out");
  Life next(store);
  EXPECT_THAT(next.found.notes, ElementsAre(HasSubstr("some of what")));
  EXPECT_TRUE(next.descriptors.empty());
  EXPECT_EQ(next.found.records.size(), 1u);
  EXPECT_EQ(store.held.size(), 1u);
}

}  // namespace hoistd::keep_test
