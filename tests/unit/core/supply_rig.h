// Supply over a Space, without the layers above it.
#ifndef HOIST_TESTS_UNIT_CORE_SUPPLY_RIG_H_
#define HOIST_TESTS_UNIT_CORE_SUPPLY_RIG_H_

#include <memory>
#include <utility>
#include <vector>

#include "daemon/core/supply.h"
#include "tests/unit/core/space_rig.h"

namespace hoistd::space_rig {

inline constexpr Content kContent = {7};

class SupplyRig : public SpaceRig {
 protected:
  using Progress = Supply::Progress;

  // A published model with one group of a page.
  GroupKey Publish(uint64_t id) {
    ModelEntry& entry = AddModel(id, 1, /*in_files=*/false);
    auto spec = std::make_shared<ModelSpec>(*entry.model->spec);
    spec->groups = {entry.groups[0].group};
    spec->group_contents = {kContent};
    auto model = std::make_shared<Model>(*entry.model);
    model->owner = kAnn;
    model->spec = std::move(spec);
    entry.model = std::move(model);
    return Key(id, 0);
  }
  // The same, received on the host.
  GroupKey Receive(uint64_t id) {
    const GroupKey key = Publish(id);
    const OwnerId owner = copies_.NewOwner();
    const auto offset = space_.PlaceUnsaved(owner, kPage, 0, kStart);
    EXPECT_TRUE(offset.ok()) << offset.status();
    quota_.Add(kAnn, Quota::kPublishedBytes, kPage);
    supply_.Received(key, owner, *offset, kStart, effects_);
    return key;
  }
  Need& Want(const CopyRef& ref, uint64_t request) {
    Waiter waiter;
    waiter.request = RequestId(request);
    waiter.deadline = kStart + absl::Seconds(1);
    Need& need = supply_.NeedFor(ref, /*urgent=*/true, effects_);
    supply_.AddWaiter(need, waiter);
    return need;
  }
  Progress Advance(Need& need) {
    return supply_.Advance(need, kStart, effects_);
  }
  // Ends all transfers of this way among those started last.
  template <typename Way>
  size_t End(const absl::Status& status = absl::OkStatus()) {
    size_t ended = 0;
    for (const Transfer& transfer :
         std::exchange(effects_.transfers, std::vector<Transfer>())) {
      if (transfer.by<Way>() == nullptr) {
        effects_.transfers.push_back(transfer);
        continue;
      }
      ++ended;
      Done(supply_.Take(transfer.id, status), status);
    }
    return ended;
  }
  virtual void Done(const Transfer& transfer, const absl::Status& status) {
    supply_.Done(transfer, status, {SpillId(1), kContent}, kStart, effects_);
  }
  void MakeAllSlabs() {
    for (const SlabWork& work :
         std::exchange(effects_.slabs, std::vector<SlabWork>())) {
      space_.SlabMade(kDevice, work.slab.id, SlabShare());
    }
  }

  const DeviceNames names_{devices_};
  Counters counters_;
  Supply supply_{options_, names_, copies_, models_,  quota_,
                 disk_,    space_, kept_,   counters_};
  Effects effects_;
};

}  // namespace hoistd::space_rig

#endif  // HOIST_TESTS_UNIT_CORE_SUPPLY_RIG_H_
