// The Streamer: one thread that looks, copies and rests.
#ifndef HOIST_DAEMON_STREAM_STREAMER_THREAD_H_
#define HOIST_DAEMON_STREAM_STREAMER_THREAD_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/stream/copy_queue.h"
#include "daemon/stream/lane.h"
#include "daemon/stream/streamer.h"

namespace hoistd {

// Threads:  as Streamer's. Under `mu_` lie only the commands and the published
//           numbers; all else is the thread's alone.
class StreamerThread final : public Streamer {
 public:
  static constexpr size_t kMaxLanes = 1024;

  StreamerThread(StreamerParts parts, StreamerEvents events,
                 std::unique_ptr<CopyQueue> copies, hoist::UniqueFd command,
                 hoist::UniqueFd epoll);
  StreamerThread(const StreamerThread&) = delete;
  StreamerThread& operator=(const StreamerThread&) = delete;
  ~StreamerThread() override;

  void Open(LaneSpec spec,
            absl::AnyInvocable<void(absl::StatusOr<LaneShare>)> done) override;
  void Close(PlanId plan, absl::AnyInvocable<void()> done) override;
  void HostReady(PlanId plan, LaneGroup group, uint64_t host_offset,
                 bool once) override;
  void TakeBack(PlanId plan, LaneGroup group) override;
  void Fail(PlanId plan, absl::Status why) override;
  void SetShare(PlanId plan, ShareOptions share) override;
  std::vector<LaneStats> Stats() const override ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t copied_bytes() const override { return copied_bytes_; }

 private:
  using Command = absl::AnyInvocable<void()>;
  struct Closing {
    PlanId plan;
    absl::AnyInvocable<void()> done;
  };
  // What Stats() needs of a lane; the rate is the bytes since `since`.
  struct Published {
    LaneStats stats;
    uint64_t bytes_at_since = 0;
    uint64_t bytes_at_mark = 0;
    absl::Time since;
    absl::Time mark;
    absl::Time last_copy = absl::InfinitePast();
  };

  void Post(Command command) ABSL_LOCKS_EXCLUDED(mu_);
  void Run();
  bool RunCommands() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<LaneShare> OpenNow(LaneSpec spec);
  void CloseNow(Closing closing);
  bool FinishClosing();

  bool TakeEnded(absl::Time now);
  bool LookAtLanes(absl::Time now);
  bool Fill(absl::Time now);
  void Queue(Lane& lane, absl::Time now);
  void CheckHealth(absl::Time now);
  void Publish(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  // Nothing was new: spins, naps or sleeps, by how long that has been so.
  void Rest(absl::Time now);
  bool AllQuiet() const;
  void SetSleeping(bool sleeping);
  // InfiniteDuration: until somebody writes an eventfd.
  void Wait(absl::Duration limit);

  Lane* Find(PlanId plan);

  const StreamerParts parts_;
  StreamerEvents events_;
  const hoist::UniqueFd command_;  // An eventfd; written with each command.
  const hoist::UniqueFd epoll_;

  mutable absl::Mutex mu_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mu_);
  std::map<PlanId, Published> published_ ABSL_GUARDED_BY(mu_);

  std::atomic<uint64_t> copied_bytes_ = 0;

  LinkShare share_;
  std::map<PlanId, std::unique_ptr<Lane>> lanes_;
  // Closed after the device broke: its streams may still know their words.
  std::vector<std::unique_ptr<Lane>> kept_;
  std::unique_ptr<CopyQueue> copies_;  // Goes first: it knows lanes.
  std::vector<Closing> closing_;
  std::vector<PlanId> ready_;
  bool held_back_ = false;  // By caps, until next_turn_.
  absl::Time next_turn_ = absl::InfiniteFuture();
  int looks_ = 0;        // Since a copy ended.
  absl::Status broken_;  // The device's streams, for good.
  bool stopping_ = false;
  int spins_ = 0;
  absl::Duration rested_ = absl::ZeroDuration();  // Since anything was new.

  std::thread thread_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STREAM_STREAMER_THREAD_H_
