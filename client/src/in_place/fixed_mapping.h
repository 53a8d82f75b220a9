// Addresses to which groups are mapped and unmapped.
#ifndef HOIST_CLIENT_SRC_IN_PLACE_FIXED_MAPPING_H_
#define HOIST_CLIENT_SRC_IN_PLACE_FIXED_MAPPING_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/src/device/piece_range.h"
#include "client/src/session/session.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"

namespace hoist {

// hoist/c/fixed_mapping.h has the promises of hoist_fixed_mapping_*.
//
// Threads:  thread-safe; Fill and Empty are serialized.
// Owns:     the addresses; while full, the leases and the session.
class FixedMapping {
 public:
  static Result<std::unique_ptr<FixedMapping>> Create(
      const Session& session, const ModelTable& model,
      std::span<const uint32_t> groups, uint32_t device);
  FixedMapping(const FixedMapping&) = delete;
  FixedMapping& operator=(const FixedMapping&) = delete;
  // Not in the child of a fork.
  ~FixedMapping();

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
    GroupEntry group;     // As of the mapping's creation.
  };

  FixedMapping(DeviceFacts device, std::vector<Place> places,
               std::unique_ptr<PieceRange> range);
  Status Check(const Session& session, const ModelTable& model,
               std::span<const uint32_t> groups) const;
  Status StageLocked(std::span<const uint32_t> groups,
                     std::chrono::milliseconds deadline) HOIST_REQUIRES(mu_);
  Status EmptyLocked() HOIST_REQUIRES(mu_);

  const DeviceFacts device_;
  const uint64_t generation_;  // ForkGeneration at creation.
  const std::vector<Place> places_;
  Mutex mu_;
  std::unique_ptr<PieceRange> range_;  // Its mappings are guarded by mu_.
  std::shared_ptr<Session> session_ HOIST_GUARDED_BY(mu_);  // nullptr: empty.
  ModelPtr model_ HOIST_GUARDED_BY(mu_);
  std::vector<uint64_t> leases_ HOIST_GUARDED_BY(mu_);
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_IN_PLACE_FIXED_MAPPING_H_
