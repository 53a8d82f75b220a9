#include "daemon/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/one_line.h"
#include "daemon/base/status.h"
#include "spdlog/spdlog.h"

namespace hoistd {

std::vector<DeviceInfo> Engine::DevicesOf(const EngineParts& parts) {
  std::vector<DeviceInfo> devices;
  for (const Link* link : parts.mover.links) {
    devices.push_back(link->device().info());
  }
  return devices;
}

NodeOptions Engine::NodeOptionsOf(const EngineParts& parts) {
  NodeOptions options = parts.node;
  options.keeps = parts.keep != nullptr;
  return options;
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(EngineParts parts) {
  parts.mover.threads = parts.threads;
  std::unique_ptr<Engine> engine(new Engine(std::move(parts)));
  engine->mover_ = std::make_unique<Mover>(
      engine->parts_.mover,
      [e = engine.get()](TransferId id, absl::Status status,
                         const TransferResult& result) {
        const absl::Time ended =
            Traces(e->trace()) ? e->Now() : absl::InfinitePast();
        e->Post([e, id, status = std::move(status), result,
                 ended](Effects& effects) {
          --e->moving_;
          e->log_.Ended(id, status, e->Now());
          e->mover_->Finished(id, !status.ok(), ended);
          e->node_.TransferDone(id, status, result, e->Now(), effects);
        });
      });
  HOIST_RETURN_IF_ERROR(engine->StartThreads());
  engine->MakeStreamers();
  engine->Restore();
  if (engine->parts_.keep != nullptr) engine->parts_.keep->Adopted();
  HOIST_ASSIGN_OR_RETURN(engine->running_,
                         ThreadsOr(engine->parts_.threads).Start(*engine));
  return engine;
}

Engine::Engine(EngineParts parts)
    : parts_(std::move(parts)),
      notes_(parts_.notes),
      started_(parts_.clock->Now()),
      node_(NodeOptionsOf(parts_), DevicesOf(parts_)),
      book_(parts_.keep, parts_.mover.host,
            [this](std::string note) { AddNote(std::move(note)); }),
      node_trace_(node_, parts_.mover.trace, parts_.mover.links.size()),
      permits_([this](absl::AnyInvocable<void()> then) {
        Post([then = std::move(then)](Effects&) mutable { then(); });
      }) {}

Engine::~Engine() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  // A load under a cap would take unboundedly long.
  for (Link* link : parts_.mover.links) link->GiveUpImages();
  running_.reset();
  // Streams into slabs must end before the slabs; functions still posted find
  // no thread.
  permits_.Stop();
  streamers_.clear();
  slab_makers_.clear();
}

absl::Status Engine::StartThreads() {
  HOIST_RETURN_IF_ERROR(mover_->StartThreads());
  for (std::unique_ptr<Executor>& opener : openers_) {
    HOIST_ASSIGN_OR_RETURN(opener, ThreadsOr(parts_.threads).MakeExecutor(1));
  }
  return MakeSlabMakers();
}

absl::Status Engine::MakeSlabMakers() {
  for (const Link* link : parts_.mover.links) {
    const DeviceIndex device(static_cast<uint32_t>(slab_makers_.size()));
    SlabMakerEvents events;
    events.made = [this, device](SlabId slab, absl::StatusOr<SlabShare> made) {
      Post([this, device, slab, made = std::move(made)](Effects& effects) {
        log_.SlabMade(device, slab, made.status());
        node_.SlabMade(device, slab, made, Now(), effects);
      });
    };
    events.zeroed = [this, device](SlabId slab, absl::Status zeroed) {
      Post([this, device, slab, zeroed = std::move(zeroed)](Effects& effects) {
        log_.SlabZeroed(device, slab, zeroed);
        node_.SlabZeroed(device, slab, zeroed, Now(), effects);
      });
    };
    events.not_destroyed = [this, device](SlabId slab,
                                          const absl::Status& why) {
      AddNote(absl::StrCat(
          "slab ", slab.number(), " of device ", device.number(),
          " could not be destroyed, which is tried again before the next is "
          "made: ",
          std::string(why.message())));
    };
    HOIST_ASSIGN_OR_RETURN(std::unique_ptr<Executor> thread,
                           ThreadsOr(parts_.threads).MakeExecutor(1));
    slab_makers_.push_back(std::make_unique<SlabMaker>(
        link->device(), std::move(thread), std::move(events)));
  }
  return absl::OkStatus();
}

void Engine::MakeStreamers() {
  for (Link* link : parts_.mover.links) {
    StreamerParts parts;
    parts.link = link;
    parts.host = parts_.mover.host;
    parts.threads = parts_.threads;
    StreamerEvents events;
    events.host_used = [this](PlanId plan, LaneGroup group,
                              absl::Duration step) {
      Post([this, plan, group, step](Effects& effects) {
        HostUsed(plan, group, step, effects);
      });
    };
    events.host_returned = [this](PlanId plan, LaneGroup group) {
      Post([this, plan, group](Effects& effects) {
        HostReturned(plan, group, effects);
      });
    };
    events.host_wanted = [this](PlanId plan, LaneGroup group) {
      Post([this, plan, group](Effects& effects) {
        HostWanted(plan, group, effects);
      });
    };
    events.faulted = [this](PlanId plan, absl::Status why) {
      AddNote(absl::StrCat("plan ", plan.number(),
                           " ended: ", std::string(why.message())));
    };
    streamers_.push_back(std::make_unique<Streamer>(parts, std::move(events)));
    permits_.AddDevice(*link, parts_.threads);
  }
}

NodeFacts Engine::facts() const {
  NodeFacts facts;
  facts.version = parts_.version;
  facts.started = started_;
  facts.devices = parts_.device_views;
  facts.no_in_place = parts_.no_in_place;
  facts.io = parts_.mover.io->info();
  facts.direct_io = parts_.files.mode != ReadMode::kBuffered;
  return facts;
}

void Engine::Post(Event event) {
  absl::MutexLock lock(&mu_);
  events_.push_back(std::move(event));
  changed_.SignalAll();
}

absl::Duration Engine::Turn() {
  Event event;
  {
    absl::MutexLock lock(&mu_);
    saw_stopping_ = stopping_;
    if (!events_.empty()) {
      event = std::move(events_.front());
      events_.pop_front();
    }
  }
  if (event == nullptr) {
    if (saw_stopping_) return TurnOfTheEnd();
    const absl::Duration left = node_.NextDeadline() - Now();
    if (left > absl::ZeroDuration()) return left;
    event = [this](Effects& effects) { node_.Tick(Now(), effects); };
  }
  Handle(event);
  return absl::ZeroDuration();
}

absl::Duration Engine::TurnOfTheEnd() {
  if (moving_ > 0 || opening_ > 0) return absl::InfiniteDuration();
  over_ = pending_.empty() && ending_.empty();
  RefusePending();  // Their callers may send new requests.
  return absl::ZeroDuration();
}

bool Engine::Wait(absl::Duration limit) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return (stopping_ && !saw_stopping_) || !events_.empty();
  };
  if (!ready() && limit > absl::ZeroDuration()) {
    changed_.WaitWithTimeout(&mu_, limit);
  }
  return ready();
}

bool Engine::Stopping() const {
  absl::MutexLock lock(&mu_);
  return stopping_;
}

void Engine::RefusePending() {
  std::map<RequestId, Pending> pending;
  pending.swap(pending_);
  for (auto& [id, request] : pending) {
    request.on_reply({id, absl::UnavailableError("hoistd is stopping")});
  }
  // The next hoistd asks them again.
  for (auto& [session, resuming] : std::exchange(resuming_, {})) {
    AnswerResumed(std::move(resuming));
  }
  for (auto& [session, done] : std::exchange(ending_, {})) {
    done(absl::UnavailableError("hoistd is stopping"));
  }
}

void Engine::Handle(Event& event) {
  const absl::Time begin = Now();
  Effects effects;
  event(effects);
  // Before the memory is used or overwritten.
  WritePersisted();
  Carry(std::move(effects));
  const absl::Duration took = Now() - begin;
  ++handled_;
  if (took > kSlowEvent) {
    ++slow_events_;
    slow_event_times_.Add(took);
  }
  if (Traces(trace())) TellHandled(begin, took);
  longest_event_ = std::max(longest_event_, took);
}

void Engine::Carry(Effects effects) {
  log_.Tell(effects, Now());
  for (const SlabWork& work : effects.slabs) {
    slab_makers_[work.device.number()]->Do(work);
  }
  for (Transfer& transfer : effects.transfers) {
    ++moving_;
    node_trace_.NameGroup(transfer.key);
    mover_->Start(std::move(transfer));
  }
  for (const TransferId id : effects.urgent) mover_->Hurry(id);
  for (const SpillId id : effects.unspill) mover_->Unspill(id);
  for (const ModelId id : effects.forgotten) mover_->DropFiles(id);
  if (SpillStore* store = parts_.mover.store; store != nullptr) {
    for (PublishedCount& model : effects.published) {
      store->NoteModel(model.owner, std::move(model.model), model.groups);
    }
  }
  for (const HeldGroup& held : effects.held) GroupHeld(held);
  for (const CrowdedPlan& crowded : effects.crowded) PlanCrowded(crowded);
  for (const EndedPlan& ended : effects.ended) PlanEnded(ended);
  for (const SlabAsk& ask : effects.asks) words_.Say(ask.session, ask);
  for (const GiveWay& ask : effects.give_way) words_.Say(ask.session, ask);
  for (const NodeEvent& event : effects.events) {
    ReportSpillFailure(event);
    for (auto& [id, watcher] : watchers_) watcher(event);
  }
  for (Answer& answer : effects.answers) {
    const auto found = pending_.find(answer.request);
    if (found == pending_.end()) continue;  // Its session was closed.
    LogAnswer(answer, found->second);
    if (found->second.waits.told) {
      TellAnswered(found->first, found->second, answer.status);
    }
    OnReply on_reply = std::move(found->second.on_reply);
    pending_.erase(found);
    Refused(answer.status);
    on_reply(std::move(answer));
  }
}

// Reports once, until a write succeeds, why published bytes are not on disk:
// their publisher was answered long ago.
void Engine::ReportSpillFailure(const NodeEvent& event) {
  if (event.at != OnDisk()) return;
  if (event.kind == EventKind::kCopyPresent) reported_unsaved_ = false;
  if (event.kind != EventKind::kCopyFailed) return;
  if (std::exchange(reported_unsaved_, true)) return;
  AddNote(absl::StrCat(
      "what is published could not be written to disk.spill_dir, and is tried "
      "again: ",
      event.detail));
}

void Engine::LogAnswer(const Answer& answer, const Pending& asked) {
  if (!spdlog::should_log(spdlog::level::debug)) return;
  const absl::Duration waited = Now() - asked.since;
  if (answer.lease.has_value() && !answer.lease->was_resident) {
    log_.Staged(*answer.lease, node_.copies().NameOf(answer.lease->key),
                asked.session, waited);
  }
  if (answer.plan.has_value()) {
    log_.Planned(*answer.plan, asked.session, waited);
  }
}

RequestId Engine::Await(SessionId session, OnReply on_reply, TracedWait waits) {
  const RequestId id(++last_id_);
  if (Traces(trace())) {
    waits.since = Now();
    new_waits_.push_back(id);
  }
  pending_[id] = {session, std::move(on_reply), Now(), waits};
  return id;
}

void Engine::AddNote(std::string note) {
  // It contains users' names.
  SPDLOG_WARN("{}", absl::CHexEscape(note));
  notes_.Add(std::move(note));
}

void Engine::StoreAgain(Done<void> done) {
  Post([this, done = std::move(done)](Effects&) mutable {
    done(book_.StoreAgain());
  });
}

void Engine::SaveAll(Done<uint64_t> left) {
  Post([this, left = std::move(left)](Effects& effects) mutable {
    left(node_.supply().SaveAll(Now(), effects));
  });
}

void Engine::Resize(TierAt at, PoolSize size) {
  Post([this, at, size](Effects& effects) {
    node_.Resize(at, size, Now(), effects);
  });
}

}  // namespace hoistd
