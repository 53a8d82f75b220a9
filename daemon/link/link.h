// A device's link: the one owner of what is copied from the host to it, and of
// what is read back.
//
// Whoever copies is a customer: each plan's lane (daemon/stream), images whole,
// those that somebody waits for and those that nobody does, what is read, and
// workers that copy by themselves and are granted bytes (daemon/copier).
// Copies are queued in pieces, two deep, by whose turn it is (LinkShare): so
// the link never idles while anybody has something to copy, and nobody waits
// long behind somebody else's large image.
#ifndef HOIST_DAEMON_LINK_LINK_H_
#define HOIST_DAEMON_LINK_LINK_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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
#include "daemon/link/image_queue.h"
#include "daemon/link/link_customer.h"
#include "daemon/link/link_meter.h"
#include "daemon/link/read_queue.h"
#include "daemon/plan/link_share.h"
#include "daemon/terms/device.h"
#include "daemon/terms/ids.h"
#include "daemon/trace/recorder.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct LinkOptions {
  // Of loads and prefetches that nobody waits for, together; 0: no cap. At the
  // start: SetLoadRate.
  uint64_t load_bytes_per_second = 0;
  Threads* threads = nullptr;  // nullptr: the system's.
  // Called on the link's thread with each part of host memory just before its
  // copy is queued; it may block until that can be copied at its best.
  CopyQueue::BeforeCopy before_copy;
  TraceRecorder* trace = nullptr;  // nullptr: nothing is recorded.
};

// Who waits for a copy, and plans, share as LinkShare says. The background has
// what they leave: a piece of its own starts only once they left the link alone
// for as long as it will take, with those of its own that are under way. So a
// plan whose gaps between two copies are shorter is not delayed at all, and any
// other by less than the gap: a ring of two slots loses nothing. Beyond that it
// has LinkShare's least part, in pieces of kSmallPieceBytes. What kernels read
// over the link beside all copies is in no queue, and leaves no gaps that could
// be seen; workers tell how much it is, and the background takes the rest of
// the link's time, but kLeastBesideReads of it at the least.
//
// A grant is a piece that a worker copies. It holds its place until the worker
// says that it is done, but no longer than kGrantSlack times what the link
// takes for it and for what is under way beside it; and it counts for
// kLeastGrantBytes at the least, since holding a place costs others that much
// time. So a worker that is stopped, or lies, takes no more than its share and
// a quarter of that. What it says teaches nobody how fast the link is.
//
// Threads:  thread-safe but for what is said to be the link's thread's, which
//           is the link's own: it looks, queues and rests. Callbacks run on it
//           and must not block.
// Owns:     the copy stream, queued images. Borrows the device and the clock.
//           Customers are borrowed, and must be gone before it.
// Bounds:   kPieceBytes a piece, kPiecesUnderWay of them queued. Images queue;
//           those who ask bound them (each has its place on the device).
class Link final : private Loop {
 public:
  using Command = absl::AnyInvocable<void()>;

  static constexpr uint64_t kPieceBytes = uint64_t{32} << 20;
  // Of whole images beside plans that stream: a tenth of a millisecond on a
  // PCIe 5 link, which it still uses to 96 %.
  static constexpr uint64_t kSmallPieceBytes = uint64_t{4} << 20;
  // One is copied, one is next. A third would only take single small groups
  // that could have gone in one copy with their neighbours.
  static constexpr int kPiecesUnderWay = 2;
  // So that what should be on the device comes there, and is read no more.
  static constexpr double kLeastBesideReads = 0.25;
  // A stream sees its grant some microseconds later, and says some later that
  // it is done: what 1 MiB takes on a PCIe 5 link is 20 us.
  static constexpr uint64_t kLeastGrantBytes = uint64_t{1} << 20;
  static constexpr double kGrantSlack = 1.25;

  static absl::StatusOr<std::unique_ptr<Link>> Create(
      Device& device, const Clock& clock, const LinkOptions& options = {});
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  // Waits for what is under way; images that are queued are told Unavailable.
  ~Link() override;

  // `done` gets the device's error, or Ok when the image is there.
  void Copy(ImageLoad load);
  // Of the background, but for the cap on loads: a stream is held up by it no
  // more than by a load.
  void Read(DeviceRead read);
  // Somebody waits for it now. Nothing happens if it is over.
  void Hurry(TransferId id);
  // No image is copied any more, nor is anything read: those that wait, and
  // those to come, are told Unavailable. Of those that are cut, what is under
  // way ends first.
  void GiveUpImages();
  // LinkOptions::load_bytes_per_second, from now on.
  void SetLoadRate(uint64_t bytes_per_second);
  uint64_t load_rate() const { return load_rate_; }
  // Kernels have read so much of the host over it since this was called last,
  // says who may be wrong.
  void ReadInPlace(uint64_t bytes) { meter_.ReadBeside(bytes, clock_.Now()); }
  // Runs it on the link's thread, after what was posted before.
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

  // --- On the link's thread alone -------------------------------------------

  void Add(LinkParty party, const ShareOptions& share, LinkCustomer& customer);
  // What is taken of it are grants.
  void AddGrants(LinkParty party, const ShareOptions& share,
                 GrantCustomer& customer);
  void SetShare(LinkParty party, const ShareOptions& share);
  // Calls `gone` when no piece of it is under way any more, which may be at
  // once; grants end with it. It must not be asked twice.
  void Remove(LinkParty party, Command gone);
  // For a customer that is gone after the device broke: the stream may still
  // know its words.
  void Keep(std::unique_ptr<LinkCustomer> customer) {
    kept_.push_back(std::move(customer));
  }
  // Why nothing can be copied to the device any more; or Ok.
  const absl::Status& broken() const { return broken_; }
  // Each write to this eventfd wakes the link's thread. It is never read: who
  // shares it may set its flags, so a read could block.
  absl::Status Watch(int eventfd);
  void Unwatch(int eventfd);

 private:
  struct Member {
    LinkCustomer* customer = nullptr;
    GrantCustomer* grants = nullptr;  // The same, if that is what it takes.
    uint64_t granted = 0;             // Bytes, ever.
    int under_way = 0;
    Command gone;  // Set: it is to go.
  };
  struct Grant {
    LinkParty party;
    uint64_t end = 0;    // Done when so much of all that was granted is.
    uint64_t bytes = 0;  // As it counts.
    absl::Time due = absl::InfiniteFuture();
  };
  // Of a class.
  struct Activity {
    int under_way = 0;
    uint64_t bytes_under_way = 0;
    absl::Time ended = absl::InfinitePast();  // The last piece.
  };

  Link(Device& device, const Clock& clock, const LinkOptions& options,
       std::unique_ptr<CopyQueue> copies, hoist::UniqueFd command,
       hoist::UniqueFd epoll);

  void Begin() override;
  absl::Duration Turn() override;
  // Until somebody writes an eventfd.
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
  bool LetGo();
  void Count(LinkParty party, uint64_t bytes);

  // link_grants.cc
  void Give(LinkParty party, uint64_t bytes, absl::Time now);
  bool TakeGrants(absl::Time now);
  // All of them, or of one party.
  void EndGrants(std::optional<LinkParty> of, const absl::Status& why,
                 absl::Time now);
  void EndGrant(const Grant& grant, const absl::Status& status, absl::Time now);
  absl::Time FirstDue() const;

  void CheckHealth(absl::Time now);
  void FailImages();
  // As Turn, once it is to stop.
  absl::Duration LastTurns();

  // Bytes that could be copied in the time for which all that goes before this
  // class has left the link alone.
  uint64_t Room(LinkClass of, absl::Time now) const;
  uint64_t SizeOfNext(LinkClass of, absl::Time now) const;
  bool BackgroundMayGo(absl::Time now) const;
  // How long until the next piece of the background, from one of so many bytes
  // on: what kernels read needs the link meanwhile.
  absl::Duration PauseBesideReads(uint64_t bytes, absl::Time now) const;

  // Nothing was new: for how long to spin, nap or sleep, by how long that has
  // been so.
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
  LinkMeter meter_;
  std::array<std::atomic<uint64_t>, kLinkClasses> copied_ = {};
  std::atomic<uint64_t> load_rate_;

  absl::Mutex mu_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mu_);

  // The thread's alone from here on.
  std::vector<std::unique_ptr<LinkCustomer>> kept_;
  std::unique_ptr<CopyQueue> copies_;  // Goes before what it writes to.
  CopyTrace trace_;
  ImageQueue leases_;
  ImageQueue background_;
  ReadQueue reads_;
  LinkShare share_;
  std::map<LinkParty, Member> members_;
  std::array<Activity, kLinkClasses> activity_;
  std::vector<Grant> grants_;  // Under way, as they were given.
  std::vector<LinkParty> ready_;
  absl::Time background_next_ = absl::InfinitePast();  // Not before this.
  bool no_room_ = false;    // For the background, which has something to copy.
  bool held_back_ = false;  // By caps, until next_turn_.
  absl::Time next_turn_ = absl::InfiniteFuture();
  int looks_ = 0;        // Since a copy ended.
  absl::Status broken_;  // The device's streams, for good.
  bool stopping_ = false;
  bool over_ = false;
  bool sleeping_ = false;  // As customers were told.
  int spins_ = 0;
  absl::Duration rested_ = absl::ZeroDuration();  // Since anything was new.

  std::unique_ptr<Running> running_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_LINK_H_
