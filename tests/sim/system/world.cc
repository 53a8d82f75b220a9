#include "tests/sim/system/world.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/check.h"
#include "daemon/core/device_space.h"

namespace hoistd::sim {
namespace {

// More than links nap, and than what goes on needs to come to rest.
constexpr uint64_t kMostNaps = 20'000;
constexpr uint64_t kManyTurns = 20'000;
constexpr uint64_t kMostTurns = 100'000;
// More than daemon/stream/lane.cc's.
constexpr absl::Duration kLaneLag = absl::Milliseconds(1);

}  // namespace

WorldOptions::WorldOptions(const Step& first) {
  const auto [a, b, c] = first.with;
  host_pages = 12 + a % 40;
  device_pages = {8 + b % 24};
  if (b % 3 == 0) device_pages.push_back(6 + a % 17);
  slab_pages = 1 + c % 6;
  kind = c % 2 == 0 ? DeviceKind::kEmulated : DeviceKind::kCuda;
  readers = a % 2 == 0 ? Readers::kOwner : Readers::kEveryone;
  users_share = b % 5 != 0;
  quotas = c % 3 == 0;
  keeps = a / 2 % 2 == 0;
  few_descriptors = c / 12 % 4 == 0;
  if (c / 6 % 2 == 0) in_place_pages = 12 + (a + b) % 40;
}

World::World(const Step& first, const SimModels& models)
    : options_(first),
      models_(models),
      host_memory_((options_.host_pages + 1) * kPage) {
  const auto address = reinterpret_cast<uintptr_t>(host_memory_.data());
  host_ = std::span(host_memory_)
              .subspan((kPage - address % kPage) % kPage,
                       options_.host_pages * kPage);
  MakeDevices();
  life_ = std::make_unique<Life>(PartsOfLife());
  life_->Begin();
  engine_ = life_->engine.get();
}

World::~World() = default;

LifeParts World::PartsOfLife() {
  LifeParts parts;
  parts.clock = &clock_;
  parts.pump = [this] { return Pump(); };
  parts.on_host_write = [this](std::span<const std::byte> host) {
    HostWritten(host);
  };
  parts.host = host_;
  for (const auto& device : devices_) parts.devices.push_back(device.get());
  if (options_.keeps) parts.store = &store_;
  NodeOptions& node = parts.node;
  node.host_capacity_bytes = host_.size();
  node.slab_bytes = options_.slab_pages * kPage;
  node.default_readers = options_.readers;
  node.users_share_devices = options_.users_share;
  node.quota.each.published_bytes = host_.size() / 4;
  if (options_.few_descriptors) node.apart_descriptors = 14;
  if (options_.quotas) {
    QuotaLimits& each = node.quota.each;
    each.sessions = 2;
    each.plans = 2;
    each.models = 3;
    each.held_bytes = host_.size() / 3;
    each.device_bytes = {options_.device_pages[0] * kPage / 2};
  }
  return parts;
}

void World::MakeDevices() {
  std::vector<uint64_t> pages = options_.device_pages;
  if (options_.in_place_pages > 0) pages.push_back(options_.in_place_pages);
  for (size_t i = 0; i < pages.size(); ++i) {
    SimDeviceOptions device;
    device.index = DeviceIndex(static_cast<uint32_t>(i));
    device.kind =
        i < options_.device_pages.size() ? options_.kind : DeviceKind::kInPlace;
    if (options_.kind == DeviceKind::kCuda) device.backing = Backing::kVmm;
    device.granularity = kPage;
    device.total_bytes = pages[i] * kPage;
    device.span_bytes =
        DeviceSpace::SpanFor(device.total_bytes, device.granularity);
    device.keeps = options_.keeps;
    SimDeviceEvents events;
    events.on_write = [this](DeviceIndex at, uint64_t offset, uint64_t bytes) {
      Written(at, offset, bytes);
    };
    events.on_destroy = [this](DeviceIndex at, const SlabSpec& slab) {
      Destroyed(at, slab);
    };
    devices_.push_back(
        std::make_unique<SimDevice>(device, clock_, std::move(events)));
  }
}

void World::Do(const Step& step) {
  clock_.Advance(absl::Microseconds(1));
  if (step.op >= Op::kKill && step.op <= Op::kResume) {
    if (!Useful(step.op)) return;
    if (step.op == Op::kKill) Kill(step.with);
    if (step.op == Op::kBegin) Begin(step.with);
    if (step.op == Op::kResume) Resume(step.with);
  } else if (step.op < Op::kOpen) {
    Progress(step.op, step.with);
  } else if (step.op < Op::kLoad) {
    Work(step.op, step.with);
  } else if (engine_ != nullptr) {
    Admin(step.op, step.with);
  }
  if (engine_ != nullptr) CheckBooks();
}

bool World::Round() {
  bool any = false;
  turned_ = false;
  SimThreads& threads = life_->threads;
  for (size_t i = 0; i < threads.loops(); ++i) {
    if (!threads.Due(i)) continue;
    threads.Turn(i);
    turned_ = true;
    if (i < life_->links.size()) continue;
    any = true;
    ++turns_[0];
  }
  for (size_t i = 0; i < threads.executors(); ++i) {
    if (!threads.HasTask(i)) continue;
    threads.RunTask(i);
    any = true;
    ++turns_[1];
  }
  for (const auto& device : devices_) {
    if (!device->busy()) continue;
    device->Step();
    any = true;
    ++turns_[2];
  }
  if (life_->io.under_way() > 0) {
    life_->io.End(0, absl::OkStatus());
    any = true;
    ++turns_[3];
  }
  RoundOfStreams(any);
  return any;
}

void World::RoundOfStreams(bool& any) {
  for (auto& [number, worker] : workers_) {
    for (auto& [id, entry] : worker->plans) {
      for (uint64_t s = 0; s < SimStreams::kStreams; ++s) {
        if (!entry.plan->CanStep(s)) continue;
        entry.plan->Step(s);
        any = true;
        ++turns_[4];
      }
    }
  }
}

void World::GoesOn() {
  const absl::Time deadline = engine_ == nullptr
                                  ? absl::InfiniteFuture()
                                  : engine_->node().NextDeadline();
  Violation(
      Check::kProgress,
      absl::StrCat("it goes on and on, and comes to no rest; open: ",
                   absl::StrJoin(open_, ", "), "; the node's deadline in ",
                   absl::FormatDuration(deadline - clock_.Now()),
                   "; had turns: engine ", turns_[0], ", tasks ", turns_[1],
                   ", devices ", turns_[2], ", reads ", turns_[3], ", streams ",
                   turns_[4], Picture()));
}

bool World::Pump() {
  clock_.Advance(absl::Microseconds(1));
  if (Round()) {
    if (++pumped_ > 10 * kMostTurns) GoesOn();
    naps_ = 0;
    return true;
  }
  if (++naps_ > kMostNaps) return false;
  if (turned_) return true;
  const absl::Time next = life_->threads.NextDue();
  if (next == absl::InfiniteFuture()) return false;
  clock_.AdvanceTo(next);
  return true;
}

// Links nap, so that something is always due. What nobody brings on in minutes
// will not come.
void World::Rest() {
  const absl::Time began = clock_.Now();
  absl::Time last = began;
  for (uint64_t idle = 0, turns = 0;; ++idle) {
    clock_.Advance(absl::Microseconds(1));
    // Some who wait may take each other's places until one of them gives up.
    if (++turns > kManyTurns) {
      if (getenv("HOIST_SIM_STRICT") != nullptr) GoesOn();
      clock_.Advance(absl::Milliseconds(10));
    }
    if (turns > kMostTurns) GoesOn();
    if (Round() || AnswerSlabAsks()) {
      last = clock_.Now();
      idle = 0;
      continue;
    }
    const bool waits = engine_->node().NextDeadline() < absl::InfiniteFuture();
    // What is asked of a lane in captured form is believed after a while.
    const bool looked = idle > 16 && clock_.Now() - last > kLaneLag;
    if (looked && open_.empty() && !waits) return;
    // Some things are looked after now and then, for as long as they last.
    if (open_.empty() && clock_.Now() - began > absl::Hours(1)) return;
    if (clock_.Now() - last > absl::Seconds(600)) break;
    // At first all that is due has its turn when it is; then much later.
    const absl::Time next = life_->threads.NextDue();
    const absl::Duration most =
        idle < 40 ? absl::Milliseconds(5) : absl::Seconds(1);
    clock_.AdvanceTo(std::min(next, clock_.Now() + most));
    if (idle >= 40) clock_.Advance(absl::Milliseconds(500));
  }
  if (open_.empty()) return;
  Violation(Check::kAnswer,
            absl::StrCat("not answered in ten minutes: ",
                         absl::StrJoin(open_, ", "), Picture()));
}

void World::Finish() {
  ResumeAll();
  Rest();
  CheckBooks();
  PlansGoOn();
  InPlaceSettles();
  GiveAllBack();
  engine_ = nullptr;
  life_->engine.reset();
  life_->links.clear();
  life_.reset();
  if (!open_.empty()) {
    Violation(Check::kAnswer,
              "a request outlived the engine: " + absl::StrJoin(open_, ", "));
  }
}

}  // namespace hoistd::sim
