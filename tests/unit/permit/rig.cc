#include "tests/unit/permit/rig.h"

#include <utility>

#include "absl/synchronization/notification.h"

namespace hoistd::testing {

absl::StatusOr<PermitShare> PermitRig::TryOpen(PermitId id,
                                               const ShareOptions& share) {
  absl::Notification opened;
  absl::StatusOr<PermitShare> got;
  desk_->Open({.id = id, .session = SessionId(7), .share = share},
              [&](absl::StatusOr<PermitShare> answer) {
                got = std::move(answer);
                opened.Notify();
              });
  opened.WaitForNotification();
  return got;
}

void PermitRig::CloseAndWait(PermitId id) {
  desk_->Close(id);
  link_.Settle();
}

PermitStats PermitRig::Stats(PermitId id) const {
  for (const PermitStats& stats : desk_->Stats()) {
    if (stats.id == id) return stats;
  }
  return {};
}

EagerWorker::EagerWorker(PermitClient client) : client_(std::move(client)) {
  // More than it will ever be granted; before the thread, which may start late.
  client_.Ask(hoist::permit::kMostAsked);
  thread_ = std::thread([this] {
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
