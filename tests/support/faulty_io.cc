#include "tests/support/faulty_io.h"

#include <algorithm>

#include "daemon/base/check.h"

namespace hoistd::testing {
namespace {

IoEngine::Done Answer(IoEngine::Done done, absl::Status status) {
  return
      [done = std::move(done), status](absl::Status) mutable { done(status); };
}

}  // namespace

void FaultyIo::FailCall(uint64_t n, absl::Status status, Damage damage) {
  absl::MutexLock lock(&mu_);
  fail_at_ = n;
  fault_ = {.fails = true, .status = std::move(status), .damage = damage};
}

uint64_t FaultyIo::calls() const {
  absl::MutexLock lock(&mu_);
  return calls_;
}

FaultyIo::Fault FaultyIo::NextCall() {
  absl::MutexLock lock(&mu_);
  return ++calls_ == fail_at_ ? fault_ : Fault();
}

void FaultyIo::Read(ReadRequest request, Done done) {
  const Fault fault = NextCall();
  if (!fault.fails) return base_.Read(std::move(request), std::move(done));
  if (fault.damage == Damage::kNothing) request.into.clear();
  if (fault.damage == Damage::kHalf) {
    request.into.resize((request.into.size() + 1) / 2);
    if (!request.into.empty()) request.into.back().bytes /= 2;
  }
  base_.Read(std::move(request), Answer(std::move(done), fault.status));
}

void FaultyIo::Write(WriteRequest request, Done done) {
  const Fault fault = NextCall();
  if (!fault.fails) return base_.Write(std::move(request), std::move(done));
  if (fault.damage != Damage::kEverything) {
    const size_t half = request.from.size() / 2 / 4096 * 4096;
    request.from = request.from.first(fault.damage == Damage::kHalf ? half : 0);
    request.sync = false;
  }
  base_.Write(std::move(request), Answer(std::move(done), fault.status));
}

HeldIo::~HeldIo() {
  Open();
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(
      +[](uint64_t* under_way) { return *under_way == 0; }, &under_way_));
}

void HeldIo::WaitHeld(uint64_t count) const {
  absl::MutexLock lock(&mu_);
  auto enough = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return held_.size() >= count;
  };
  mu_.Await(absl::Condition(&enough));
}

void HeldIo::Release(uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    std::pair<Done, absl::Status> next;
    {
      absl::MutexLock lock(&mu_);
      HOIST_CHECK(!held_.empty());
      next = std::move(held_.front());
      held_.pop_front();
    }
    next.first(next.second);
  }
}

void HeldIo::Open() {
  uint64_t held = 0;
  {
    absl::MutexLock lock(&mu_);
    open_ = true;
    held = held_.size();
  }
  Release(held);
}

IoEngine::Done HeldIo::Hold(Done done) {
  {
    absl::MutexLock lock(&mu_);
    ++under_way_;
  }
  return [this, done = std::move(done)](absl::Status status) mutable {
    bool open = false;
    {
      absl::MutexLock lock(&mu_);
      open = open_;
      if (!open) held_.emplace_back(std::move(done), status);
      if (!open) --under_way_;
    }
    if (!open) return;
    done(status);
    absl::MutexLock lock(&mu_);
    --under_way_;
  };
}

void HeldIo::Read(ReadRequest request, Done done) {
  base_.Read(std::move(request), Hold(std::move(done)));
}

void HeldIo::Write(WriteRequest request, Done done) {
  base_.Write(std::move(request), Hold(std::move(done)));
}

}  // namespace hoistd::testing
