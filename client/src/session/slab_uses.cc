#include "client/src/session/slab_uses.h"

#include <algorithm>

namespace hoist {
namespace {

bool Meets(const SlabUses::Place& place, uint32_t device, uint64_t offset,
           uint64_t bytes) {
  return place.device.value_or(device) == device &&
         place.offset < offset + bytes && offset < place.offset + place.bytes;
}

}  // namespace

void SlabUses::Add(const LeaseGrant& lease) {
  const std::lock_guard<std::mutex> lock(mu_);
  leases_[lease.id] = {lease.device, lease.offset_bytes, lease.image_bytes};
}

void SlabUses::Add(const PlanGrant& plan) {
  Places places;
  for (const PlannedGroup& group : plan.groups) {
    // `slab_device` is set only if the grant brings slabs.
    if (!group.resident) {
      places.push_back(
          {plan.slab_device, group.offset_bytes, group.slot_bytes});
    }
  }
  const std::lock_guard<std::mutex> lock(mu_);
  plans_[plan.info.id] = std::move(places);
}

void SlabUses::AddArena(uint64_t id) {
  const std::lock_guard<std::mutex> lock(mu_);
  arenas_.insert(id);
}

void SlabUses::RemoveArena(uint64_t id) {
  const std::lock_guard<std::mutex> lock(mu_);
  arenas_.erase(id);
}

std::vector<uint64_t> SlabUses::Arenas() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return {arenas_.begin(), arenas_.end()};
}

void SlabUses::RemoveLeases(std::span<const uint64_t> ids) {
  const std::lock_guard<std::mutex> lock(mu_);
  for (const uint64_t id : ids) leases_.erase(id);
}

SlabUses::Places SlabUses::RemovePlan(uint64_t id) {
  const std::lock_guard<std::mutex> lock(mu_);
  auto plan = plans_.extract(id);
  return plan.empty() ? Places() : std::move(plan.mapped());
}

void SlabUses::PutBack(uint64_t id, Places places) {
  const std::lock_guard<std::mutex> lock(mu_);
  plans_[id] = std::move(places);
}

std::vector<uint64_t> SlabUses::Leases() const {
  const std::lock_guard<std::mutex> lock(mu_);
  std::vector<uint64_t> ids;
  for (const auto& [id, place] : leases_) ids.push_back(id);
  return ids;
}

bool SlabUses::empty() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return leases_.empty() && plans_.empty() && arenas_.empty();
}

bool SlabUses::Any(uint32_t device, uint64_t offset, uint64_t bytes) const {
  const std::lock_guard<std::mutex> lock(mu_);
  const auto meets = [&](const Place& place) {
    return Meets(place, device, offset, bytes);
  };
  return std::any_of(leases_.begin(), leases_.end(),
                     [&](const auto& lease) { return meets(lease.second); }) ||
         std::any_of(plans_.begin(), plans_.end(), [&](const auto& plan) {
           return std::any_of(plan.second.begin(), plan.second.end(), meets);
         });
}

}  // namespace hoist
