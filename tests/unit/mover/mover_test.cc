#include "daemon/mover/mover.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/model/published_group.h"
#include "daemon/mover/content_hash.h"
#include "daemon/mover/image_copy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pattern.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/mover/sealed_memfd.h"

namespace hoistd::mover_test {

using testing::IsOk;
using testing::SealedMemfd;
using testing::StatusIs;

// Three pieces, the last of one page.
constexpr size_t kBytes = 2 * ImageCopy::kPieceBytes + 4096;

// All executors' tasks, which run when the test says so.
class HeldThreads final : public Threads {
 public:
  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(int) override {
    return std::make_unique<Held>(tasks_);
  }
  absl::StatusOr<std::unique_ptr<Running>> Start(Loop&) override {
    HOIST_CHECK(false);
  }
  void Await(const absl::Notification&) override { HOIST_CHECK(false); }

  size_t waiting() const { return tasks_.size(); }
  // The newest first: threads take tasks in order, and end them in any.
  void Run() {
    while (!tasks_.empty()) {
      Executor::Task task = std::move(tasks_.back());
      tasks_.pop_back();
      task();
    }
  }

 private:
  struct Held final : public Executor {
    explicit Held(std::deque<Task>& all) : tasks(all) {}
    void Post(Task task) override { tasks.push_back(std::move(task)); }
    std::deque<Task>& tasks;
  };

  std::deque<Executor::Task> tasks_;
};

struct Reported {
  absl::Status status;
  TransferResult result;
};

class MoverReceives : public ::testing::Test {
 protected:
  MoverReceives() {
    group_->name = "g";
    group_->image_bytes = kBytes;
    group_->tensors = {{"t", hoist::DType::kU8, {kBytes}, {}, 0, kBytes}};
    parts_.host = host_;
    parts_.threads = &threads_;
    mover_.emplace(parts_, [this](TransferId, absl::Status status,
                                  const TransferResult& result) {
      reported_.push_back({std::move(status), result});
    });
    EXPECT_OK(mover_->StartThreads());
  }

  void Receive(int seals) {
    Transfer transfer;
    transfer.id = TransferId(1);
    transfer.group = group_;
    transfer.way = ClientToHost{
        std::make_shared<hoist::UniqueFd>(SealedMemfd(image_, seals)), 4096};
    mover_->Start(std::move(transfer));
  }

  const std::vector<std::byte> image_ = testing::Pattern(kBytes, 7);
  const std::shared_ptr<Group> group_ = std::make_shared<Group>();
  std::vector<std::byte> host_ = std::vector<std::byte>(2 * kBytes);
  HeldThreads threads_;
  MoverParts parts_;
  std::optional<Mover> mover_;
  std::vector<Reported> reported_;
};

TEST_F(MoverReceives, AnImageOnAsManyThreadsAsItHasPieces) {
  Receive(F_SEAL_WRITE | F_SEAL_SHRINK);
  EXPECT_EQ(threads_.waiting(), 3u);
  threads_.Run();
  ASSERT_EQ(reported_.size(), 1u);
  ASSERT_THAT(reported_[0].status, IsOk());
  EXPECT_TRUE(
      std::ranges::equal(std::span(host_).subspan(4096, kBytes), image_));
  std::optional<Content> content;
  ContentHash(group_, image_, [&](const Content& c) {
    content = c;
  }).Help(/*last=*/true);
  EXPECT_EQ(reported_[0].result.content, content);
}

TEST_F(MoverReceives, NothingThatCouldStillChange) {
  Receive(F_SEAL_SHRINK);
  threads_.Run();
  ASSERT_EQ(reported_.size(), 1u);
  EXPECT_THAT(reported_[0].status,
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(host_ == std::vector<std::byte>(2 * kBytes));
}

}  // namespace hoistd::mover_test
