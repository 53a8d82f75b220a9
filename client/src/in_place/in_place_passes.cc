// In-place tensors: when pieces are remapped.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "client/src/in_place/in_place.h"

namespace hoist {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kAdvanceLimit{60'000};

Result<bool> InPlace::PassesHaveRun(pid_t but) {
  LaunchedPasses::Seen seen;
  {
    const MutexLock lock(mu_);
    seen = passes_.seen();
  }
  Result<bool> run = LaunchedPasses::HaveRun(seen, but != 0, *order_);
  if (!run.ok() || !*run) return run;
  const MutexLock lock(mu_);
  return passes_.Forget(seen, but);
}

Status InPlace::BeginPass(cuda::Stream stream) {
  Result<bool> capturing = order_->IsCapturing(stream);
  if (!capturing.ok()) return capturing.status();
  const pid_t me = gettid();
  {
    const MutexLock lock(mu_);
    const bool alone = !passes_.AnyLaunches(me);
    passes_.Begin(me, stream);
    awaited_ = stats_.touched_cold_bytes;
    if (!*capturing && (!alone || book_.CountToPlace() == 0 || !broken_.ok())) {
      passes_.Note(stream);
      return Status();
    }
  }
  if (*capturing) {
    captured_ = true;
    return boundary_->Put(stream);
  }
  Result<bool> run = PassesHaveRun(me);
  if (!run.ok()) return run.status();
  const MutexLock lock(mu_);
  // Another thread may have launched a whole pass since.
  if (*run && passes_.none() && !passes_.AnyLaunches(me)) {
    PlaceBeforePass();
    CountPending();
    changed_.NotifyAll();
  }
  passes_.Note(stream);
  return Status();
}

void InPlace::EndPass() {
  if (emulated_link_ != 0) AwaitReads();
  const pid_t me = gettid();
  const MutexLock lock(mu_);
  passes_.End(me, *order_);
}

// The emulated reads have taken the time of host memory; this sleeps for the
// rest of the link's time.
void InPlace::AwaitReads() {
  TakeCounts();
  steady_clock::time_point until;
  {
    const MutexLock lock(mu_);
    const double bytes = stats_.touched_cold_bytes -
                         std::exchange(awaited_, stats_.touched_cold_bytes);
    const std::chrono::duration<double> takes(
        bytes / static_cast<double>(emulated_link_));
    read_ = std::max(read_, steady_clock::now()) +
            std::chrono::duration_cast<steady_clock::duration>(takes);
    until = read_;
  }
  std::this_thread::sleep_until(until);
}

void InPlace::CountPending() {
  pending_.store(static_cast<uint32_t>(book_.CountToPlace()));
}

void InPlace::PlaceSome(microseconds limit) {
  const auto end = steady_clock::now() + limit;
  bool in_time = true;
  for (size_t i = 0; i < pieces_.size() && in_time; ++i) {
    if (!book_.MayPlace(i)) continue;
    const Piece& piece = pieces_[i];
    Status placed = ranges_[piece.tensor]->Place(
        piece.offset, book_.IsHot(i) ? piece.cold : piece.hot);
    if (!placed.ok()) {
      broken_ = std::move(placed);
      break;
    }
    book_.Placed(i);
    ++stats_.moves;
    in_time = steady_clock::now() < end;
  }
  ShowCold();
}

Status InPlace::SetBudget(uint64_t hot_budget_bytes) {
  const pid_t me = gettid();
  {
    const MutexLock lock(mu_);
    room_.SetBudget(hot_budget_bytes);
    touched_ = true;
    changed_.NotifyAll();
    if (!ScratchIsDue()) return broken_;
  }
  Result<bool> run = PassesHaveRun(me);
  if (!run.ok()) return run.status();
  const MutexLock lock(mu_);
  if (*run && passes_.none() && !passes_.AnyLaunches(me)) FitScratch();
  return broken_;
}

// A captured graph may be using it.
bool InPlace::ScratchIsDue() const {
  return !captured_ &&
         (ScratchBytes(tensors_) <= room_.budget()) != scratch_->is_laid();
}

void InPlace::FitScratch() {
  if (!ScratchIsDue()) return;
  // Without memory for it now, nothing is copied there.
  if (scratch_->is_laid() || !scratch_->Lay().ok()) scratch_->Drop();
  ShowCold();
}

void InPlace::PlaceBeforePass() {
  // Delays one pass by a few pieces' time at most, and all passes by about a
  // fifth of the time.
  constexpr microseconds kLeast{1'000}, kMost{20'000};
  const auto since =
      std::chrono::duration_cast<microseconds>(steady_clock::now() - placed_);
  PlaceSome(std::clamp(since / 4, kLeast, kMost));
  placed_ = steady_clock::now();
}

bool InPlace::PlaceAtBoundary() {
  constexpr milliseconds kPatience{100};
  {
    const MutexLock lock(mu_);
    if (passes_.AnyLaunches(0) || book_.CountToPlace() == 0 || !broken_.ok())
      return false;
  }
  // The streams of launched passes are not ordered with the stream to be
  // parked.
  if (Result<bool> run = PassesHaveRun(0); !run.ok() || !*run) return false;
  if (!boundary_->Hold(kPatience, stopping_)) return false;
  {
    const MutexLock lock(mu_);
    // The driver resolves addresses when kernels are launched.
    if (passes_.none() && !passes_.AnyLaunches(0)) PlaceBeforePass();
    changed_.NotifyAll();
  }
  boundary_->Release();
  return true;
}

Status InPlace::Advance(bool wait) {
  const auto end = steady_clock::now() + kAdvanceLimit;
  const pid_t me = gettid();
  uint64_t round = 0;
  {
    const MutexLock lock(mu_);
    // The next round to begin reads all counts that exist now.
    round = rounds_ + 2;
  }
  const auto settled = [&]() HOIST_REQUIRES(mu_) {
    if (touched_ || rounds_ < round) return false;
    const uint64_t room = Room();
    const uint64_t taken = book_.device_bytes();
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (book_.StateOf(i) == PieceState::kHot) continue;
      if (book_.StateOf(i) != PieceState::kCold) return false;
      if (book_.wanted(i) && pieces_[i].bytes <= room - std::min(room, taken)) {
        return false;
      }
    }
    return true;
  };
  while (true) {
    Result<bool> run = PassesHaveRun(me);
    if (!run.ok()) return run.status();
    const MutexLock lock(mu_);
    // Checked although the caller must not read: another thread may launch a
    // pass.
    if (*run && passes_.none() && !passes_.AnyLaunches(me)) {
      FitScratch();
      while (book_.CountToPlace() > 0 && broken_.ok()) {
        PlaceSome(std::chrono::hours(1));
      }
    }
    CountPending();
    changed_.NotifyAll();
    if (!broken_.ok() || !wait || settled()) return broken_;
    if (Status s = session_->Check(); !s.ok()) return s;
    if (steady_clock::now() >= end) {
      return Status(Code::kDeadlineExceeded,
                    "pieces are still being copied to the device");
    }
    changed_.WaitUntil(mu_, steady_clock::now() + milliseconds(10));
  }
}

}  // namespace hoist
