#include "daemon/copier/copier_desk.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"

namespace hoistd {

CopierDesk::CopierDesk(Link& link, Threads* threads)
    : link_(link), threads_(threads) {}

CopierDesk::~CopierDesk() {
  absl::Notification gone;
  link_.Post([this, &gone] {
    // The last of those who hold it to go tells.
    const std::shared_ptr<void> all(nullptr, [&gone](void*) { gone.Notify(); });
    std::vector<CopierId> open;
    {
      const absl::MutexLock lock(&mu_);
      for (auto& [id, entry] : copiers_) {
        entry.waits = all;
        if (!entry.closing) open.push_back(id);
      }
    }
    for (const CopierId id : open) CloseNow(id);
  });
  ThreadsOr(threads_).Await(gone);
}

void CopierDesk::Open(
    const CopierSpec& spec,
    absl::AnyInvocable<void(absl::StatusOr<CopierShare>)> done) {
  link_.Post([this, spec, done = std::move(done)]() mutable {
    std::move(done)(OpenNow(spec));
  });
}

void CopierDesk::Close(CopierId copier) {
  link_.Post([this, copier] { CloseNow(copier); });
}

void CopierDesk::SetShare(CopierId copier, const ShareOptions& share) {
  link_.Post([this, copier, share] {
    const absl::MutexLock lock(&mu_);
    const auto it = copiers_.find(copier);
    if (it == copiers_.end() || it->second.closing) return;
    link_.SetShare(LinkParty::Of(copier), share);
    it->second.share = share;
  });
}

absl::StatusOr<CopierShare> CopierDesk::OpenNow(const CopierSpec& spec) {
  HOIST_RETURN_IF_ERROR(link_.broken());
  const bool emulated = link_.device().info().kind == DeviceKind::kEmulated;
  HOIST_ASSIGN_OR_RETURN(CopierMemory::Made made,
                         CopierMemory::Create(/*sleepers=*/emulated));
  HOIST_RETURN_IF_ERROR(link_.Watch(made.memory.wake_fd()));
  auto copier = std::make_unique<Copier>(
      spec, std::move(made.memory),
      Copier::Parts{.device = link_.device().info().index,
                    .trace = link_.trace(),
                    .cpu_workers = emulated});
  link_.AddGrants(LinkParty::Of(spec.id), spec.share, *copier);
  const absl::MutexLock lock(&mu_);
  HOIST_CHECK(
      copiers_.emplace(spec.id, Entry{std::move(copier), spec.share}).second);
  return std::move(made.share);
}

void CopierDesk::CloseNow(CopierId id) {
  Copier* copier = nullptr;
  {
    const absl::MutexLock lock(&mu_);
    const auto it = copiers_.find(id);
    if (it == copiers_.end() || it->second.closing) return;
    it->second.closing = true;
    copier = it->second.copier.get();
  }
  // Its last word, before its waits are let through and say no more.
  copier->Look(link_.clock().Now());
  link_.Remove(LinkParty::Of(id), [this, id] { Gone(id); });
  copier->Close();
}

void CopierDesk::Gone(CopierId id) {
  Entry entry;  // Goes behind the lock: who waits for it may free this.
  const absl::MutexLock lock(&mu_);
  entry = std::move(copiers_.extract(id).mapped());
  link_.Unwatch(entry.copier->wake_fd());
  gone_.copied_bytes += entry.copier->copied_bytes();
  gone_.read_bytes += entry.copier->read_bytes();
}

std::vector<CopierStats> CopierDesk::Stats() const {
  const absl::MutexLock lock(&mu_);
  std::vector<CopierStats> all;
  for (const auto& [id, entry] : copiers_) {
    const Copier& copier = *entry.copier;
    all.push_back({.id = id,
                   .session = copier.spec().session,
                   .share = entry.share,
                   .copied_bytes = copier.copied_bytes(),
                   .read_bytes = copier.read_bytes(),
                   .grants = copier.grants(),
                   .late = copier.late()});
  }
  return all;
}

CopierDesk::Totals CopierDesk::AllTotals() const {
  const absl::MutexLock lock(&mu_);
  Totals totals = gone_;
  for (const auto& [id, entry] : copiers_) {
    totals.copied_bytes += entry.copier->copied_bytes();
    totals.read_bytes += entry.copier->read_bytes();
  }
  return totals;
}

}  // namespace hoistd
