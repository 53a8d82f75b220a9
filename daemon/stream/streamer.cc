#include "daemon/stream/streamer.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/stream/lane.h"

namespace hoistd {
namespace {

absl::Status CheckSpec(const LaneSpec& spec) {
  const size_t groups = spec.groups.size();
  if (groups == 0 || groups > hoist::lane::kMaxGroups || spec.order.empty() ||
      spec.order.size() > LaneSchedule::kMaxOrder) {
    return absl::InvalidArgumentError(
        absl::StrCat("a lane of ", groups, " groups and ", spec.order.size(),
                     " positions a pass; both must be from 1 to 2^20"));
  }
  std::vector<bool> named(groups);
  for (const uint32_t group : spec.order) {
    if (group >= groups) {
      return absl::InvalidArgumentError("the order names a group of no lane");
    }
    named[group] = true;
  }
  for (size_t i = 0; i < groups; ++i) {
    const LaneSpec::Streamed& group = spec.groups[i];
    if (!named[i] || group.bytes == 0 || group.bytes > group.slot.bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "group ", i, " is not in the order, is empty or exceeds its slot"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

Streamer::Streamer(StreamerParts parts, StreamerEvents events)
    : parts_(parts), events_(std::move(events)) {
  HOIST_CHECK(parts_.link != nullptr);
}

Streamer::~Streamer() {
  absl::Notification gone;
  parts_.link->Post([this, &gone] {
    // The last holder's end notifies.
    const std::shared_ptr<void> all(nullptr, [&gone](void*) { gone.Notify(); });
    std::vector<PlanId> plans;
    for (const auto& [plan, entry] : lanes_) plans.push_back(plan);
    for (const PlanId plan : plans) CloseNow(plan, [all] {});
  });
  ThreadsOr(parts_.threads).Await(gone);
}

void Streamer::Open(LaneSpec spec, std::optional<LaneShare> found,
                    absl::AnyInvocable<void(absl::StatusOr<LaneShare>)> done) {
  parts_.link->Post([this, spec = std::move(spec), found = std::move(found),
                     done = std::move(done)]() mutable {
    std::move(done)(OpenNow(std::move(spec), std::move(found)));
  });
}

void Streamer::Close(PlanId plan, absl::AnyInvocable<void()> done) {
  parts_.link->Post([this, plan, done = std::move(done)]() mutable {
    CloseNow(plan, std::move(done));
  });
}

void Streamer::HostReady(PlanId plan, LaneGroup group, ImageRanges ranges,
                         bool once) {
  parts_.link->Post(
      [this, plan, group, ranges = std::move(ranges), once]() mutable {
        Lane* const lane = Find(plan);
        if (lane != nullptr) lane->HostReady(group, std::move(ranges), once);
      });
}

void Streamer::HostForOnce(PlanId plan) {
  parts_.link->Post([this, plan] {
    Lane* const lane = Find(plan);
    if (lane != nullptr) lane->HostForOnce();
  });
}

void Streamer::TakeBack(PlanId plan, LaneGroup group) {
  parts_.link->Post([this, plan, group] {
    Lane* const lane = Find(plan);
    if (lane != nullptr) lane->TakeBack(group);
  });
}

void Streamer::Fail(PlanId plan, absl::Status why) {
  parts_.link->Post([this, plan, why = std::move(why)] {
    Lane* const lane = Find(plan);
    if (lane != nullptr) lane->Fail(why);
  });
}

void Streamer::SetShare(PlanId plan, ShareOptions share) {
  parts_.link->Post([this, plan, share] {
    Lane* const lane = Find(plan);
    if (lane == nullptr) return;
    parts_.link->SetShare(LinkParty::Of(plan), share);
    lane->SetShare(share);
  });
}

Lane* Streamer::Find(PlanId plan) {
  const auto it = lanes_.find(plan);
  if (it == lanes_.end() || it->second.lane->closed()) return nullptr;
  return it->second.lane.get();
}

absl::StatusOr<LaneShare> Streamer::OpenNow(LaneSpec spec,
                                            std::optional<LaneShare> found) {
  Link& link = *parts_.link;
  HOIST_RETURN_IF_ERROR(link.broken());
  HOIST_RETURN_IF_ERROR(CheckSpec(spec));
  const PlanId plan = spec.plan;
  if (lanes_.contains(plan)) {
    return absl::AlreadyExistsError(
        absl::StrCat("plan ", plan.number(), " has a lane already"));
  }
  if (lanes_.size() >= kMaxLanes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        kMaxLanes, " plans stream on this device already; close one first"));
  }
  const auto groups = static_cast<uint32_t>(spec.groups.size());
  const auto order = static_cast<uint32_t>(spec.order.size());
  HOIST_ASSIGN_OR_RETURN(
      auto memory,
      found.has_value()
          ? LaneMemory::Adopt(link.device(), *std::move(found), groups, order)
          : LaneMemory::Create(link.device(), groups, order));
  HOIST_ASSIGN_OR_RETURN(LaneShare share, memory->Share());
  HOIST_RETURN_IF_ERROR(link.Watch(memory->wake_fd()));
  const Lane::Parts parts = {
      .host = parts_.host,
      .events = &events_,
      .board = &board_,
      .trace = link.trace(),
      .cpu_workers = link.device().info().kind == DeviceKind::kEmulated};
  const ShareOptions options = spec.share;
  auto lane = std::make_unique<Lane>(std::move(spec), std::move(memory), parts);
  link.Add(LinkParty::Of(plan), options, *lane);
  lanes_[plan].lane = std::move(lane);
  return share;
}

void Streamer::CloseNow(PlanId plan, absl::AnyInvocable<void()> done) {
  const auto it = lanes_.find(plan);
  if (it == lanes_.end()) return std::move(done)();
  Entry& entry = it->second;
  entry.closing.push_back(std::move(done));
  if (entry.closing.size() > 1) return;
  entry.lane->Close();
  parts_.link->Remove(LinkParty::Of(plan), [this, plan] { Gone(plan); });
}

void Streamer::Gone(PlanId plan) {
  Entry entry = std::move(lanes_.extract(plan).mapped());
  parts_.link->Unwatch(entry.lane->memory().wake_fd());
  board_.Erase(plan);
  if (parts_.link->broken().ok()) {
    entry.lane.reset();
  } else {
    parts_.link->Keep(std::move(entry.lane));
  }
  for (auto& done : entry.closing) std::move(done)();
}

}  // namespace hoistd
