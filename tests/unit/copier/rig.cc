#include "tests/unit/copier/rig.h"

#include <utility>

#include "absl/synchronization/notification.h"

namespace hoistd::testing {

absl::StatusOr<CopierShare> CopierRig::TryOpen(CopierId id,
                                               const ShareOptions& share) {
  absl::Notification opened;
  absl::StatusOr<CopierShare> got;
  desk_->Open({.id = id, .session = SessionId(7), .share = share},
              [&](absl::StatusOr<CopierShare> answer) {
                got = std::move(answer);
                opened.Notify();
              });
  opened.WaitForNotification();
  return got;
}

void CopierRig::CloseAndWait(CopierId id) {
  desk_->Close(id);
  link_.Settle();
}

CopierStats CopierRig::Stats(CopierId id) const {
  for (const CopierStats& stats : desk_->Stats()) {
    if (stats.id == id) return stats;
  }
  return {};
}

EagerWorker::EagerWorker(CopierClient client) : client_(std::move(client)) {
  thread_ = std::thread([this] {
    // More than it will ever be granted is asked for.
    client_.Ask(hoist::copier::kMostAsked);
    uint32_t done = 0;
    while (!stop_) {
      const uint32_t granted = client_.granted();
      if (granted == done) {
        std::this_thread::yield();
        continue;
      }
      client_.Ask(granted - done);
      client_.Done(granted - done);
      done = granted;
    }
  });
}

EagerWorker::~EagerWorker() {
  stop_ = true;
  thread_.join();
}

}  // namespace hoistd::testing
