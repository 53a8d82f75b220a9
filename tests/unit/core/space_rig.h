// Space, without the layers above it.
#ifndef HOIST_TESTS_UNIT_CORE_SPACE_RIG_H_
#define HOIST_TESTS_UNIT_CORE_SPACE_RIG_H_

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "daemon/core/space.h"
#include "gtest/gtest.h"

namespace hoistd::space_rig {

inline constexpr uint64_t kPage = 4096;
inline const DeviceIndex kDevice(0);
inline const SessionId kWorker(1);
inline const User kAnn(1);
inline const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

struct FakeDemand : Demand {
  bool Awaits(const CopyRef& copy, bool) const override {
    return awaited.contains(copy);
  }
  std::optional<absl::Duration> UntilUse(GroupKey key) const override {
    const auto found = next_use.find(key);
    if (found == next_use.end()) return std::nullopt;
    return found->second;
  }
  bool Uses(ModelId model) const override { return used.contains(model); }
  std::set<ModelId> Wanted() const override { return {}; }

  std::set<CopyRef> awaited;
  std::map<GroupKey, absl::Duration> next_use;
  std::set<ModelId> used;
};

inline GroupKey Key(uint64_t model, uint32_t group) {
  return {ModelId(model), GroupIndex(group)};
}
inline CopyRef HostOf(GroupKey key) { return {key, kHost}; }
inline CopyRef DeviceOf(GroupKey key) {
  return {key, {OnDevice(kDevice), false}};
}

// Two host pages, and four of one device, in slabs of a page each.
class SpaceRig : public ::testing::Test {
 protected:
  static NodeOptions Options() {
    NodeOptions options;
    options.host_capacity_bytes = 2 * kPage;
    options.slab_bytes = kPage;
    options.device_capacity_bytes = {4 * kPage};
    options.spill_capacity_bytes = 100 * kPage;
    options.keeps = true;
    return options;
  }
  static std::vector<DeviceInfo> Devices(DeviceKind kind) {
    DeviceInfo device;
    device.kind = kind;
    device.granularity = kPage;
    device.span_bytes = DeviceSpace::SpanFor(4 * kPage, kPage);
    return {device};
  }

  explicit SpaceRig(DeviceKind kind = DeviceKind::kEmulated)
      : devices_(Devices(kind)) {
    space_.host().Grow(2 * kPage);
    space_.slabs().AddSession(kWorker, kAnn, /*closes_slabs=*/true);
  }
  ~SpaceRig() override { space_.Check(std::vector<PromiseBook>(1)); }

  // Groups of one page each; with `in_files` they can be read again.
  ModelEntry& AddModel(uint64_t id, uint32_t groups, bool in_files = true) {
    auto spec = std::make_shared<ModelSpec>();
    spec->published = !in_files;
    auto model = std::make_shared<Model>();
    model->id = ModelId(id);
    model->readers = Readers::kEveryone;
    model->spec = spec;
    auto group = std::make_shared<Group>();
    group->image_bytes = kPage;
    ModelEntry& entry = copies_.AddModel(model);
    entry.groups.resize(groups);
    for (GroupEntry& one : entry.groups) {
      one.group = group;
      one.in_files = in_files;
    }
    return entry;
  }
  absl::Status Reserve(const CopyRef& ref, bool urgent = true) {
    SpaceClaim claim;
    claim.copy = ref;
    claim.urgent = claim.waited_for = urgent;
    return space_.Reserve(ref, copies_.At(ref), claim, kStart);
  }
  // A device copy waits for its slab.
  absl::Status Bring(const CopyRef& ref, absl::Time last_use = kStart) {
    absl::Status reserved = Reserve(ref);
    if (absl::IsUnavailable(reserved) && MakeSlabs()) reserved = Reserve(ref);
    if (reserved.ok()) {
      Copy& copy = copies_.At(ref);
      copies_.Apply(copy, ResidencyEvent::kFillDone);
      copies_.Apply(copy, ResidencyEvent::kUse);
      space_.Weigh(ref, copy);
      copy.last_use = last_use;
    }
    return reserved;
  }
  bool MakeSlabs() {
    work_ = space_.TakeWork();
    for (const SlabWork& slab : work_.slabs) {
      if (slab.kind != SlabWork::Kind::kMake) continue;
      space_.SlabMade(kDevice, slab.slab.id, SlabShare());
    }
    return !work_.slabs.empty();
  }
  bool There(const CopyRef& ref) { return copies_.At(ref).usable(); }

  const NodeOptions options_ = Options();
  const std::vector<DeviceInfo> devices_;
  CopyTable copies_;
  QuotaBook quota_{QuotaOptions()};
  ModelBook models_{copies_, quota_, /*users_share_devices=*/true};
  SpillBook disk_;
  FakeDemand demand_;
  PersistedLog kept_{/*keeps=*/true};
  Space space_{options_, devices_, copies_, models_, disk_, demand_, kept_};
  SpaceWork work_;
};

}  // namespace hoistd::space_rig

#endif  // HOIST_TESTS_UNIT_CORE_SPACE_RIG_H_
