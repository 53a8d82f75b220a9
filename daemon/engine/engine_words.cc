// What admins have said outlives hoistd: pins, shares of plans, caps on loads.
#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/device_names.h"
#include "daemon/core/node_restore.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/kept_node.h"

namespace hoistd {
namespace {

// For the pool, and for others to make room.
constexpr absl::Duration kPinPatience = absl::Minutes(10);

bool Means(const CopySelector& which, const ModelSpec& spec,
           const CopyRef& copy) {
  const bool at = !which.at.has_value() || *which.at == copy.place.at;
  return at && (which.group.empty() ||
                which.group == spec.groups[copy.key.group.number()]->name);
}

}  // namespace

// It does no harm if it is not written, so the book is not abandoned.
void Engine::Noted(const absl::Status& written) {
  if (written.ok() || std::exchange(told_unkept_word_, true)) return;
  AddNote(absl::StrCat(
      "what admins pin and set is not all known to the next hoistd: ",
      std::string(written.message())));
}

void Engine::KeepPin(const KeptPin& pin) {
  if (!Keeps()) return;
  const auto found = pins_.find(pin.copy);
  if (pin.pinned == (found != pins_.end())) return;
  if (pin.pinned) {
    const uint64_t number = ++last_pin_;
    pins_[pin.copy] = number;
    return Noted(WritePin(number, pin.copy, *parts_.keep));
  }
  Noted(ErasePin(found->second, *parts_.keep));
  pins_.erase(found);
}

void Engine::ForgetPins(ModelId model) {
  if (!Keeps()) return;
  const auto of_model = [&](const CopyRef& copy) {
    return copy.key.model == model;
  };
  const CopyRef first = {{model, GroupIndex(0)}, {}};
  auto at = pins_.lower_bound(first);
  while (at != pins_.end() && of_model(at->first)) {
    Noted(ErasePin(at->second, *parts_.keep));
    at = pins_.erase(at);
  }
}

// What lies on devices is pinned at once, before anything could evict it. The
// rest is brought up as for the admin who asked for it; what lies on the host
// is there when the pool is.
void Engine::AdoptPins() {
  NodeRestore restore(node_);
  std::vector<CopyRef> missing;
  for (const auto& [number, copy] : std::exchange(parts_.found.pins, {})) {
    last_pin_ = std::max(last_pin_, number);
    if (!pins_.emplace(copy, number).second) {
      Noted(ErasePin(number, *parts_.keep));
    } else if (!restore.AddPin(copy)) {
      missing.push_back(copy);
      coming_pins_[copy] = true;
    }
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
  // This hoistd ends, or drains: the next one brings it.
  if (!wanted || absl::IsUnavailable(status)) return;
  KeepPin({copy, false});
  AddNote(absl::StrCat("what was pinned ",
                       DeviceNames(DevicesOf(parts_)).On(copy.place.at),
                       " is so no more: ", std::string(status.message())));
}

// Of those that are not there yet.
void Engine::UnpinComing(const CopySelector& which, CopyTotals& totals) {
  const absl::StatusOr<ModelPtr> model = node_.Find(which.asker, which.model);
  if (!model.ok()) return;
  for (auto& [copy, wanted] : coming_pins_) {
    if (!wanted || copy.key.model != (*model)->id ||
        !Means(which, *(*model)->spec, copy)) {
      continue;
    }
    wanted = false;
    KeepPin({copy, false});
    ++totals.groups;
    totals.bytes += node_.BytesOf(copy.key);
  }
}

void Engine::AdoptLoadCaps() {
  for (const auto& [device, cap] : std::exchange(parts_.found.load_caps, {})) {
    if (device.number() < parts_.mover.links.size() &&
        load_rate_ == cap.configured) {
      parts_.mover.links[device.number()]->SetLoadRate(cap.set);
    } else {
      Noted(EraseLoadCap(device, *parts_.keep));
    }
  }
}

void Engine::KeepShare(ShareOf of, const ShareOptions& share) {
  if (!Keeps()) return;
  if (const PlanId* plan = std::get_if<PlanId>(&of)) {
    const absl::Status written = WriteShare(*plan, share, *parts_.keep);
    // Whose memory goes with this process is not kept either.
    return Noted(absl::IsNotFound(written) ? absl::OkStatus() : written);
  }
  // A copier's ends with this hoistd, as the copier does.
  if (std::holds_alternative<CopierId>(of)) return;
  const LoadCap cap = {share.max_bytes_per_second, load_rate_};
  Noted(WriteLoadCap(std::get<DeviceIndex>(of), cap, *parts_.keep));
}

void Engine::SetLoadRate(uint64_t bytes_per_second) {
  Post([this, bytes_per_second](Effects&) {
    load_rate_ = bytes_per_second;
    uint32_t device = 0;
    for (Link* link : parts_.mover.links) {
      // Into slabs in place nothing crosses a link.
      if (link->device().info().kind == DeviceKind::kInPlace) continue;
      link->SetLoadRate(bytes_per_second);
      if (Keeps()) Noted(EraseLoadCap(DeviceIndex(device), *parts_.keep));
      ++device;
    }
  });
}

}  // namespace hoistd
