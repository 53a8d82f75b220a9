// The verbs of admins.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/core/node_explainer.h"
#include "daemon/engine/engine.h"

namespace hoistd {
namespace {

void AddLane(const LaneStats& lane, PlanSnapshot& plan) {
  plan.share = lane.share;
  plan.copied_bytes = lane.copied_bytes;
  plan.bytes_per_second = lane.bytes_per_second;
  plan.loads = lane.loads;
  plan.served_in_place = lane.served_in_place;
  plan.skipped = lane.skipped;
  plan.wasted_loads = lane.wasted_loads;
  plan.host_waits = lane.host_waits;
  plan.captured = lane.captured;
}

}  // namespace

LinkSnapshot Engine::SnapshotLink(DeviceIndex device) const {
  const Link& link = *parts_.mover.links[device.number()];
  LinkSnapshot of;
  of.device = device;
  of.plan_bytes = link.copied_bytes(LinkClass::kPlans);
  of.lease_bytes = link.copied_bytes(LinkClass::kLeases);
  of.background_bytes = link.copied_bytes(LinkClass::kBackground);
  of.bytes_per_second = static_cast<uint64_t>(link.Rate());
  of.read_bytes_per_second = static_cast<uint64_t>(link.ReadRate());
  of.load_max_bytes_per_second = link.load_rate();
  AddCopiers(device, of);
  return of;
}

void Engine::Snapshot(Done<NodeSnapshot> done) {
  Post([this, done = std::move(done)](Effects&) mutable {
    NodeSnapshot snapshot = node_.Snapshot(Now());
    snapshot.counters.slow_events = slow_events_;
    snapshot.counters.longest_event = longest_event_;
    for (size_t i = 0; i < parts_.mover.links.size(); ++i) {
      snapshot.links.push_back(
          SnapshotLink(DeviceIndex(static_cast<uint32_t>(i))));
      for (CopierSnapshot& copier : snapshot.links.back().copiers) {
        for (const SessionSnapshot& session : snapshot.sessions) {
          if (session.id != copier.session) continue;
          copier.client_name = session.client_name;
        }
      }
      snapshot.counters.host_to_device_bytes +=
          snapshot.links.back().plan_bytes;
    }
    for (const std::unique_ptr<Streamer>& streamer : streamers_) {
      for (const LaneStats& lane : streamer->Stats()) {
        for (PlanSnapshot& plan : snapshot.plans) {
          if (plan.id == lane.plan) AddLane(lane, plan);
        }
      }
    }
    done(std::move(snapshot));
  });
}

void Engine::Explain(Peer asker, std::string model, std::string group,
                     Done<ModelExplanation> done) {
  Post([this, asker = std::move(asker), model = std::move(model),
        group = std::move(group), done = std::move(done)](Effects&) mutable {
    done(NodeExplainer(node_, Now()).Explain(asker, model, group));
  });
}

// Copies that are brought up for an admin, kWindow at a time: what a session
// asks meanwhile never waits for more than those.
struct Engine::Bringing {
  static constexpr size_t kWindow = 64;

  std::vector<CopyRef> copies;
  BringArgs how;  // But for the copy and the request.
  // Called as each arrives or is refused.
  absl::AnyInvocable<void(const CopyRef&, absl::Status)> each;
  size_t next = 0;
  size_t open = 0;
  bool posted = false;  // More of them are about to be asked for.
};

void Engine::Bring(std::shared_ptr<Bringing> all, Effects& effects) {
  all->posted = false;
  if (Stopping()) {
    while (all->next < all->copies.size()) {
      all->each(all->copies[all->next++],
                absl::UnavailableError("hoistd is stopping"));
    }
    return;
  }
  while (all->next < all->copies.size() && all->open < Bringing::kWindow) {
    const CopyRef copy = all->copies[all->next++];
    BringArgs bring = all->how;
    bring.copy = copy;
    ++all->open;
    bring.request =
        Await(SessionId(),
              [this, all, copy](Answer answer) {
                --all->open;
                if (!all->posted && all->open < Bringing::kWindow / 2) {
                  all->posted = true;
                  Post([this, all](Effects& more) { Bring(all, more); });
                }
                all->each(copy, std::move(answer.status));
              },
              {.kind = TraceKind::kBring,
               .key = copy.key,
               .device = copy.place.at.device});
    node_.Bring(bring, Now(), effects);
  }
}

void Engine::BringAll(
    std::vector<CopyRef> copies, BringArgs how,
    absl::AnyInvocable<void(const CopyRef&, absl::Status)> each,
    Effects& effects) {
  auto all = std::make_shared<Bringing>();
  all->copies = std::move(copies);
  all->how = std::move(how);
  all->each = std::move(each);
  Bring(std::move(all), effects);
}

void Engine::Load(ModelId model, TierAt to,
                  absl::AnyInvocable<void(const LoadProgress&)> progress,
                  Done<LoadProgress> done) {
  Post([this, model, to, progress = std::move(progress),
        done = std::move(done)](Effects& effects) mutable {
    struct State {
      LoadProgress at;
      absl::AnyInvocable<void(const LoadProgress&)> progress;
      Done<LoadProgress> done;
      std::shared_ptr<const ModelSpec> spec;
      uint32_t open = 0;
      absl::Status failed;
    };
    absl::StatusOr<std::shared_ptr<const ModelSpec>> spec = node_.SpecOf(model);
    if (!spec.ok()) return done(spec.status());
    auto state = std::make_shared<State>();
    state->progress = std::move(progress);
    state->done = std::move(done);
    state->spec = *spec;
    state->at.total_bytes = state->spec->image_bytes;
    state->at.total_groups = static_cast<uint32_t>(state->spec->groups.size());
    state->open = state->at.total_groups;
    if (state->open == 0) return state->done(state->at);
    std::vector<CopyRef> copies;
    for (uint32_t g = 0; g < state->open; ++g) {
      copies.push_back({{model, GroupIndex(g)}, {to, false}});
    }
    const auto each = [state](const CopyRef& copy, absl::Status status) {
      if (status.ok()) {
        ++state->at.done_groups;
        state->at.done_bytes +=
            state->spec->groups[copy.key.group.number()]->image_bytes;
        state->progress(state->at);
      } else if (absl::IsResourceExhausted(status)) {
        ++state->at.left_out_groups;
      } else if (state->failed.ok()) {
        state->failed = std::move(status);
      }
      if (--state->open > 0) return;
      if (!state->failed.ok()) return state->done(state->failed);
      state->done(state->at);
    };
    // Groups that would need another group of this model to leave are left
    // out at once; spills of others are waited for.
    BringArgs how;
    how.deadline = absl::InfinitePast();
    how.spare = model;
    how.urgent = false;
    BringAll(std::move(copies), std::move(how), each, effects);
  });
}

void Engine::Pin(CopySelector which, absl::Duration deadline,
                 Done<CopyTotals> done) {
  Post([this, which = std::move(which), deadline,
        done = std::move(done)](Effects& effects) mutable {
    absl::StatusOr<std::vector<CopyRef>> copies =
        node_.Select(which, /*existing_only=*/false);
    if (!copies.ok()) return done(copies.status());
    struct State {
      CopyTotals totals;
      Done<CopyTotals> done;
      size_t open = 0;
      absl::Status failed;
    };
    auto state = std::make_shared<State>();
    state->done = std::move(done);
    state->open = copies->size();
    if (state->open == 0) return state->done(state->totals);
    const auto each = [this, state](const CopyRef& copy, absl::Status status) {
      if (status.ok()) {
        ++state->totals.groups;
        state->totals.bytes += node_.BytesOf(copy.key);
      } else if (state->failed.ok()) {
        state->failed = std::move(status);
      }
      if (--state->open > 0) return;
      if (!state->failed.ok()) {
        return state->done(Annotate(
            state->failed,
            absl::StrCat("pinned ", state->totals.groups, " groups, then")));
      }
      state->done(state->totals);
    };
    // By this word, whatever an earlier one was.
    for (const CopyRef& copy : *copies) {
      const auto coming = coming_pins_.find(copy);
      if (coming != coming_pins_.end()) coming->second = true;
    }
    BringArgs how;
    how.deadline = Now() + deadline;
    how.pin = true;
    BringAll(*std::move(copies), std::move(how), each, effects);
  });
}

void Engine::Unpin(CopySelector which, Done<CopyTotals> done) {
  Post([this, which = std::move(which),
        done = std::move(done)](Effects& effects) mutable {
    absl::StatusOr<std::vector<CopyRef>> copies =
        node_.Select(which, /*existing_only=*/true);
    if (!copies.ok()) return done(copies.status());
    CopyTotals totals = node_.Unpin(*copies, Now(), effects);
    UnpinComing(which, totals);
    done(totals);
  });
}

void Engine::Evict(CopySelector which, bool forget, Done<CopyTotals> done) {
  Post([this, which = std::move(which), forget,
        done = std::move(done)](Effects& effects) mutable {
    absl::StatusOr<std::vector<CopyRef>> copies =
        node_.Select(which, /*existing_only=*/true);
    if (!copies.ok()) return done(copies.status());
    if (!forget) return done(node_.Evict(*copies, Now(), effects));
    if (!which.group.empty() || which.at.has_value()) {
      return done(absl::InvalidArgumentError(
          "a model is forgotten whole: name no group and no tier"));
    }
    absl::StatusOr<ModelPtr> model = node_.Find(which.asker, which.model);
    if (!model.ok()) return done(model.status());
    CopyTotals totals;
    totals.groups = static_cast<uint32_t>((*model)->spec->groups.size());
    totals.bytes = (*model)->spec->image_bytes;
    absl::Status forgotten = node_.Forget((*model)->id, Now(), effects);
    if (!forgotten.ok()) return done(std::move(forgotten));
    done(totals);
  });
}

void Engine::SetDraining(bool draining, DoneStatus done) {
  Post([this, draining, done = std::move(done)](Effects& effects) mutable {
    node_.SetDraining(draining, effects);
    done(absl::OkStatus());
  });
}

void Engine::Ping(DoneStatus done) {
  Post([done = std::move(done)](Effects&) mutable { done(absl::OkStatus()); });
}

void Engine::Subscribe(absl::AnyInvocable<void(const NodeEvent&)> on_event,
                       Done<uint64_t> done) {
  Post([this, on_event = std::move(on_event),
        done = std::move(done)](Effects&) mutable {
    const uint64_t id = ++last_id_;
    watchers_[id] = std::move(on_event);
    done(id);
  });
}

void Engine::Unsubscribe(uint64_t subscription, DoneStatus done) {
  Post([this, subscription, done = std::move(done)](Effects&) mutable {
    const bool known = watchers_.erase(subscription) > 0;
    done(known ? absl::OkStatus()
               : absl::NotFoundError("no such subscription"));
  });
}

}  // namespace hoistd
