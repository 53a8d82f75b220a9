#include "client/src/permit/permit_life.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "client/src/base/patience.h"
#include "client/src/base/start_thread.h"

namespace hoist {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kBetweenReleases{1};
// After this long without a grant, a ping checks that hoistd is alive.
constexpr milliseconds kBetweenLooks{1'000};

}  // namespace

PermitLife::~PermitLife() {
  if (thread_.joinable()) Close();
}

Result<std::shared_ptr<PermitPage>> PermitLife::NewPage() {
  Result<PermitGrant> grant = session_->OpenPermit(options_, &stopping_);
  if (!grant.ok()) return grant.status();
  const uint64_t id = grant->id;
  Result<std::unique_ptr<PermitPage>> page =
      PermitPage::Map(std::move(grant).value(), order_);
  if (!page.ok()) {
    session_->ClosePermit(id);
    return page.status();
  }
  return std::shared_ptr<PermitPage>(std::move(page).value());
}

Status PermitLife::Open() {
  if (Status s = session_->AddListener(this); !s.ok()) {
    session_->RemoveListener(this);
    return s;
  }
  Result<std::shared_ptr<PermitPage>> page = NewPage();
  if (!page.ok()) {
    session_->RemoveListener(this);
    return page.status();
  }
  {
    const MutexLock lock(mu_);
    page_ = std::move(page).value();
    open_id_ = page_->id();
    if (ended_ || reopen_) Retire();  // Meanwhile.
  }
  Status started = StartThread(&thread_, [this] { Run(); });
  if (!started.ok()) {
    session_->RemoveListener(this);
    GiveBack();
  }
  return started;
}

void PermitLife::Close() {
  session_->RemoveListener(this);
  End();
  // Meanwhile the thread lets pending waits through.
  GiveBack();
  // A failed GPU writes to no page.
  if (used()) (void)order_->SynchronizeAll();
  stopping_ = true;
  Notify();
  session_->WakeCalls();
  thread_.join();
  GiveBack();  // The thread may have opened another permit.
}

void PermitLife::GiveBack() {
  uint64_t id = 0;
  {
    const MutexLock lock(mu_);
    id = std::exchange(open_id_, 0);
  }
  if (id != 0) session_->ClosePermit(id);
}

std::shared_ptr<PermitPage> PermitLife::page() const {
  const MutexLock lock(mu_);
  return page_;
}

bool PermitLife::used() const {
  const MutexLock lock(mu_);
  return !std::ranges::all_of(retired_,
                              [](const auto& page) { return page->idle(); });
}

void PermitLife::End() {
  const MutexLock lock(mu_);
  ended_ = true;
  if (page_ != nullptr) Retire();
  changed_.NotifyAll();
}

void PermitLife::SessionResumed() {
  const MutexLock lock(mu_);
  if (page_ != nullptr) Retire();
  open_id_ = 0;  // It ended with its hoistd.
  reopen_ = true;
  changed_.NotifyAll();
}

void PermitLife::Retire() {
  page_->Release();
  retired_.push_back(std::exchange(page_, nullptr));
}

bool PermitLife::LetThrough() {
  std::erase_if(retired_, [](const std::shared_ptr<PermitPage>& page) {
    return page->idle() && page.use_count() == 1;
  });
  for (const std::shared_ptr<PermitPage>& page : retired_) page->Release();
  return !retired_.empty();
}

void PermitLife::Reopen() {
  const uint64_t silent = std::exchange(open_id_, 0);
  std::shared_ptr<PermitPage> page;
  {
    const MutexUnlock unlock(mu_);
    if (silent != 0) session_->ClosePermit(silent);
    Result<std::shared_ptr<PermitPage>> made = NewPage();
    if (made.ok()) page = std::move(made).value();
  }
  if (page == nullptr) return;
  open_id_ = page->id();
  // hoistd may have been replaced meanwhile, and the page may be either one's:
  // `reopen_` is set then, and another page is opened.
  if (!ended_ && !reopen_) page_ = std::move(page);
}

// A stopped hoistd grants nothing, and copies nothing either: a copy without a
// grant takes no other party's turn.
void PermitLife::LookForSilence() {
  // From here on, work put on a stream restarts the watch.
  watching_ = false;
  if (page_ == nullptr || page_->idle()) return;
  watching_ = true;
  const uint32_t granted = page_->granted();
  const bool moved = granted != std::exchange(last_granted_, granted);
  if (moved || !page_->waits()) return;
  const PermitPage* const asked = page_.get();
  Status heard;
  {
    const MutexUnlock unlock(mu_);
    heard = session_->Ping(kGiveBackPatience, &stopping_);
  }
  if (heard.code() != Code::kDeadlineExceeded || page_.get() != asked) return;
  Retire();
  reopen_ = true;
}

void PermitLife::Run() {
  pthread_setname_np(pthread_self(), "hoist-permit");
  const MutexLock lock(mu_);
  while (!stopping_) {
    if (LetThrough()) {
      changed_.WaitUntil(mu_, steady_clock::now() + kBetweenReleases);
    } else if (reopen_ && !ended_) {
      reopen_ = false;
      Reopen();
    } else if (watching_) {
      if (!changed_.WaitUntil(mu_, steady_clock::now() + kBetweenLooks)) {
        LookForSilence();
      }
    } else {
      changed_.Wait(mu_);
    }
  }
}

}  // namespace hoist
