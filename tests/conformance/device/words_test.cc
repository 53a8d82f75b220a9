// Words that streams write behind copies, as other processes see them.
#include <atomic>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "hoist/shared/mapping.h"
#include "tests/conformance/device/rig.h"
#include "tests/support/pattern.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing::words_test {

constexpr size_t kPage = 4096;

// A page of words that is registered with the device and can be shared.
class WordsConformance : public DeviceConformance {
 protected:
  void SetUp() override {
    DeviceConformance::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    auto fd = hoist::CreateMemfd("test-words", kPage);
    ASSERT_TRUE(fd.ok());
    fd_ = std::move(fd).value();
    auto mapping = hoist::Mapping::OfFd(fd_.get(), kPage,
                                        hoist::Mapping::Access::kReadWrite);
    ASSERT_TRUE(mapping.ok());
    page_ = std::move(mapping).value();
    ASSERT_OK(device().RegisterHost(page_.span()));
  }
  void TearDown() override {
    if (page_.size() > 0) {
      EXPECT_OK(device().UnregisterHost(page_.span()));
    }
    DeviceConformance::TearDown();
  }

  std::atomic<uint32_t>* word(size_t index) {
    return reinterpret_cast<std::atomic<uint32_t>*>(page_.data()) + index;
  }
  absl::Status Write(CopyStream& stream, size_t index, uint32_t value) {
    const WordWrite write = {word(index), value};
    return stream.WriteWords({&write, 1});
  }
  // Rounds of copy and word, while another process waits for each word so.
  void BytesAreThereBehindTheWord(const std::string& how) {
    ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
    ASSERT_OK_AND_ASSIGN(auto worker, SpawnWorker());
    ASSERT_OK(Import(*worker, slab));
    ASSERT_OK(
        worker->Call(absl::StrCat("words ", kPage), {fd_.get()}).status());
    ASSERT_OK_AND_ASSIGN(auto stream, device().CreateStream());
    for (uint32_t round = 1; round <= 12; ++round) {
      const std::vector<std::byte> from = Pattern(slab.bytes, round);
      auto waiting = std::async(std::launch::async, [&, round] {
        return worker
            ->Call(absl::StrCat("await 3 ", round, " ", how, " ", slab.offset,
                                " ", slab.bytes, " ", round))
            .status();
      });
      // In pieces, so that a word behind the first would be seen too early.
      const std::span<const std::byte> all = from;
      for (uint64_t at = 0; at < slab.bytes; at += kMiB) {
        EXPECT_OK(stream->CopyIn(slab.offset + at, all.subspan(at, kMiB)));
      }
      EXPECT_OK(Write(*stream, 3, round));
      EXPECT_OK(waiting.get()) << "round " << round;
      ASSERT_OK(WaitFor(*stream));
    }
    EXPECT_OK(stream->Health());
  }

  hoist::UniqueFd fd_;
  hoist::Mapping page_;
};

TEST_P(WordsConformance, WhoPollsAWordReadsTheBytesBeforeIt) {
  BytesAreThereBehindTheWord("poll");
}

TEST_P(WordsConformance, WhoSleepsOnAWordIsWokenAndReadsTheBytesBeforeIt) {
  if (backing() != Backing::kMemfd) {
    GTEST_SKIP() << "a GPU wakes no CPU that sleeps on a word";
  }
  BytesAreThereBehindTheWord("futex");
}

TEST_P(WordsConformance, AllWordsOfOneCallAreWrittenAndNoOther) {
  ASSERT_OK_AND_ASSIGN(auto stream, device().CreateStream());
  constexpr size_t kCount = 601;  // More than the driver takes at once.
  std::vector<WordWrite> writes;
  for (size_t i = 0; i < kCount; ++i) {
    writes.push_back({word(i), static_cast<uint32_t>(i + 7)});
  }
  ASSERT_OK(stream->WriteWords(writes));
  ASSERT_OK(stream->WriteWords({}));
  ASSERT_OK(WaitFor(*stream));
  for (size_t i = 0; i < kPage / 4; ++i) {
    EXPECT_EQ(*word(i), i < kCount ? i + 7 : 0) << i;
  }
}

TEST_P(WordsConformance, WordsKeepTheOrderOfTheCalls) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  ASSERT_OK_AND_ASSIGN(auto stream, device().CreateStream());
  constexpr uint32_t kRounds = 300;
  const std::vector<std::byte> from = Pattern(4096, 1);
  // Looks at the later word first: the earlier one is never behind it.
  auto early = std::async(std::launch::async, [this] {
    uint32_t too_early = 0;
    for (uint32_t b = 0; b < kRounds;) {
      b = word(100)->load(std::memory_order_acquire);
      const uint32_t a = word(1)->load(std::memory_order_acquire);
      too_early += a < b ? 1 : 0;
      std::this_thread::yield();
    }
    return too_early;
  });
  absl::Status status;
  for (uint32_t i = 1; i <= kRounds; ++i) {
    status.Update(Write(*stream, 1, i));
    status.Update(stream->CopyIn(slab.offset, from));
    status.Update(Write(*stream, 100, i));
  }
  EXPECT_OK(status);
  EXPECT_OK(WaitFor(*stream));
  *word(100) = kRounds;  // Ends the other thread whatever was not written.
  EXPECT_EQ(early.get(), 0u);
  EXPECT_EQ(*word(1), kRounds);
}

TEST_P(WordsConformance, AStreamThatWorksIsHealthy) {
  ASSERT_OK_AND_ASSIGN(const SlabSpec slab, MakeSlab(0));
  ASSERT_OK_AND_ASSIGN(auto stream, device().CreateStream());
  EXPECT_OK(stream->Health());
  const std::vector<std::byte> from = Pattern(slab.bytes, 1);
  ASSERT_OK(stream->CopyIn(slab.offset, from));
  EXPECT_OK(stream->Health());  // With a copy under way.
  ASSERT_OK(WaitFor(*stream));
  EXPECT_OK(stream->Health());
}

INSTANTIATE_TEST_SUITE_P(, WordsConformance, ::testing::ValuesIn(kDeviceCases),
                         CaseName);

}  // namespace hoistd::testing::words_test
