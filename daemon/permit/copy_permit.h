// A worker's copy permit: the bytes it has asked for, and its grants.
#ifndef HOIST_DAEMON_PERMIT_COPY_PERMIT_H_
#define HOIST_DAEMON_PERMIT_COPY_PERMIT_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/link/link_customer.h"
#include "daemon/permit/permit_memory.h"
#include "daemon/plan/link_share.h"
#include "daemon/trace/recorder.h"
#include "daemon/types/ids.h"

namespace hoistd {

struct PermitSpec {
  PermitId id;
  SessionId session;
  ShareOptions share;
};

// A permit's statistics so far, as its worker reports them.
struct PermitStats {
  PermitId id;
  SessionId session;
  ShareOptions share;
  uint64_t copied_bytes = 0;  // Host to device: granted, and done.
  uint64_t read_bytes = 0;    // Device to host.
  uint64_t grants = 0;
  uint64_t late = 0;  // Of those, that were not done in their time.
};

// Threads:  the link's alone, except copied_bytes() and the other counts.
// Owns:     the page. Borrows `trace`, which may be nullptr.
// Bounds:   a look costs the grants in flight, whose number the link bounds,
//           whatever the client writes.
class CopyPermit final : public GrantCustomer {
 public:
  // After a late grant, the next one waits until that one is done, or for this
  // long. So a worker that holds more than it ends goes on slowly, and none
  // hangs.
  static constexpr absl::Duration kLateAgain = absl::Milliseconds(100);

  struct Parts {
    DeviceIndex device;
    TraceRecorder* trace = nullptr;
    bool cpu_workers = false;  // Emulated: only CPUs change words, and say so.
  };
  CopyPermit(const PermitSpec& spec, PermitMemory memory, const Parts& parts)
      : spec_(spec), memory_(std::move(memory)), parts_(parts) {}
  CopyPermit(const CopyPermit&) = delete;
  CopyPermit& operator=(const CopyPermit&) = delete;

  // Lets all waits through; grants nothing more.
  void Close();

  // Reads the client's words.
  bool Look(absl::Time now) override;
  bool HasPiece() override { return !closed_ && may_go_ && wanted_ > 0; }
  LinkPiece TakePiece(uint64_t at_most) override;
  void Refused(const absl::Status&) override {}
  void Ended(const absl::Status& status, absl::Time now) override;
  void Fail(absl::Status why) override;
  uint64_t done() const override { return done_; }
  bool quiet(bool held_back) const override;
  absl::Time deadline() const override;
  TraceWhy why_idle() const override { return TraceWhy::kNotDue; }
  void SetSleeping(bool sleeping) override {
    memory_.page().sleeping.store(sleeping ? 1 : 0);
  }

  // Thread-safe.
  uint64_t copied_bytes() const { return done_; }
  uint64_t grants() const { return grants_; }
  uint64_t late() const { return late_; }
  // Never decreases, whatever the client writes.
  uint64_t read_bytes() const;

  const PermitSpec& spec() const { return spec_; }
  int wake_fd() const { return memory_.wake_fd(); }

 private:
  struct Given {
    uint64_t end = 0;  // Of all bytes that were granted.
    uint64_t bytes = 0;
    absl::Time at;
  };

  void TraceRead(absl::Time now);
  void Tell(TraceEvent event) const;

  const PermitSpec spec_;
  const PermitMemory memory_;
  const Parts parts_;
  bool closed_ = false;
  uint64_t granted_ = 0;
  std::atomic<uint64_t> done_ = 0;
  uint32_t wanted_ = 0;      // Asked for and not granted.
  std::deque<Given> given_;  // Under way, as the link has them.
  uint64_t late_until_ = 0;  // No grant before so much is done,
  absl::Time late_at_ = absl::InfiniteFuture();  // or this is past.
  bool may_go_ = true;
  std::atomic<uint64_t> grants_ = 0;
  std::atomic<uint64_t> late_ = 0;
  mutable std::atomic<uint64_t> read_ = 0;
  absl::Time looked_ = absl::InfinitePast();
  uint64_t traced_read_ = 0;  // Bytes that recordings know of.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_PERMIT_COPY_PERMIT_H_
