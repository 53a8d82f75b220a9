#include "client/src/in_place/launched_passes.h"

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoist::launched_passes_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr pid_t kMe = 7;

cuda::Stream Stream(uintptr_t number) {
  return reinterpret_cast<cuda::Stream>(number);
}

// What was waited for: "mark" or "stream".
class Waits final : public StreamOrder {
 public:
  Status Register(std::span<std::byte>) override { return Status(); }
  void Unregister(std::span<std::byte>) override {}
  bool on_cpu() const override { return false; }
  bool one_at_a_time() const override { return false; }
  Result<bool> IsCapturing(cuda::Stream) override { return false; }
  Status Put(cuda::Stream, std::span<const WordOp>) override {
    return Status();
  }
  Status After(cuda::Stream, cuda::Stream) override { return Status(); }
  Result<Mark> MarkWork(cuda::Stream) override {
    if (captures_) return Status(Code::kFailedPrecondition, "captured");
    return Mark();
  }
  Status Await(const Mark&) override {
    waits_.emplace_back("mark");
    return Status();
  }
  Status Synchronize(cuda::Stream) override {
    waits_.emplace_back("stream");
    return Status();
  }
  Status SynchronizeAll() override { return Status(Code::kInternal, "no"); }

  std::vector<std::string> waits_;
  bool captures_ = false;
};

TEST(LaunchedPasses, ACompletePassIsAwaitedByItsMark) {
  LaunchedPasses passes;
  Waits order;
  passes.Begin(kMe, Stream(1));
  passes.Note(Stream(1));
  passes.End(kMe, order);
  EXPECT_FALSE(passes.none());
  EXPECT_TRUE(LaunchedPasses::HaveRun(passes.seen(), false, order).value());
  EXPECT_THAT(order.waits_, ElementsAre("mark"));
  EXPECT_TRUE(passes.Forget(passes.seen(), 0));
  EXPECT_TRUE(passes.none());
}

// Its stream may be under capture by then.
TEST(LaunchedPasses, NoOtherThreadWaitsForTheStreamOfAnIncompleteOne) {
  LaunchedPasses passes;
  Waits order;
  passes.Begin(kMe, Stream(1));
  passes.Note(Stream(1));
  EXPECT_FALSE(LaunchedPasses::HaveRun(passes.seen(), false, order).value());
  EXPECT_THAT(order.waits_, IsEmpty());
  EXPECT_TRUE(LaunchedPasses::HaveRun(passes.seen(), true, order).value());
  EXPECT_THAT(order.waits_, ElementsAre("stream"));
}

TEST(LaunchedPasses, ACaptureThatBeganInOneLeavesItIncomplete) {
  LaunchedPasses passes;
  Waits order;
  passes.Begin(kMe, Stream(1));
  passes.Note(Stream(1));
  order.captures_ = true;
  passes.End(kMe, order);
  EXPECT_FALSE(LaunchedPasses::HaveRun(passes.seen(), false, order).value());
}

TEST(LaunchedPasses, ALaterPassOnTheStreamNeedsAnEndOfItsOwn) {
  LaunchedPasses passes;
  Waits order;
  passes.Begin(kMe, Stream(1));
  passes.Note(Stream(1));
  passes.End(kMe, order);
  const LaunchedPasses::Seen before = passes.seen();
  passes.Begin(kMe, Stream(1));
  passes.Note(Stream(1));
  EXPECT_FALSE(passes.Forget(before, kMe));
  EXPECT_FALSE(LaunchedPasses::HaveRun(passes.seen(), false, order).value());
}

}  // namespace hoist::launched_passes_test
