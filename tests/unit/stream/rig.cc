#include "tests/unit/stream/rig.h"

#include <fcntl.h>

#include <algorithm>
#include <future>
#include <numeric>
#include <utility>

#include "daemon/base/check.h"
#include "tests/support/pattern.h"

namespace hoistd::testing {

StreamRig::StreamRig(const RigOptions& options)
    : clock_(options.clock != nullptr ? options.clock : &monotonic_),
      trace_(options.trace) {
  device_ = EmulatedDevice::Create(
                {.total_bytes = options.device_bytes,
                 .link_bytes_per_second = options.link_bytes_per_second})
                .value();
  HOIST_CHECK(device_->CreateSlab({SlabId(1), 0, options.device_bytes}).ok());
  memory_ =
      hoist::Mapping::OfFd(device_->Share(SlabId(1)).value().fd,
                           options.device_bytes, hoist::Mapping::Access::kRead)
          .value();
  faulty_ = std::make_unique<FaultyDevice>(*device_);
  host_ = Pattern(options.host_bytes, options.host_bytes);
  Begin();
}

void StreamRig::Begin() {
  StreamerEvents events;
  events.host_used = [this](PlanId plan, LaneGroup group, absl::Duration) {
    const absl::MutexLock lock(&mu_);
    used_[plan].push_back(group);
  };
  events.host_returned = [this](PlanId plan, LaneGroup group) {
    const absl::MutexLock lock(&mu_);
    returned_[plan].push_back(group);
  };
  events.host_wanted = [this](PlanId plan, LaneGroup group) {
    const absl::MutexLock lock(&mu_);
    wanted_[plan].push_back(group);
  };
  events.faulted = [this](PlanId plan, absl::Status why) {
    const absl::MutexLock lock(&mu_);
    faults_[plan].push_back(std::move(why));
  };
  link_ = Link::Create(*faulty_, *clock_, {.trace = trace_}).value();
  streamer_ = std::make_unique<Streamer>(
      StreamerParts{.link = link_.get(), .host = host_}, std::move(events));
}

StreamRig::~StreamRig() {
  faulty_->LetCopiesGo();
  streamer_.reset();
  link_.reset();
}

TestLane StreamRig::Make(const std::vector<uint64_t>& sizes, size_t slots,
                         std::vector<uint32_t> order, uint64_t apart) {
  TestLane lane;
  lane.plan = PlanId(next_plan_++);
  lane.spec.plan = lane.plan;
  const uint64_t place = *std::ranges::max_element(sizes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const uint64_t offset = i % slots * place;
    lane.spec.groups.push_back(
        {{offset, sizes[i]}, device_used_ + offset, sizes[i]});
    lane.host.push_back(host_used_);
    host_used_ += sizes[i] + apart;
  }
  device_used_ += place * slots;
  HOIST_CHECK(host_used_ <= host_.size() &&
              device_used_ <= memory_.span().size());
  if (order.empty()) {
    order.resize(sizes.size());
    std::iota(order.begin(), order.end(), 0);
  }
  lane.spec.order = std::move(order);
  return lane;
}

absl::Status StreamRig::TryOpen(TestLane& lane) {
  return TryOpen(lane, std::nullopt);
}

absl::Status StreamRig::TryOpen(TestLane& lane,
                                std::optional<LaneShare> found) {
  const bool first = !found.has_value();
  std::promise<absl::StatusOr<LaneShare>> opened;
  streamer_->Open(lane.spec, std::move(found),
                  [&](absl::StatusOr<LaneShare> share) {
                    opened.set_value(std::move(share));
                  });
  absl::StatusOr<LaneShare> share = opened.get_future().get();
  if (!share.ok()) return share.status();
  LaneShare& kept = kept_[lane.plan];
  kept.memory = hoist::UniqueFd(fcntl(share->memory.get(), F_DUPFD_CLOEXEC, 0));
  kept.wake = hoist::UniqueFd(fcntl(share->wake.get(), F_DUPFD_CLOEXEC, 0));
  if (!first) return absl::OkStatus();
  lane.client =
      std::make_unique<LaneClient>(*std::move(share), lane.spec.order);
  return absl::OkStatus();
}

void StreamRig::Succeed(const std::vector<TestLane*>& lanes) {
  streamer_.reset();
  link_.reset();
  for (TestLane* lane : lanes) Scribble(*lane);
  Begin();
  for (TestLane* lane : lanes) {
    const absl::Status status =
        TryOpen(*lane, std::move(kept_.extract(lane->plan).mapped()));
    ASSERT_TRUE(status.ok()) << status.ToString();
    for (size_t i = lane->host.size(); i > 0; --i) {
      HostReady(*lane, static_cast<LaneGroup>(i - 1));
    }
  }
}

absl::Status StreamRig::TrySucceed(TestLane& lane) {
  Close(lane.plan);
  return TryOpen(lane, std::move(kept_.extract(lane.plan).mapped()));
}

void StreamRig::Scribble(TestLane& lane) {
  const auto in_use = [&](LaneGroup group) {
    const hoist::lane::GroupWords& words = lane.client->group(group);
    return !hoist::lane::Reached(words.done, words.ready) ||
           words.flag != hoist::lane::kFlagEmpty;
  };
  const auto kept = [&](uint64_t offset) {
    for (LaneGroup group = 0; group < lane.host.size(); ++group) {
      const Slot& slot = lane.spec.groups[group].slot;
      if (in_use(group) && offset >= slot.offset &&
          offset < slot.offset + slot.bytes) {
        return true;
      }
    }
    return false;
  };
  const hoist::Mapping device =
      hoist::Mapping::OfFd(device_->Share(SlabId(1)).value().keep_fd,
                           memory_.span().size(),
                           hoist::Mapping::Access::kReadWrite)
          .value();
  for (const LaneSpec::Streamed& group : lane.spec.groups) {
    for (uint64_t at = 0; at < group.bytes; at += 4096) {
      if (kept(group.slot.offset + at)) continue;
      std::byte* page = device.span().data() + group.device_offset + at;
      std::memset(page, 0x5a, std::min<uint64_t>(4096, group.bytes - at));
    }
  }
}

void StreamRig::Open(TestLane& lane, bool ready) {
  const absl::Status status = TryOpen(lane);
  ASSERT_TRUE(status.ok()) << status.ToString();
  if (!ready) return;
  // The first one last: loads start when all are there.
  for (size_t i = lane.host.size(); i > 0; --i) {
    HostReady(lane, static_cast<LaneGroup>(i - 1));
  }
}

void StreamRig::HostReady(const TestLane& lane, LaneGroup group, bool once) {
  streamer_->HostReady(lane.plan, group,
                       {{lane.host[group], 0, lane.spec.groups[group].bytes}},
                       once);
}

void StreamRig::Close(PlanId plan) {
  std::promise<void> closed;
  streamer_->Close(plan, [&] { closed.set_value(); });
  closed.get_future().get();
}

bool StreamRig::Right(const TestLane& lane, LaneGroup group) const {
  const LaneSpec::Streamed& at = lane.spec.groups[group];
  return std::memcmp(device().data() + at.device_offset,
                     host_.data() + lane.host[group], at.bytes) == 0;
}

absl::Status StreamRig::Step(TestLane& lane, uint64_t position) {
  absl::Status status = lane.client->Stage(position);
  if (!status.ok()) return status;
  const LaneGroup group = lane.client->GroupAt(position);
  if (!Right(lane, group)) {
    return absl::DataLossError(
        absl::StrCat("wrong bytes at position ", position));
  }
  lane.client->Done(position);
  return status;
}

absl::Status StreamRig::StepPlace(TestLane& lane, uint32_t place) {
  absl::Status status = lane.client->StagePlace(place);
  if (!status.ok()) return status;
  if (!Right(lane, lane.spec.order[place])) {
    return absl::DataLossError(absl::StrCat("wrong bytes at place ", place));
  }
  lane.client->DonePlace(place);
  return status;
}

LaneStats StreamRig::Stats(PlanId plan) const {
  for (const LaneStats& stats : streamer_->Stats()) {
    if (stats.plan == plan) return stats;
  }
  return {};
}

int StreamRig::faults(PlanId plan) const {
  const absl::MutexLock lock(&mu_);
  const auto it = faults_.find(plan);
  return it == faults_.end() ? 0 : static_cast<int>(it->second.size());
}
std::optional<absl::Status> StreamRig::fault(PlanId plan) const {
  const absl::MutexLock lock(&mu_);
  const auto it = faults_.find(plan);
  if (it == faults_.end()) return std::nullopt;
  return it->second.front();
}
std::vector<LaneGroup> StreamRig::wanted(PlanId plan) const {
  const absl::MutexLock lock(&mu_);
  const auto it = wanted_.find(plan);
  return it == wanted_.end() ? std::vector<LaneGroup>() : it->second;
}
std::vector<LaneGroup> StreamRig::used(PlanId plan) const {
  const absl::MutexLock lock(&mu_);
  const auto it = used_.find(plan);
  return it == used_.end() ? std::vector<LaneGroup>() : it->second;
}

std::vector<LaneGroup> StreamRig::returned(PlanId plan) const {
  const absl::MutexLock lock(&mu_);
  const auto it = returned_.find(plan);
  return it == returned_.end() ? std::vector<LaneGroup>() : it->second;
}

}  // namespace hoistd::testing
