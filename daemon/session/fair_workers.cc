#include "daemon/session/fair_workers.h"

#include <utility>

#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"

namespace hoistd {

absl::Status FairWorkers::Start(int threads) {
  for (int i = 0; i < threads; ++i) {
    HOIST_ASSIGN_OR_RETURN(threads_.emplace_back(),
                           StartThread([this] { Run(); }));
  }
  return absl::OkStatus();
}

FairWorkers::~FairWorkers() { Stop(); }

void FairWorkers::Post(User uid, Work work) {
  absl::MutexLock lock(&mu_);
  if (stopping_) return;
  Line& line = lines_[uid];
  line.waiting.push_back(std::move(work));
  if (!line.running && line.waiting.size() == 1) turns_.push_back(uid);
}

void FairWorkers::Stop() {
  std::vector<std::deque<Work>> dropped;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    turns_.clear();
    for (auto& [uid, line] : lines_) {
      dropped.push_back(std::exchange(line.waiting, {}));
    }
  }
  dropped.clear();  // Outside the lock: destructors of work may post.
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void FairWorkers::Run() {
  while (true) {
    Work work;
    User uid;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &FairWorkers::Ready));
      if (stopping_) return;
      uid = turns_.front();
      turns_.pop_front();
      Line& line = lines_.at(uid);
      line.running = true;
      work = std::move(line.waiting.front());
      line.waiting.pop_front();
    }
    work();
    work =
        nullptr;  // Destroys its captures before this user's next work begins.
    absl::MutexLock lock(&mu_);
    const auto line = lines_.find(uid);
    line->second.running = false;
    if (line->second.waiting.empty()) {
      lines_.erase(line);
    } else {
      turns_.push_back(uid);
    }
  }
}

}  // namespace hoistd
