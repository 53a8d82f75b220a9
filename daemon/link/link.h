// A device's link: the sole owner of copies from the host to it, and of reads
// back.
//
// Its users are customers: each plan's lane (daemon/stream), whole images with
// or without waiters, reads back, and workers whose own copies are granted
// bytes (daemon/permit). Copies are queued in pieces, two deep, in LinkShare's
// order. So the link is never idle while a customer has copies, and no customer
// waits long behind another's large image.
#ifndef HOIST_DAEMON_LINK_LINK_H_
#define HOIST_DAEMON_LINK_LINK_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/base/threads.h"
#include "daemon/link/copy_queue.h"
#include "daemon/link/copy_trace.h"
#include "daemon/link/gap_trace.h"
#include "daemon/link/image_queue.h"
#include "daemon/link/link_customer.h"
#include "daemon/link/link_meter.h"
#include "daemon/link/read_queue.h"
#include "daemon/plan/link_share.h"
#include "daemon/trace/recorder.h"
#include "daemon/types/device.h"
#include "daemon/types/ids.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct LinkOptions {
  // Cap on all loads and prefetches without waiters together; 0: no cap. The
  // initial value; later, SetLoadRate.
  uint64_t load_bytes_per_second = 0;
  Threads* threads = nullptr;  // nullptr: the system's.
  // Called on the link's thread with each part of host memory just before its
  // piece is queued; may block until the part can be copied at full speed.
  std::function<void(std::span<const std::byte>)> before_copy;
  TraceRecorder* trace = nullptr;  // nullptr: no recording.
};

// LinkShare divides the link between plans, permits and copies with waiters.
// The background uses what they leave. Its next piece starts only after they
// left the link idle for as long as that piece and the background's pieces in
// flight will take. So a plan with shorter gaps between copies is not delayed
// at all, and others by less than the gap: a ring of two slots loses nothing.
// Beyond that the background has LinkShare's least part, in pieces of
// kSmallPieceBytes. Zero-copy reads of kernels are in no queue and leave no
// visible gaps; workers report them. The background takes the rest of the
// link's time, but at least kLeastBesideReads of it.
//
// A grant is a piece that a worker copies itself. It holds its place until the
// worker reports its end, at most kGrantSlack times the link's time for it and
// the copies in flight beside it. It counts for at least kLeastGrantBytes,
// since a held place costs others that much time. So a worker that is stopped,
// or lies, takes at most its share and a quarter of that. Its reports do not
// affect the link's measured rate.
//
// Threads:  thread-safe except for functions of the link's thread, which is the
//           link's own: it looks, queues and rests. Callbacks run on it and
//           must not block.
// Owns:     the copy stream, queued images. Borrows the device and the clock.
//           Customers are borrowed, and must be gone before it.
// Bounds:   kPieceBytes per piece, kPiecesUnderWay of them queued. Callers
//           bound queued images (each has its place on the device).
class Link final : private Loop {
 public:
  using Command = absl::AnyInvocable<void()>;

  static constexpr uint64_t kPieceBytes = uint64_t{32} << 20;
  // Of whole images beside streaming plans: a tenth of a millisecond on a PCIe
  // 5 link, which still reaches 96 % with it.
  static constexpr uint64_t kSmallPieceBytes = uint64_t{4} << 20;
  // One is copied, one is next. A third would only take single small groups
  // that could have shared a copy with their neighbours.
  static constexpr int kPiecesUnderWay = 2;
  // Lets hot pieces reach the device, which ends their reads over the link.
  static constexpr double kLeastBesideReads = 0.25;
  // A stream sees its grant some microseconds late, and reports its end some
  // later: 1 MiB takes 20 us on a PCIe 5 link.
  static constexpr uint64_t kLeastGrantBytes = uint64_t{1} << 20;
  static constexpr double kGrantSlack = 1.25;

  static absl::StatusOr<std::unique_ptr<Link>> Create(
      Device& device, const Clock& clock, const LinkOptions& options = {});
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  // Waits for pieces in flight; queued images get Unavailable.
  ~Link() override;

  // `done` gets the device's error, or Ok when the image is complete.
  void Copy(ImageLoad load);
  // In the background, outside the cap on loads: it delays a stream no more
  // than a load does.
  void Read(DeviceRead read);
  // The copy has a waiter now. A no-op if it has ended.
  void Hurry(TransferId id);
  // Stops image copies and reads: those that wait or come later get
  // Unavailable. Started ones first wait for their pieces in flight.
  void GiveUpImages();
  // Sets LinkOptions::load_bytes_per_second.
  void SetLoadRate(uint64_t bytes_per_second);
  uint64_t load_rate() const { return load_rate_; }
  // Kernels have read this many host bytes over the link since the last call,
  // by a report that may be wrong.
  void ReadInPlace(uint64_t bytes) { meter_.ReadBeside(bytes, clock_.Now()); }
  // Runs it on the link's thread, after earlier commands.
  void Post(Command command) ABSL_LOCKS_EXCLUDED(mu_);

  // Host to device, complete.
  uint64_t copied_bytes(LinkClass of) const {
    return copied_[static_cast<size_t>(of)];
  }
  // As LinkMeter::Rate.
  double Rate() const { return meter_.Rate(); }
  // As LinkMeter::ReadRate, now.
  double ReadRate() const { return meter_.ReadRate(clock_.Now()); }
  // As LinkMeter::Demand, now.
  double Demand() const { return meter_.Demand(clock_.Now()); }
  Device& device() const { return device_; }
  const Clock& clock() const { return clock_; }
  TraceRecorder* trace() const { return trace_.recorder(); }

  // --- On the link's thread only --------------------------------------------

  void Add(LinkParty party, const ShareOptions& share, LinkCustomer& customer);
  // The customer's pieces are grants.
  void AddGrants(LinkParty party, const ShareOptions& share,
                 GrantCustomer& customer);
  void SetShare(LinkParty party, const ShareOptions& share);
  // Calls `gone` when no piece of the party is in flight, perhaps at once; ends
  // its grants. Must be called once.
  void Remove(LinkParty party, Command gone);
  // For a customer removed after a device error: the stream may still write its
  // words.
  void Keep(std::unique_ptr<LinkCustomer> customer) {
    kept_.push_back(std::move(customer));
  }
  // Why no copy to the device is possible any more; or Ok.
  const absl::Status& broken() const { return broken_; }
  // Each write to this eventfd wakes the link's thread. It is never read: a
  // holder may set its flags, so a read could block.
  absl::Status Watch(int eventfd);
  void Unwatch(int eventfd);

 private:
  struct Member {
    LinkCustomer* customer = nullptr;
    GrantCustomer* grants = nullptr;  // The same, if it takes grants.
    uint64_t granted = 0;             // Bytes since its start.
    int under_way = 0;
    Command gone;  // Set: being removed.
  };
  struct Grant {
    LinkParty party;
    uint64_t end = 0;    // Ends when this many of all granted bytes are done.
    uint64_t bytes = 0;  // For accounting.
    absl::Time due = absl::InfiniteFuture();
  };
  // Of a class.
  struct Activity {
    int under_way = 0;
    uint64_t bytes_under_way = 0;
    absl::Time ended = absl::InfinitePast();  // Of the last piece.
  };

  Link(Device& device, const Clock& clock, const LinkOptions& options,
       std::unique_ptr<CopyQueue> copies, hoist::UniqueFd command,
       hoist::UniqueFd epoll);

  void Begin() override;
  absl::Duration Turn() override;
  absl::Duration Work();
  // Until a write to an eventfd.
  bool Wait(absl::Duration limit) override;
  bool over() const override { return over_; }
  bool RunCommands() ABSL_LOCKS_EXCLUDED(mu_);
  bool TakeEnded(absl::Time now);
  void End(const CopyQueue::Queued& piece, const absl::Status& status,
           absl::Time now);
  bool Look(absl::Time now);
  bool Fill(absl::Time now);
  void ListReady(absl::Time now);
  void Queue(LinkParty party, absl::Time now);

  // link_gaps.cc
  bool Busy() const { return copies_->under_way() > 0 || !grants_.empty(); }
  void Pin(const LinkPiece& piece);
  void TraceQueued(uint64_t bytes);
  TraceWhy WhyIdle() const;
  bool Release();
  void Count(LinkParty party, uint64_t bytes);

  // link_grants.cc
  void Give(LinkParty party, uint64_t bytes, absl::Time now);
  bool TakeGrants(absl::Time now);
  // Ends the grants of one party, or of all.
  void EndGrants(std::optional<LinkParty> of, const absl::Status& why,
                 absl::Time now);
  void EndGrant(const Grant& grant, const absl::Status& status, absl::Time now);
  absl::Time FirstDue() const;

  void CheckHealth(absl::Time now);
  void FailImages();
  // Turns after the stop.
  absl::Duration LastTurns();

  // Bytes that fit in the time for which all classes before this one have left
  // the link idle.
  uint64_t Room(LinkClass of, absl::Time now) const;
  uint64_t SizeOfNext(LinkClass of, absl::Time now) const;
  bool BackgroundMayGo(absl::Time now) const;
  // The pause before the background's next piece, after one of `bytes`, that
  // leaves the link to kernels' reads.
  absl::Duration PauseBesideReads(uint64_t bytes, absl::Time now) const;

  // After a look without news: the time to spin, nap or sleep, by how long
  // there was no news.
  absl::Duration Rest(absl::Time now);
  bool AllQuiet() const;
  bool LoadsAlone() const;
  void SetSleeping(bool sleeping);

  const Activity& Of(LinkClass of) const {
    return activity_[static_cast<size_t>(of)];
  }

  Device& device_;
  const Clock& clock_;
  const hoist::UniqueFd command_;  // An eventfd; written with each command.
  const hoist::UniqueFd epoll_;
  const decltype(LinkOptions::before_copy) before_copy_;
  LinkMeter meter_;
  std::array<std::atomic<uint64_t>, kLinkClasses> copied_ = {};
  std::atomic<uint64_t> load_rate_;

  absl::Mutex mu_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mu_);

  // Used by the thread only from here on.
  std::vector<std::unique_ptr<LinkCustomer>> kept_;
  std::unique_ptr<CopyQueue> copies_;  // Destroyed before its targets.
  CopyTrace trace_;
  GapTrace gaps_;
  ImageQueue leases_;
  ImageQueue background_;
  ReadQueue reads_;
  LinkShare share_;
  std::map<LinkParty, Member> members_;
  std::array<Activity, kLinkClasses> activity_;
  std::vector<Grant> grants_;  // In flight, in order.
  std::vector<LinkParty> ready_;
  absl::Time background_next_ = absl::InfinitePast();  // Earliest start.
  bool no_room_ = false;    // For the background, which has copies.
  bool held_back_ = false;  // By caps, until next_turn_.
  absl::Time next_turn_ = absl::InfiniteFuture();
  int looks_ = 0;        // Since the last end of a copy.
  absl::Status broken_;  // The device's streams, permanently.
  bool stopping_ = false;
  bool over_ = false;
  bool sleeping_ = false;  // As customers know.
  int spins_ = 0;
  absl::Duration rested_ = absl::ZeroDuration();  // Since the last news.

  std::unique_ptr<Running> running_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_LINK_H_
