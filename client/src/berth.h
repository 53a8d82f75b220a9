// Addresses that groups are bound to, and may leave.
#ifndef HOIST_CLIENT_SRC_BERTH_H_
#define HOIST_CLIENT_SRC_BERTH_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/src/piece_range.h"
#include "client/src/session.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"

namespace hoist {

// What hoist_berth_* promise is in hoist/c/berth.h.
//
// Threads:  thread-safe; Fill and Empty take turns.
// Owns:     the addresses; while it is full the leases, and its session.
class Berth {
 public:
  static Result<std::unique_ptr<Berth>> Create(const Session& session,
                                               const ModelTable& model,
                                               std::span<const uint32_t> groups,
                                               uint32_t device);
  Berth(const Berth&) = delete;
  Berth& operator=(const Berth&) = delete;
  // Not in the child of a fork.
  ~Berth();

  Status Fill(std::shared_ptr<Session> session, const ModelPtr& model,
              std::span<const uint32_t> groups,
              std::chrono::milliseconds deadline);
  Status Empty();
  // nullopt: there is no such group. nullptr: its image is empty.
  std::optional<const void*> AddressOf(size_t group) const;
  bool forked() const;

 private:
  struct Place {
    uint64_t offset = 0;  // In the range.
    uint64_t bytes = 0;   // A multiple of 2 MiB; 0: the image is empty.
    GroupEntry group;     // As it was when the berth was made.
  };

  Berth(DeviceFacts device, std::vector<Place> places,
        std::unique_ptr<PieceRange> range);
  Status Check(const Session& session, const ModelTable& model,
               std::span<const uint32_t> groups) const;
  Status StageLocked(std::span<const uint32_t> groups,
                     std::chrono::milliseconds deadline) HOIST_REQUIRES(mu_);
  Status EmptyLocked() HOIST_REQUIRES(mu_);

  const DeviceFacts device_;
  const uint64_t generation_;  // Of forks, that it was made in.
  const std::vector<Place> places_;
  Mutex mu_;
  std::unique_ptr<PieceRange> range_;  // Its mappings are guarded by mu_.
  std::shared_ptr<Session> session_ HOIST_GUARDED_BY(mu_);  // nullptr: empty.
  ModelPtr model_ HOIST_GUARDED_BY(mu_);
  std::vector<uint64_t> leases_ HOIST_GUARDED_BY(mu_);
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_BERTH_H_
