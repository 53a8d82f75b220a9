#include "daemon/permit/permit_desk.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"

namespace hoistd {

PermitDesk::PermitDesk(Link& link, Threads* threads)
    : link_(link), threads_(threads) {}

PermitDesk::~PermitDesk() {
  absl::Notification gone;
  link_.Post([this, &gone] {
    // The last holder's end notifies.
    const std::shared_ptr<void> all(nullptr, [&gone](void*) { gone.Notify(); });
    std::vector<PermitId> open;
    {
      const absl::MutexLock lock(&mu_);
      for (auto& [id, entry] : permits_) {
        entry.waits = all;
        if (!entry.closing) open.push_back(id);
      }
    }
    for (const PermitId id : open) CloseNow(id);
  });
  ThreadsOr(threads_).Await(gone);
}

void PermitDesk::Open(
    const PermitSpec& spec,
    absl::AnyInvocable<void(absl::StatusOr<PermitShare>)> done) {
  link_.Post([this, spec, done = std::move(done)]() mutable {
    std::move(done)(OpenNow(spec));
  });
}

void PermitDesk::Close(PermitId permit) {
  link_.Post([this, permit] { CloseNow(permit); });
}

void PermitDesk::SetShare(PermitId permit, const ShareOptions& share) {
  link_.Post([this, permit, share] {
    const absl::MutexLock lock(&mu_);
    const auto it = permits_.find(permit);
    if (it == permits_.end() || it->second.closing) return;
    link_.SetShare(LinkParty::Of(permit), share);
    it->second.share = share;
  });
}

absl::StatusOr<PermitShare> PermitDesk::OpenNow(const PermitSpec& spec) {
  HOIST_RETURN_IF_ERROR(link_.broken());
  const bool emulated = link_.device().info().kind == DeviceKind::kEmulated;
  HOIST_ASSIGN_OR_RETURN(PermitMemory::Made made,
                         PermitMemory::Create(/*sleepers=*/emulated));
  HOIST_RETURN_IF_ERROR(link_.Watch(made.memory.wake_fd()));
  auto permit = std::make_unique<CopyPermit>(
      spec, std::move(made.memory),
      CopyPermit::Parts{.device = link_.device().info().index,
                        .trace = link_.trace(),
                        .cpu_workers = emulated});
  link_.AddGrants(LinkParty::Of(spec.id), spec.share, *permit);
  const absl::MutexLock lock(&mu_);
  HOIST_CHECK(
      permits_.emplace(spec.id, Entry{std::move(permit), spec.share}).second);
  return std::move(made.share);
}

void PermitDesk::CloseNow(PermitId id) {
  CopyPermit* permit = nullptr;
  {
    const absl::MutexLock lock(&mu_);
    const auto it = permits_.find(id);
    if (it == permits_.end() || it->second.closing) return;
    it->second.closing = true;
    permit = it->second.permit.get();
  }
  // Reads the final counts before its waits are let through, when they become
  // meaningless.
  permit->Look(link_.clock().Now());
  link_.Remove(LinkParty::Of(id), [this, id] { Gone(id); });
  permit->Close();
}

void PermitDesk::Gone(PermitId id) {
  Entry entry;  // Ends after the lock: its waiter may free this.
  const absl::MutexLock lock(&mu_);
  entry = std::move(permits_.extract(id).mapped());
  link_.Unwatch(entry.permit->wake_fd());
  gone_.copied_bytes += entry.permit->copied_bytes();
  gone_.read_bytes += entry.permit->read_bytes();
}

std::vector<PermitStats> PermitDesk::Stats() const {
  const absl::MutexLock lock(&mu_);
  std::vector<PermitStats> all;
  for (const auto& [id, entry] : permits_) {
    const CopyPermit& permit = *entry.permit;
    all.push_back({.id = id,
                   .session = permit.spec().session,
                   .share = entry.share,
                   .copied_bytes = permit.copied_bytes(),
                   .read_bytes = permit.read_bytes(),
                   .grants = permit.grants(),
                   .late = permit.late()});
  }
  return all;
}

PermitDesk::Totals PermitDesk::AllTotals() const {
  const absl::MutexLock lock(&mu_);
  Totals totals = gone_;
  for (const auto& [id, entry] : permits_) {
    totals.copied_bytes += entry.permit->copied_bytes();
    totals.read_bytes += entry.permit->read_bytes();
  }
  return totals;
}

}  // namespace hoistd
