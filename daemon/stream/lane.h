// One plan's lane: the client's requests, the next copies for it, and its
// answers.
#ifndef HOIST_DAEMON_STREAM_LANE_H_
#define HOIST_DAEMON_STREAM_LANE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/link/link_customer.h"
#include "daemon/plan/lane_schedule.h"
#include "daemon/stream/lane_board.h"
#include "daemon/stream/lane_memory.h"
#include "daemon/stream/streamer.h"
#include "daemon/trace/recorder.h"

namespace hoistd {

// Threads:  the link's only.
// Owns:     the lane's memory. Borrows the rest, which outlives it. It must
//           live until every piece taken from it has ended.
// Bounds:   a look costs the groups in the ring, plus at most
//           kRequestsALook requests, whatever the client writes.
class Lane final : public LinkCustomer {
 public:
  struct Parts {
    std::span<std::byte> host;
    StreamerEvents* events = nullptr;
    LaneBoard* board = nullptr;      // Gets each change.
    TraceRecorder* trace = nullptr;  // nullptr: no recording.
    bool cpu_workers = false;  // Emulated: only CPUs change words, and wake us.
  };
  static constexpr int kRequestsALook = 8;
  // Small groups are joined into pieces up to this size and two fifths of the
  // ring. So one piece is copied, one is next, and a fifth is used.
  static constexpr uint64_t kJoinedBytes = uint64_t{16} << 20;
  // Queueing a copy takes 2 us of CPU.
  static constexpr size_t kRunsAPiece = 64;

  Lane(LaneSpec spec, std::unique_ptr<LaneMemory> memory, const Parts& parts);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void HostReady(LaneGroup group, ImageRanges ranges, bool once);
  void HostForOnce();
  void TakeBack(LaneGroup group);
  void Close() { closed_ = true; }
  void SetShare(const ShareOptions& share) {
    stats_.share = share;
    changed_ = true;
  }

  // Reads the client's words, and serves positions that need no copy.
  bool Look(absl::Time now) override;
  bool HasPiece() override;
  LinkPiece TakePiece(uint64_t at_most) override;
  void Refused(const absl::Status& why) override;
  void Ended(const absl::Status& status, absl::Time now) override;
  // Ends the plan: releases its waiters, starts no loads. Only the first reason
  // counts.
  void Fail(absl::Status why) override;
  bool quiet(bool held_back) const override;
  // The deadline of the position that the client waits for.
  absl::Time deadline() const override;
  TraceWhy why_idle() const override;
  void SetSleeping(bool sleeping) override;

  bool closed() const { return closed_; }
  const LaneMemory& memory() const { return *memory_; }

 private:
  struct Host {
    ImageRanges ranges;
    uint64_t bytes = 0;  // Of them.
    bool ready = false;
    bool once = false;
    bool asked = false;                          // host_wanted was called.
    absl::Time asked_at = absl::InfinitePast();  // If that was recorded.
  };
  struct Current {  // A load with pieces still to take.
    LaneSchedule::Load load;
    size_t range = 0;  // Earlier ranges are taken,
    uint64_t at = 0;   // and this many bytes of it.
  };
  struct End {  // A load whose last piece is in flight.
    LaneSchedule::Load load;
    bool by_flag = false;  // Its ready word is the group's flag.
  };
  struct Taken {  // A piece in flight.
    uint64_t bytes = 0;
    std::vector<End> ends;
  };
  struct Wanted {  // The client's awaited position.
    uint64_t position = 0;
    uint64_t changes = 0;
    auto operator<=>(const Wanted&) const = default;
  };

  struct Gap {  // The client waits, and nothing is in flight.
    LaneGroup group = 0;
    TraceWhy why = TraceWhy::kNotDue;
    bool operator==(const Gap&) const = default;
  };
  // State of the recording.
  struct Traced {
    uint64_t recording = 0;        // The recording's number.
    std::optional<Wanted> wanted;  // As last recorded.
    std::optional<Gap> gap;
    absl::Time gap_since = absl::InfinitePast();
  };

  // lane_trace.cc
  GroupKey KeyOf(LaneGroup group) const {
    return {spec_.model, spec_.groups[group].group};
  }
  void TraceLook(absl::Time now);
  void TraceWaited(absl::Time now);
  void TraceHostAsked(LaneGroup group);
  void TraceHostCame(LaneGroup group);
  void TellOpen(TraceEvent event) const;
  TraceEvent EventOf(TraceKind kind, LaneGroup group, absl::Time begin) const;
  std::optional<Gap> FindGap() const;
  void EndGap(absl::Time now);

  // lane_resume.cc
  void Resume();
  void ResumeGroup(LaneGroup group);
  void LeaveProgress();

  bool alive() const { return !closed_ && stats_.fault.ok(); }
  bool has_piece() const { return current_.has_value() && alive(); }
  bool LookAtWords(absl::Time now);
  bool LookAtRequests();
  bool Request(const hoist::lane::Request& request);
  bool Capture(uint64_t from);
  bool LookAtDone(absl::Time now);
  void TellSkipped(LaneGroup group);
  // Captured form: the GPU wants a position out of turn.
  bool LookAtWant(absl::Time now);
  bool Jump(uint32_t want, uint64_t to);
  bool SkipTo(const std::vector<std::pair<uint64_t, LaneGroup>>& passed,
              uint64_t to);
  void CountSkipped(uint64_t from, uint64_t to);
  bool by_flags(uint64_t position) const {
    return stats_.captured && position >= captured_from_;
  }
  void Watch(LaneGroup group);
  // Serves positions without copies, and finds the next load. True: something
  // changed.
  bool Advance();
  void Serve(const LaneSchedule::Serve& serve);
  void AskHost();
  void Loaded(const End& end, absl::Time now);
  std::optional<Wanted> FindWanted() const;
  void CheckDeadline(absl::Time now);
  // The client has staged its last position, which is not done.
  bool Staged(LaneGroup group) const;
  std::string WaitCause(LaneGroup group) const;
  bool Release();
  // Fills the piece from current_ as far as it has room.
  void AddTo(LinkPiece& piece, uint64_t at_most);

  LaneStats stats_;
  const LaneSpec spec_;
  const std::unique_ptr<LaneMemory> memory_;
  const Parts parts_;
  uint64_t joined_bytes_ = 0;
  LaneSchedule schedule_;
  std::vector<Host> hosts_;
  std::vector<bool> copied_;        // By a copy, for the last position.
  std::vector<LaneGroup> watched_;  // In use or loading.
  std::vector<bool> is_watched_;
  std::vector<LaneSchedule::Serve> served_;
  std::vector<LaneSchedule::Refresh> stale_;
  std::optional<Current> current_;
  std::deque<Taken> under_way_;
  bool closed_ = false;
  bool changed_ = true;

  bool resume_due_ = false;  // An adopted lane is not read yet.

  uint32_t requests_taken_ = 0;
  // Skips taken that a successor would need again: the number of requests up to
  // each, and its end.
  std::deque<std::pair<uint32_t, uint64_t>> skips_taken_;
  uint32_t cursor_ = 0;  // As last read.
  uint64_t captured_from_ = 0;
  bool jump_due_ = false;    // No new loads until LookAtWant has moved on.
  uint32_t done_place_ = 0;  // As `want` says; the group of the last seen flag.
  absl::Time done_at_ = absl::InfinitePast();

  uint64_t changes_ = 0;  // Positions served or done.
  std::optional<Wanted> wanted_;
  absl::Time wanted_since_ = absl::InfinitePast();
  bool waits_anew_ = false;  // Of wanted_: its deadline passed during sleep.
  Traced traced_;

  size_t release_at_ = 0;  // Groups to release next.
  bool released_ = false;  // All are, since the last copy ended.
  uint64_t used_position_ = 0;
  absl::Time used_at_ = absl::InfinitePast();
  absl::Duration step_ = absl::ZeroDuration();
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STREAM_LANE_H_
