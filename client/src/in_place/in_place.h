// Zero-copy tensors: each at one address, in pieces that are hot, in device
// memory, or cold, in host memory that the device reads over the link.
#ifndef HOIST_CLIENT_SRC_IN_PLACE_IN_PLACE_H_
#define HOIST_CLIENT_SRC_IN_PLACE_IN_PLACE_H_

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

#include "client/src/device/piece_range.h"
#include "client/src/device/stream_order.h"
#include "client/src/in_place/hot_room.h"
#include "client/src/in_place/launched_passes.h"
#include "client/src/in_place/pass_boundary.h"
#include "client/src/in_place/piece_book.h"
#include "client/src/in_place/scratch.h"
#include "client/src/in_place/touch_counts.h"
#include "client/src/session/session.h"
#include "hoist/c/in_place.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"

namespace hoist {

// hoist/c/in_place.h has the promises of hoist_in_place_*.
//
// Threads:  thread-safe. Its own thread reads the counts, requests copies to
//           the device, and remaps pieces while a captured graph's stream is
//           held at a boundary.
// Owns:     a lease for each piece on the host, and for each hot one; the
//           ranges of addresses.
// Bounds:   hot_budget_bytes of the device, and others' limits.
class InPlace {
 public:
  struct Stats {
    uint64_t bytes = 0;  // Of all tensors.
    uint64_t hot_bytes = 0;
    uint64_t hot_budget_bytes = 0;
    uint32_t pieces = 0;
    uint32_t hot_pieces = 0;
    uint64_t moves = 0;  // Remapped pieces.
    // Bytes of touched units, by the tier of their piece at that time.
    double touched_hot_bytes = 0;
    double touched_cold_bytes = 0;
  };

  static Result<std::unique_ptr<InPlace>> Create(
      std::shared_ptr<Session> session, ModelPtr model,
      std::vector<InPlaceTensor> tensors,
      const hoist_in_place_options& options);
  InPlace(const InPlace&) = delete;
  InPlace& operator=(const InPlace&) = delete;
  // All reads must have ended. Not in the child of a fork.
  ~InPlace();

  // Fixed for the object's life. nullptr: no such tensor.
  const void* AddressOf(size_t tensor) const;
  // Starts a pass of this thread on the stream; it ends with EndPass. Pending
  // pieces are remapped first, unless another thread is in a pass. In a
  // captured graph, they are remapped at each launch.
  Status BeginPass(cuda::Stream stream);
  void EndPass();
  // Adds touches of a tensor's units.
  Status Touch(size_t tensor, std::span<const uint32_t> units,
               std::span<const uint32_t> counts);
  // Remaps pending pieces; nothing may read the tensors meanwhile. `wait`: also
  // remaps pieces that are still being copied.
  Status Advance(bool wait);
  // Pieces that Advance would remap now. Takes no lock.
  uint32_t pending() const { return pending_.load(); }
  Status SetBudget(uint64_t hot_budget_bytes);
  // Ok while the tensors' bytes are valid.
  Status Check() const;
  // hoistd's last refusal of device memory for wanted pieces, which stay cold;
  // ok if it has given all that were asked for since.
  Status CheckHot() const;
  bool forked() const { return session_->forked(); }
  Stats stats() const;

 private:
  struct Piece {
    size_t tensor = 0;
    uint32_t group = 0;
    uint64_t offset = 0;  // In its tensor.
    uint64_t bytes = 0;   // Its size in either memory.
    uint64_t image_bytes = 0;
    SlabHandle cold;
    SlabHandle hot;  // While `book_` has it on the device.
    uint64_t cold_lease = 0;
  };

  InPlace(std::shared_ptr<Session> session, ModelPtr model,
          std::vector<InPlaceTensor> tensors,
          const hoist_in_place_options& options, DeviceFacts in_place);

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
  // Emulated device: a pass takes the time of the link.
  void AwaitReads() HOIST_EXCLUDES(counts_mu_) HOIST_EXCLUDES(mu_);
  Session::HeatReport MakeReport() HOIST_EXCLUDES(mu_);
  void TellHeat() HOIST_EXCLUDES(mu_);
  bool ToTell() const HOIST_EXCLUDES(mu_);
  void Choose() HOIST_REQUIRES(mu_);
  // Device memory that pieces may use now.
  uint64_t Room() const HOIST_REQUIRES(mu_) {
    return room_.Beside(ScratchBytes(tensors_));
  }
  // Requests copies of some wanted pieces; true: some were copied.
  bool Bring() HOIST_EXCLUDES(mu_);
  void CountPending() HOIST_REQUIRES(mu_);
  // Writes options_.cold.
  void ShowCold() HOIST_REQUIRES(mu_);
  // Gives the scratch back where the budget is smaller, and gets it again.
  // Nothing may read the tensors.
  void FitScratch() HOIST_REQUIRES(mu_);
  bool ScratchIsDue() const HOIST_REQUIRES(mu_);
  // Remaps pieces until the limit. Nothing may read the tensors.
  void PlaceSome(std::chrono::microseconds limit) HOIST_REQUIRES(mu_);
  // The same, within the acceptable delay of a pass.
  void PlaceBeforePass() HOIST_REQUIRES(mu_);
  // True: a stream was parked at the boundary.
  bool PlaceAtBoundary() HOIST_EXCLUDES(mu_);
  // True: all passes launched by the host have ended. False: another has begun,
  // or one is not launched completely. `but`: 0, or the caller's own.
  Result<bool> PassesHaveRun(pid_t but) HOIST_EXCLUDES(mu_);
  void ReleaseLeft() HOIST_EXCLUDES(mu_);

  const std::shared_ptr<Session> session_;
  const ModelPtr model_;
  const std::vector<InPlaceTensor> tensors_;
  const hoist_in_place_options options_;
  const DeviceFacts in_place_;
  std::unique_ptr<StreamOrder> order_;
  std::unique_ptr<PassBoundary> boundary_;
  std::atomic<bool> captured_{false};  // By a graph.
  // The emulated link's bytes per second, for cold pieces; 0: takes no time.
  uint64_t emulated_link_ = 0;
  std::vector<std::unique_ptr<PieceRange>> ranges_;  // One per tensor; fixed.
  std::unique_ptr<Scratch> scratch_ HOIST_GUARDED_BY(mu_);  // Of ranges_.
  std::vector<uint64_t> tensor_bytes_;
  std::vector<size_t> first_piece_;  // Of each tensor, and one more.

  Mutex counts_mu_;  // Before mu_.
  // nullptr: counts come by Touch.
  std::unique_ptr<TouchCounts> counts_ HOIST_GUARDED_BY(counts_mu_);

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<Piece> pieces_ HOIST_GUARDED_BY(mu_);
  PieceBook book_ HOIST_GUARDED_BY(mu_);         // Of pieces_.
  LaunchedPasses passes_ HOIST_GUARDED_BY(mu_);  // That the host launches.
  std::chrono::steady_clock::time_point placed_ HOIST_GUARDED_BY(mu_);
  HotRoom room_ HOIST_GUARDED_BY(mu_){options_.hot_budget_bytes};
  bool touched_ HOIST_GUARDED_BY(mu_) = true;
  bool any_touch_ HOIST_GUARDED_BY(mu_) = false;
  Stats told_ HOIST_GUARDED_BY(mu_);           // Last sent to hoistd.
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

#endif  // HOIST_CLIENT_SRC_IN_PLACE_IN_PLACE_H_
