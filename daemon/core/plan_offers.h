// Offers: what a plan could be promised now, or why it could not.
#ifndef HOIST_DAEMON_CORE_PLAN_OFFERS_H_
#define HOIST_DAEMON_CORE_PLAN_OFFERS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/device_names.h"
#include "daemon/core/model_book.h"
#include "daemon/core/node_options.h"
#include "daemon/core/plan_book.h"
#include "daemon/core/quota.h"
#include "daemon/core/requests.h"
#include "daemon/core/session_book.h"
#include "daemon/core/space.h"
#include "daemon/types/device.h"
#include "daemon/types/ids.h"

namespace hoistd {

class Tenure;

// Device bytes left for a plan, by bound.
struct PlanRoom {
  uint64_t on_device = 0;
  uint64_t in_quota = UINT64_MAX;
  uint64_t in_session = UINT64_MAX;

  uint64_t least() const { return std::min({on_device, in_quota, in_session}); }
};

// Threads:  one at a time.
// Owns:     nothing; borrows all, which must outlive this object.
// Bounds:   as quotas say.
class PlanOffers {
 public:
  PlanOffers(const NodeOptions& options, const Tenure& tenure,
             const std::vector<DeviceInfo>& devices, const DeviceNames& names,
             const CopyTable& copies, const ModelBook& models,
             const QuotaBook& quota, const Space& space)
      : options_(options),
        tenure_(tenure),
        devices_(devices),
        names_(names),
        copies_(copies),
        models_(models),
        quota_(quota),
        space_(space) {}

  // The plan without its places, as it could be promised now; or a final
  // refusal that names a sufficient budget.
  absl::StatusOr<PlanGrant> Check(const PlanRequest& asked) const;
  // If promised groups of its own model become its residents (`but`), or if
  // none does. Sessions see `args` alone.
  PlanRoom RoomFor(const PlanRequest& asked,
                   std::optional<ModelId> but = std::nullopt) const;
  // Changes with the room.
  uint64_t epoch() const { return space_.epoch(); }
  // Roughly, for all of the plan's bytes.
  absl::Duration TimeToBring(const PlanGrant& grant) const {
    return absl::Seconds(
        static_cast<double>(grant.ring_bytes + grant.resident_bytes) /
        options_.host_bytes_per_second);
  }
  // With one of `plans` equal shares of the device, if that is enough.
  absl::StatusOr<PlanGrant> CheckShare(const PlanRequest& asked,
                                       uint64_t plans) const;
  // Of these copies; without those of the model `but` that can become residents
  // of its plan.
  uint64_t BytesOf(const std::set<CopyRef>& copies,
                   std::optional<ModelId> but = std::nullopt) const;

 private:
  const SessionBook& sessions() const;
  const PlanBook& plans() const;
  absl::StatusOr<PlanGrant> Make(const PlanRequest& asked) const;
  uint64_t SufficientBudget(const PlanRequest& asked) const;
  absl::Status Fits(const PlanRequest& asked, const PlanGrant& grant) const;
  absl::Status FitsQuota(const PlanRequest& asked,
                         const PlanGrant& grant) const;
  uint64_t QuotaRoom(const PlanRequest& asked,
                     std::optional<ModelId> but) const;
  uint64_t LostTo(const PlanRequest& asked) const;
  uint64_t AddedBy(const PlanRequest& asked, const PlanGrant& grant,
                   const std::set<CopyRef>& before) const;
  std::string Withheld(DeviceIndex device) const;
  std::string DeviceTaken(DeviceIndex device, SessionId session,
                          std::optional<PlanId> except) const;

  const NodeOptions& options_;
  const Tenure& tenure_;
  const std::vector<DeviceInfo>& devices_;
  const DeviceNames& names_;
  const CopyTable& copies_;
  const ModelBook& models_;
  const QuotaBook& quota_;
  const Space& space_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_PLAN_OFFERS_H_
