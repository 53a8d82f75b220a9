// Admins' settings that outlive hoistd: pins, shares of plans, caps on loads.
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/device_names.h"
#include "daemon/core/node_restore.h"
#include "daemon/engine/engine.h"

namespace hoistd {
namespace {

// For the pool to grow, and for others to make room.
constexpr absl::Duration kPinPatience = absl::Minutes(10);

bool Means(const CopySelector& which, const ModelSpec& spec,
           const CopyRef& copy) {
  const bool at = !which.at.has_value() || *which.at == copy.place.at;
  return at && (which.group.empty() ||
                which.group == spec.groups[copy.key.group.number()]->name);
}

}  // namespace

// Pins device copies at once, before any eviction. Brings up the others as for
// the admin who pinned them; host copies come with the pool.
void Engine::AdoptPins(const std::map<uint64_t, CopyRef>& pins) {
  NodeRestore restore(node_);
  std::vector<CopyRef> missing;
  for (const auto& [number, copy] : pins) {
    if (!book_.AdoptPin(number, copy) || restore.AddPin(copy)) continue;
    missing.push_back(copy);
    coming_pins_[copy] = true;
  }
  if (missing.empty()) return;
  Post([this, missing = std::move(missing)](Effects& effects) mutable {
    BringArgs how;
    how.deadline = Now() + kPinPatience;
    how.pin = true;
    BringAll(
        std::move(missing), how,
        [this](const CopyRef& copy, absl::Status status) {
          PinCame(copy, status);
        },
        effects);
  });
}

void Engine::PinCame(const CopyRef& copy, const absl::Status& status) {
  const bool wanted = coming_pins_.extract(copy).mapped();
  if (status.ok()) {
    if (wanted) return;
    return Post([this, copy](Effects& effects) {
      node_.Unpin({copy}, Now(), effects);
    });
  }
  // This hoistd ends or drains: the next one brings it.
  if (!wanted || absl::IsUnavailable(status)) return;
  book_.WritePin({copy, false});
  AddNote(absl::StrCat("what was pinned ",
                       DeviceNames(DevicesOf(parts_)).On(copy.place.at),
                       " is so no more: ", std::string(status.message())));
}

// Pins whose copies are not there yet.
void Engine::UnpinComing(const CopySelector& which, CopyTotals& totals) {
  const auto model = node_.tenure().Find(which.asker, which.model);
  if (!model.ok()) return;
  for (auto& [copy, wanted] : coming_pins_) {
    if (!wanted || copy.key.model != (*model)->id ||
        !Means(which, *(*model)->spec, copy)) {
      continue;
    }
    wanted = false;
    book_.WritePin({copy, false});
    ++totals.groups;
    totals.bytes += node_.copies().BytesOf(copy.key);
  }
}

void Engine::AdoptLoadCaps(const std::map<DeviceIndex, LoadCap>& caps) {
  for (const auto& [device, cap] : caps) {
    if (device.number() < parts_.mover.links.size() &&
        load_rate_ == cap.configured) {
      parts_.mover.links[device.number()]->SetLoadRate(cap.set);
    } else {
      book_.EraseLoadCap(device);
    }
  }
}

void Engine::KeepShare(ShareOf of, const ShareOptions& share) {
  if (const PlanId* plan = std::get_if<PlanId>(&of)) {
    book_.WriteShare(*plan, share);
  } else if (const DeviceIndex* device = std::get_if<DeviceIndex>(&of)) {
    book_.WriteLoadCap(*device, {share.max_bytes_per_second, load_rate_});
  }  // A permit ends with this hoistd.
}

void Engine::SetLoadRate(uint64_t bytes_per_second) {
  Post([this, bytes_per_second](Effects&) {
    load_rate_ = bytes_per_second;
    uint32_t device = 0;
    for (Link* link : parts_.mover.links) {
      // Copies into in-place slabs cross no link.
      if (link->device().info().kind == DeviceKind::kInPlace) continue;
      link->SetLoadRate(bytes_per_second);
      book_.EraseLoadCap(DeviceIndex(device));
      ++device;
    }
  });
}

}  // namespace hoistd
