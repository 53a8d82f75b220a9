#include "tests/sim/system/sim_plan.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/system/mutant.h"
#include "tests/sim/system/violation.h"

namespace hoistd::sim {
namespace {

// As a worker is told of the model; of its tensors no more than is looked at.
hoist::ModelTable TableOf(const Model& model) {
  std::vector<hoist::GroupEntry> groups;
  for (const auto& group : model.spec->groups) {
    groups.push_back({.name = group->name, .image_bytes = group->image_bytes});
  }
  auto table = hoist::ModelTable::Create({.id = model.id.number()}, groups);
  if (!table.ok()) Violation(Check::kProtocol, table.status().message());
  return std::move(table).value();
}

// As the session server sends it.
hoist::PlanGrant MessageOf(const PlanGrant& grant) {
  hoist::PlanGrant message;
  message.info.id = grant.id.number();
  for (const PlannedGroup& group : grant.groups) {
    message.groups.push_back(
        {.group = group.group.number(),
         .resident = group.resident,
         .offset_bytes = grant.ring_offset + group.slot.offset,
         .slot_bytes = group.slot.bytes});
  }
  return message;
}

}  // namespace

SimPlan::SimPlan(OpenedPlan opened, ModelPtr model, std::vector<uint32_t> order,
                 bool on_cpu, Kernels kernels)
    : model_(std::move(model)),
      order_(std::move(order)),
      on_cpu_(on_cpu),
      kernels_(std::move(kernels)),
      grant_(std::move(opened.grant)),
      streams_(on_cpu),
      table_(TableOf(*model_)) {
  auto layout = hoist::CheckPlan(MessageOf(grant_), *table_, order_);
  if (!layout.ok()) Violation(Check::kProtocol, layout.status().message());
  layout_ = std::move(layout).value();
  if (layout_.streamed.empty()) return;
  hoist::PlanLane::Options options;
  options.groups = static_cast<uint32_t>(layout_.streamed.size());
  options.order = layout_.order;
  auto view = hoist::LaneView::Map(opened.lane, options.groups,
                                   static_cast<uint32_t>(options.order.size()));
  if (!view.ok()) Violation(Check::kProtocol, view.status().message());
  view_.emplace(std::move(view).value());
  auto lane = hoist::PlanLane::Create(opened.lane, std::move(opened.wake),
                                      std::move(options), &streams_);
  if (!lane.ok()) Violation(Check::kProtocol, lane.status().message());
  lane_ = std::move(lane).value();
  turns_.emplace(*lane_, streams_, layout_, *table_);
}

std::optional<uint32_t> SimPlan::LaneOf(uint32_t group) const {
  for (uint32_t i = 0; i < layout_.streamed.size(); ++i) {
    if (layout_.streamed[i].group == group) return i;
  }
  return std::nullopt;
}

uint64_t SimPlan::OffsetOf(uint32_t group) const {
  return layout_.streamed[*LaneOf(group)].offset_bytes;
}

bool SimPlan::MayStage() const {
  if (lane_ == nullptr || Waits()) return false;
  // PlanLane would wait for room in the ring of requests.
  const hoist::lane::Header& header = view_->header();
  return header.head.load() - header.tail.load() < hoist::lane::kRequests;
}

hoist::Status SimPlan::Stage(uint32_t group, uint64_t number) {
  const uint32_t lane = *LaneOf(group);
  const hoist::cuda::Stream stream = StreamOf(number);
  if (hoist::Status s = turns_->Stage(lane, stream); !s.ok()) return s;
  if (on_cpu_ && !turns_->turn(lane).ready) {
    if (auto s = lane_->Await(lane, turns_->turn(lane)); !s.ok()) return s;
    turns_->Came(lane);  // By the time that this worker does anything else.
  }
  staged_.push_back(group);
  staged_on_.push_back(number);
  streams_.Launch(stream, [this, group] { kernels_.begin(group); });
  return {};
}

hoist::Status SimPlan::Done(size_t n) {
  const uint32_t group = staged_[n];
  const hoist::cuda::Stream stream = StreamOf(staged_on_[n]);
  staged_.erase(staged_.begin() + static_cast<std::ptrdiff_t>(n));
  staged_on_.erase(staged_on_.begin() + static_cast<std::ptrdiff_t>(n));
  const auto end = [this, group] { kernels_.end(group); };
  if (TheMutation().Shows(Mutant::kEarlyDone)) {
    hoist::Status done = turns_->Done(*LaneOf(group), stream);
    // Long enough for others to take the place.
    for (int i = 0; i < 200; ++i) streams_.Launch(stream, [] {});
    streams_.Launch(stream, end);
    return done;
  }
  if (on_cpu_) {
    end();
  } else {
    streams_.Launch(stream, end);
  }
  return turns_->Done(*LaneOf(group), stream);
}

void SimPlan::LeaveInAnotherForm() {
  view_->header().adoption.store(hoist::lane::kAdoption + 1);
}

std::string SimPlan::Words() const {
  if (lane_ == nullptr) return "no lane";
  const hoist::lane::Header& header = view_->header();
  std::string text = absl::StrCat(
      "cursor ", header.cursor.load(), ", want ", header.want.load(),
      ", requests ", header.tail.load(), " of ", header.head.load());
  for (uint32_t g = 0; g < layout_.streamed.size(); ++g) {
    const hoist::lane::GroupWords& words = view_->group(g);
    absl::StrAppend(&text, "; ready ", words.ready.load(), " done ",
                    words.done.load(), " flag ", words.flag.load(), " ",
                    words.done_flag.load());
  }
  return text;
}

bool SimPlan::MayCapture() const {
  return MayStage() && !on_cpu_ && idle() && !lane_->captured();
}

hoist::Status SimPlan::Capture() {
  hoist::Status status;
  streams_.BeginCapture(1);
  for (const uint32_t group : order_) {
    if (!LaneOf(group).has_value() || !status.ok()) continue;
    status = Stage(group, 0);
    if (status.ok()) status = Done(staged_.size() - 1);
  }
  streams_.EndCapture();
  return status;
}

}  // namespace hoistd::sim
