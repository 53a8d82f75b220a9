#include "daemon/core/headroom.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace hoistd {

uint64_t Headroom::OfDevice::bytes() const {
  uint64_t sum = 0;
  for (const Spared& one : spares) sum += one.bytes;
  return sum;
}

void Headroom::Resize(DeviceIndex device, PoolSize size) {
  devices_[device].size = size;
  Fit(device);
}

absl::Status Headroom::Spare(RequestId request, SessionId session,
                             const SpareArgs& args, absl::Time now,
                             Effects& effects) {
  const DeviceIndex device = args.device;
  if (device.number() >= names_.count()) {
    return absl::NotFoundError(absl::StrCat(
        "no device ", device.number(), "; this node has ", names_.count()));
  }
  for (const Spared& one : devices_[device].spares) {
    if (one.session == session && one.request.has_value()) {
      return absl::FailedPreconditionError(
          "this session waits for a spare of the device already; ask again "
          "once that is answered");
    }
  }
  Drop(device, session);
  if (args.bytes == 0) {
    effects.answers.push_back({request});
    return absl::OkStatus();
  }
  const PoolBounds& bounds = space_.device(device).bounds();
  const uint64_t has = std::min(bounds.capacity(), bounds.taken());
  if (args.bytes > has) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "hoistd has ", HumanBytes(has), " ", names_.On(OnDevice(device)),
        ", and cannot leave ", HumanBytes(args.bytes), " of it"));
  }
  OfDevice& of = devices_[device];
  of.had = has + of.bytes();
  of.spares.push_back({session, args.bytes, request, now + args.deadline});
  Fit(device);
  return absl::OkStatus();
}

void Headroom::Leave(SessionId session) {
  for (const auto& [device, of] : devices_) Drop(device, session);
}

void Headroom::Drop(DeviceIndex device, SessionId session) {
  const bool had = std::erase_if(devices_[device].spares, [&](const auto& one) {
    return one.session == session;
  });
  if (had) Fit(device);
}

absl::Time Headroom::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [device, of] : devices_) {
    for (const Spared& one : of.spares) {
      if (one.request.has_value()) next = std::min(next, one.deadline);
    }
  }
  return next;
}

// The capacity that other programs and the spares leave.
void Headroom::Fit(DeviceIndex device) {
  const OfDevice& of = devices_[device];
  DeviceSpace& space = space_.device(device);
  PoolSize size = of.size.value_or(PoolSize{space.bounds().most()});
  size.bytes = std::min(size.bytes, space.bounds().most());
  if (!of.spares.empty()) {
    const uint64_t left = std::min(size.bytes, of.had - of.bytes());
    size.spared = size.bytes - left;
    size.bytes = left;
  }
  space.SetCapacity(size);
  space_.Changed();
}

void Headroom::Answer(DeviceIndex device, absl::Time now, Effects& effects) {
  std::vector<SessionId> dropped;
  OfDevice& of = devices_[device];
  uint64_t ceiling = of.had;
  for (Spared& one : of.spares) {
    ceiling -= one.bytes;
    if (!one.request.has_value()) continue;
    const uint64_t taken = space_.device(device).bounds().taken();
    const uint64_t lacks =
        std::min(one.bytes, taken - std::min(taken, ceiling));
    if (lacks > 0 && now < one.deadline) continue;
    effects.answers.push_back({*one.request});
    one.request.reset();
    if (lacks == 0) continue;
    dropped.push_back(one.session);
    const std::string left = HumanBytes(one.bytes - lacks);
    effects.answers.back().status = absl::ResourceExhaustedError(absl::StrCat(
        "hoistd could leave ", left, " of ", HumanBytes(one.bytes), " ",
        names_.On(OnDevice(device)),
        " in time: the rest is leased, pinned, in a running pass, or of plans "
        "with a budget of their own; a spare of ",
        left, " would be granted, and a larger one with smaller budgets"));
  }
  for (const SessionId session : dropped) Drop(device, session);
}

void Headroom::Keep(absl::Time now, Effects& effects) {
  if (looked_at_ != space_.epoch()) {
    for (uint32_t d = 0; d < space_.devices(); ++d) {
      if (space_.device(DeviceIndex(d)).over() > 0) {
        Keep(DeviceIndex(d), now, effects);
      }
    }
    looked_at_ = space_.epoch();
  }
  for (const auto& [device, of] : devices_) Answer(device, now, effects);
}

void Headroom::Keep(DeviceIndex index, absl::Time now, Effects& effects) {
  DeviceSpace& device = space_.device(index);
  Want none;  // No zone's: slabs of every zone are another's.
  if (const PromiseBook& book = space_.promises(index); book.any()) {
    none.promised = book.ByZone();
  }
  const auto opened = [&](SlabId slab) {
    return space_.slabs().OpenedBy(index, slab);
  };
  const SpaceClaim claim = {.urgent = true};
  const auto worth = [&](OwnerId owner) {
    return space_.ValueOf(owner, claim, now);
  };
  const auto room = [&](bool idle) {
    return device.RoomElsewhere(none, /*own=*/true, idle, worth, opened);
  };
  // Device copies are always clean.
  space_.EvictAll(room(/*idle=*/false).victims, {Leaving::Why::kHeadroom, now});
  device.ReleaseSlabs(none, opened);
  if (device.over() == 0) return;
  space_.AskToClose(index, room(/*idle=*/true).idle, std::nullopt, now);
  reclaim_.AskForRoom(index, device.over(), {Loan::Why::kHeadroom, now},
                      effects);
}

}  // namespace hoistd
