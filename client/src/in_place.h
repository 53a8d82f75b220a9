// Tensors that are read where they lie: each at one address, in pieces that are
// hot, in device memory, or cold, in host memory that the device reads over the
// link.
#ifndef HOIST_CLIENT_SRC_IN_PLACE_H_
#define HOIST_CLIENT_SRC_IN_PLACE_H_

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/src/pass_boundary.h"
#include "client/src/piece_book.h"
#include "client/src/piece_range.h"
#include "client/src/session.h"
#include "client/src/stream_order.h"
#include "client/src/touch_counts.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"

namespace hoist {

// A group a piece, side by side.
struct InPlaceTensor {
  std::vector<uint32_t> groups;
  uint32_t units = 1;  // Equal parts that are touched or not: rows, experts.
  uint64_t first_count = 0;  // Of the units' counts; tensors may share them.
};

struct InPlaceOptions {
  uint32_t device = 0;
  uint64_t hot_budget_bytes = 0;
  std::chrono::milliseconds deadline{0};  // For the cold pieces to come.
  // Where the units' touches are counted: 32 bits each, on the device. Only
  // ever added to. nullptr: Touch tells.
  const void* counts = nullptr;
  uint64_t count_length = 0;
};

// What hoist_in_place_* promise is in hoist/c/in_place.h.
//
// Threads:  thread-safe. One of its own reads the counts, has pieces copied to
//           the device, and changes their places where a captured graph's
//           stream stands at a boundary.
// Owns:     a lease for each piece on the host, and for each that is hot; the
//           ranges of addresses.
// Bounds:   of the device hot_budget_bytes, and what others may have.
class InPlace {
 public:
  struct Stats {
    uint64_t bytes = 0;  // Of all tensors.
    uint64_t hot_bytes = 0;
    uint64_t hot_budget_bytes = 0;
    uint32_t pieces = 0;
    uint32_t hot_pieces = 0;
    uint64_t moves = 0;  // Pieces that changed places.
    // Of the touched units, what lay on the device and on the host then.
    double touched_hot_bytes = 0;
    double touched_cold_bytes = 0;
  };

  static Result<std::unique_ptr<InPlace>> Create(
      std::shared_ptr<Session> session, ModelPtr model,
      std::vector<InPlaceTensor> tensors, const InPlaceOptions& options);
  InPlace(const InPlace&) = delete;
  InPlace& operator=(const InPlace&) = delete;
  // Nothing reads the tensors any more. Not in the child of a fork.
  ~InPlace();

  // Fixed for the object's life. nullptr: there is no such tensor.
  const void* AddressOf(size_t tensor) const;
  // This thread launches a pass on the stream from here until EndPass. What
  // waits to change places does, first, unless another thread launches one; in
  // a graph that is being captured, whenever that is launched.
  Status BeginPass(cuda::Stream stream);
  void EndPass();
  // Units of a tensor were touched so often.
  Status Touch(size_t tensor, std::span<const uint32_t> units,
               std::span<const uint32_t> counts);
  // Nothing reads the tensors until this returns: what is to change places
  // does, and `wait` says to wait for what is on its way.
  Status Advance(bool wait);
  // Pieces that Advance would have change places now. Takes no lock.
  uint32_t pending() const { return pending_.load(); }
  Status SetBudget(uint64_t hot_budget_bytes);
  // Ok while what the tensors show may be trusted.
  Status Check() const;
  bool forked() const { return session_->forked(); }
  Stats stats() const;

 private:
  struct Piece {
    size_t tensor = 0;
    uint32_t group = 0;
    uint64_t offset = 0;  // In its tensor.
    uint64_t bytes = 0;   // That it takes, on either side.
    uint64_t image_bytes = 0;
    SlabHandle cold;
    SlabHandle hot;  // While the book says that it is on the device.
    uint64_t cold_lease = 0;
  };

  InPlace(std::shared_ptr<Session> session, ModelPtr model,
          std::vector<InPlaceTensor> tensors, const InPlaceOptions& options,
          DeviceFacts in_place);

  Status Layout() HOIST_EXCLUDES(mu_);
  Status Open(const DeviceFacts& device) HOIST_EXCLUDES(mu_);
  Status StageCold() HOIST_EXCLUDES(mu_);
  void Run();
  struct TensorTouches {
    size_t tensor = 0;
    std::vector<double> units;
  };
  void AddTouches(const std::vector<TensorTouches>& all) HOIST_REQUIRES(mu_);
  void TakeCounts() HOIST_EXCLUDES(counts_mu_) HOIST_EXCLUDES(mu_);
  // On the emulated device: a pass takes as long as the link would.
  void AwaitReads() HOIST_EXCLUDES(counts_mu_) HOIST_EXCLUDES(mu_);
  HeatReport MakeReport() HOIST_EXCLUDES(mu_);
  void TellHeat() HOIST_EXCLUDES(mu_);
  bool ToTell() const HOIST_EXCLUDES(mu_);
  void Choose() HOIST_REQUIRES(mu_);
  // Of the device, as much as may be used now.
  uint64_t Room() const HOIST_REQUIRES(mu_) {
    return std::min(budget_, usable_);
  }
  // Has some of what is wanted copied; true: it was.
  bool Bring() HOIST_EXCLUDES(mu_);
  void CountPending() HOIST_REQUIRES(mu_);
  // Nothing reads the tensors. As many as there is time for.
  void PlaceSome(std::chrono::microseconds limit) HOIST_REQUIRES(mu_);
  // As many as a pass may be held up for.
  void PlaceBeforePass() HOIST_REQUIRES(mu_);
  // True: a stream stood at one.
  bool PlaceAtBoundary() HOIST_EXCLUDES(mu_);
  bool AnyLaunches(pid_t but) HOIST_REQUIRES(mu_);
  void NoteStream(cuda::Stream stream) HOIST_REQUIRES(mu_);
  // What passes of the host's read has been read. False: another has begun.
  Result<bool> PassesHaveRun(pid_t but) HOIST_EXCLUDES(mu_);
  void ReleaseLeft() HOIST_EXCLUDES(mu_);

  const std::shared_ptr<Session> session_;
  const ModelPtr model_;
  const std::vector<InPlaceTensor> tensors_;
  const InPlaceOptions options_;
  const DeviceFacts in_place_;
  std::unique_ptr<StreamOrder> order_;
  std::unique_ptr<PassBoundary> boundary_;
  std::atomic<bool> captured_{false};  // A graph has it.
  // Bytes a second of the emulated link that cold pieces take; 0: no time.
  uint64_t emulated_link_ = 0;
  std::vector<std::unique_ptr<PieceRange>> ranges_;  // One a tensor; fixed.
  std::vector<uint64_t> tensor_bytes_;
  std::vector<size_t> first_piece_;  // Of each tensor, and one more.

  Mutex counts_mu_;  // Before mu_.
  // nullptr: Touch tells.
  std::unique_ptr<TouchCounts> counts_ HOIST_GUARDED_BY(counts_mu_);

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<Piece> pieces_ HOIST_GUARDED_BY(mu_);
  PieceBook book_ HOIST_GUARDED_BY(mu_);  // Of these.
  // Of passes that the host launches: who does just now, how many there were,
  // and the streams that may have one yet.
  std::vector<pid_t> launching_ HOIST_GUARDED_BY(mu_);
  uint64_t begun_ HOIST_GUARDED_BY(mu_) = 0;
  std::vector<cuda::Stream> streams_ HOIST_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point placed_ HOIST_GUARDED_BY(mu_);
  uint64_t budget_ HOIST_GUARDED_BY(mu_) = 0;
  // Of the budget, what hoistd had room for; until it is tried again.
  uint64_t usable_ HOIST_GUARDED_BY(mu_) = UINT64_MAX;
  std::chrono::steady_clock::time_point retry_at_ HOIST_GUARDED_BY(mu_);
  bool touched_ HOIST_GUARDED_BY(mu_) = true;
  bool any_touch_ HOIST_GUARDED_BY(mu_) = false;
  Stats told_ HOIST_GUARDED_BY(mu_);           // As hoistd was told last.
  uint64_t rounds_ HOIST_GUARDED_BY(mu_) = 0;  // Of the thread's.
  Status broken_ HOIST_GUARDED_BY(mu_);        // A piece could not be placed.
  Stats stats_ HOIST_GUARDED_BY(mu_);
  double awaited_ HOIST_GUARDED_BY(mu_) = 0;  // Of stats_.touched_cold_bytes.
  std::chrono::steady_clock::time_point read_ HOIST_GUARDED_BY(mu_);
  std::atomic<uint32_t> pending_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_IN_PLACE_H_
