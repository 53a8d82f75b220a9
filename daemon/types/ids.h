// Ids as types, without implicit conversion to each other or to numbers.
#ifndef HOIST_DAEMON_TYPES_IDS_H_
#define HOIST_DAEMON_TYPES_IDS_H_

#include <compare>
#include <cstdint>
#include <utility>

#include "daemon/types/user.h"

namespace hoistd {

// `Tag` separates the types; ids are never reused within a daemon's life.
template <typename Tag, typename Number = uint64_t>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(Number number) : number_(number) {}
  constexpr Number number() const { return number_; }
  constexpr auto operator<=>(const Id&) const = default;

  template <typename H>
  friend H AbslHashValue(H h, const Id& id) {
    return H::combine(std::move(h), id.number_);
  }

 private:
  Number number_ = 0;
};

using ModelId = Id<struct ModelTag>;
using SessionId = Id<struct SessionTag>;
using LeaseId = Id<struct LeaseTag>;
using RequestId = Id<struct RequestTag>;
using TransferId = Id<struct TransferTag>;
using SlabId = Id<struct SlabTag>;
using SpillId = Id<struct SpillTag>;
using OwnerId = Id<struct OwnerTag>;
using PlanId = Id<struct PlanTag>;
using ArenaId = Id<struct ArenaTag>;
using PermitId = Id<struct PermitTag>;
using GroupIndex = Id<struct GroupTag, uint32_t>;
using DeviceIndex = Id<struct DeviceTag, uint32_t>;

// One group of one model.
struct GroupKey {
  ModelId model;
  GroupIndex group;

  auto operator<=>(const GroupKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const GroupKey& key) {
    return H::combine(std::move(h), key.model, key.group);
  }
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_TYPES_IDS_H_
