// Admins' verbs.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/overloaded.h"
#include "daemon/base/status.h"
#include "daemon/engine/engine.h"

namespace hoistd {

void Engine::Accept(AdminCall call) {
  Post([this, call = std::move(call)](Effects& effects) mutable {
    Serve(call, effects);
  });
}

void Engine::Serve(AdminCall& call, Effects& effects) {
  std::visit(
      Overloaded{
          [&](Call<LookArgs>& c) {
            c.args.look(View());
            c.done(absl::OkStatus());
          },
          [&](Call<SleepArgs>& c) { c.done(words_.Sleep(c.args, effects)); },
          [&](Call<WakeArgs>& c) { c.done(words_.WakeUp(c.args)); },
          [&](Call<UnpinArgs>& c) { c.done(Unpin(c.args.which, effects)); },
          [&](Call<EvictArgs>& c) { c.done(Evict(c.args, effects)); },
          [&](Call<SetShareArgs>& c) { c.done(SetShare(c.args)); },
          [&](Call<SetDrainingArgs>& c) {
            node_.SetDraining(c.args.draining, effects);
            c.done(absl::OkStatus());
          },
          [&](Call<SubscribeArgs>& c) {
            const uint64_t id = ++last_id_;
            watchers_[id] = std::move(c.args.on_event);
            c.done(id);
          },
          [&](Call<UnsubscribeArgs>& c) {
            const bool known = watchers_.erase(c.args.subscription) > 0;
            c.done(known ? absl::OkStatus()
                         : absl::NotFoundError("no such subscription"));
          },
          [&](auto& c) { Start(std::move(c), effects); }},
      call);
}

// Memory mapped by a living process cannot be revoked: it would compute with
// the next owner's bytes and not know. So the client is told, and its holdings
// stay its own until it hangs up.
void Engine::Start(Call<EndSessionArgs> call, Effects&) {
  auto& [args, done] = call;
  const SessionId session = args.session;
  absl::Status status = words_.Check(session, args.asker);
  if (!status.ok()) return done(std::move(status));
  if (auto before = ending_.extract(session)) {
    before.mapped()(absl::AbortedError(
        absl::StrCat("somebody else has asked for the end of session ",
                     session.number(), " since, and is told")));
  }
  ending_[session] = std::move(done);
  words_.Say(session, absl::UnavailableError(absl::StrCat(
                          args.asker.admin ? "an admin" : "its user", " (uid ",
                          args.asker.uid.number(),
                          ") has ended this session; what it had is given "
                          "back, and what was in "
                          "use is void. Connect, or attach, again to go on")));
}

// Brings up copies for an admin, kWindow at a time: a session's request never
// waits for more than those.
struct Engine::Bringing {
  static constexpr size_t kWindow = 64;

  std::vector<CopyRef> copies;
  BringArgs how;  // Without copy and request.
  // Called per arrival or refusal.
  absl::AnyInvocable<void(const CopyRef&, absl::Status)> each;
  size_t next = 0;
  size_t open = 0;
  bool posted = false;  // The next requests are posted.
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

void Engine::Start(Call<LoadArgs> call, Effects& effects) {
  auto& [args, done] = call;
  struct State {
    LoadProgress at;
    absl::AnyInvocable<void(const LoadProgress&)> progress;
    Done<LoadProgress> done;
    uint32_t open = 0;
    absl::Status failed;
  };
  const auto spec = node_.copies().SpecOf(args.model);
  if (!spec.ok()) return done(spec.status());
  auto state = std::make_shared<State>();
  state->progress = std::move(args.progress);
  state->done = std::move(done);
  state->at.total_bytes = (*spec)->image_bytes;
  state->at.total_groups = static_cast<uint32_t>((*spec)->groups.size());
  state->open = state->at.total_groups;
  if (state->open == 0) return state->done(state->at);
  std::vector<CopyRef> copies;
  for (uint32_t g = 0; g < state->open; ++g) {
    copies.push_back({{args.model, GroupIndex(g)}, {args.to, false}});
  }
  const auto each = [state, spec = *spec](const CopyRef& copy,
                                          absl::Status status) {
    if (status.ok()) {
      ++state->at.done_groups;
      state->at.done_bytes +=
          spec->groups[copy.key.group.number()]->image_bytes;
      state->progress(state->at);
    } else if (absl::IsResourceExhausted(status)) {
      ++state->at.left_out_groups;
      state->at.left_out_reason = std::string(status.message());
    } else if (state->failed.ok()) {
      state->failed = std::move(status);
    }
    if (--state->open > 0) return;
    if (!state->failed.ok()) return state->done(state->failed);
    state->done(state->at);
  };
  // Groups that only fit by evicting this model's groups are omitted at once;
  // spills of other groups are awaited.
  BringArgs how;
  how.deadline = absl::InfinitePast();
  how.spare = args.model;
  how.urgent = false;
  BringAll(std::move(copies), std::move(how), each, effects);
}

void Engine::Start(Call<PinArgs> call, Effects& effects) {
  auto& [args, done] = call;
  absl::StatusOr<std::vector<CopyRef>> copies =
      node_.picture().Select(args.which, /*existing_only=*/false);
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
      state->totals.bytes += node_.copies().BytesOf(copy.key);
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
  // This request overrides earlier ones.
  for (const CopyRef& copy : *copies) {
    const auto coming = coming_pins_.find(copy);
    if (coming != coming_pins_.end()) coming->second = true;
  }
  BringArgs how;
  how.deadline = Now() + args.deadline;
  how.pin = true;
  BringAll(*std::move(copies), std::move(how), each, effects);
}

absl::StatusOr<CopyTotals> Engine::Unpin(const CopySelector& which,
                                         Effects& effects) {
  HOIST_ASSIGN_OR_RETURN(const std::vector<CopyRef> copies,
                         node_.picture().Select(which, /*existing_only=*/true));
  CopyTotals totals = node_.Unpin(copies, Now(), effects);
  UnpinComing(which, totals);
  return totals;
}

absl::StatusOr<CopyTotals> Engine::Evict(const EvictArgs& args,
                                         Effects& effects) {
  const CopySelector& which = args.which;
  HOIST_ASSIGN_OR_RETURN(const std::vector<CopyRef> copies,
                         node_.picture().Select(which, /*existing_only=*/true));
  if (!args.forget) return node_.Evict(copies, Now(), effects);
  if (!which.group.empty() || which.at.has_value()) {
    return absl::InvalidArgumentError(
        "a model is forgotten whole: name no group and no tier");
  }
  HOIST_ASSIGN_OR_RETURN(const ModelPtr model,
                         node_.tenure().Find(which.asker, which.model));
  CopyTotals totals;
  const auto& groups = model->spec->groups;
  totals.groups = static_cast<uint32_t>(
      std::count_if(groups.begin(), groups.end(),
                    [](const auto& group) { return !IsMissing(*group); }));
  totals.bytes = model->spec->image_bytes;
  HOIST_RETURN_IF_ERROR(node_.Forget(model->id, Now(), effects));
  return totals;
}

void Engine::Ping(Done<void> done) {
  Post([done = std::move(done)](Effects&) mutable { done(absl::OkStatus()); });
}

}  // namespace hoistd
