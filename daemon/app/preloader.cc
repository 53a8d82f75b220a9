#include "daemon/app/preloader.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"
#include "daemon/types/tier.h"

namespace hoistd {
namespace {

constexpr absl::Duration kFirstPause = absl::Seconds(1);
constexpr absl::Duration kLongestPause = absl::Minutes(1);
constexpr absl::Duration kPinDeadline = absl::Seconds(10);

// Whether a retry may succeed: files may appear, and space may become free.
bool MayPass(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kInternal:
      return true;
    default:
      return false;
  }
}

TierAt TierOf(const PreloadConfig& model) {
  if (model.tier == PreloadConfig::Tier::kHost) return OnHost();
  return OnDevice(DeviceIndex(model.device));
}

}  // namespace

Preloader::Preloader(EngineApi& engine, IoHelpers& io_helpers,
                     std::function<void(std::string)> note)
    : engine_(engine), io_helpers_(io_helpers), note_(std::move(note)) {}

absl::Status Preloader::Start() {
  HOIST_ASSIGN_OR_RETURN(thread_, StartThread([this] { Run(); }));
  return absl::OkStatus();
}

Preloader::~Preloader() {
  {
    const absl::MutexLock lock(&state_->mu);
    state_->ends = true;
    state_->changed.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Preloader::State::Set(absl::Status status) {
  const absl::MutexLock lock(&mu);
  outcome = std::move(status);
}

void Preloader::Want(const std::vector<PreloadConfig>& models) {
  State& state = *state_;
  const absl::MutexLock lock(&state.mu);
  std::vector<Item> items;
  for (const PreloadConfig& model : models) {
    const auto known = std::ranges::find(state.items, model, &Item::model);
    items.push_back(known == state.items.end() ? Item{model} : *known);
  }
  state.items = std::move(items);
  ++state.version;
  state.changed.SignalAll();
}

void Preloader::Run() {
  State& state = *state_;
  const MonotonicClock clock;
  absl::Duration pause = kFirstPause;
  while (true) {
    uint64_t seen = 0;
    {
      const absl::MutexLock lock(&state.mu);
      seen = state.version;
    }
    const bool all = TryAll();
    const absl::MutexLock lock(&state.mu);
    const absl::Time end = all ? absl::InfiniteFuture() : clock.Now() + pause;
    while (!state.ends && state.version == seen && clock.Now() < end) {
      state.changed.WaitWithTimeout(&state.mu, end - clock.Now());
    }
    if (state.ends) return;
    pause = state.version != seen ? kFirstPause
                                  : std::min(2 * pause, kLongestPause);
  }
}

bool Preloader::TryAll() {
  State& state = *state_;
  std::vector<PreloadConfig> models;
  {
    const absl::MutexLock lock(&state.mu);
    for (const Item& item : state.items) {
      if (!item.over) models.push_back(item.model);
    }
  }
  bool all = true;
  for (const PreloadConfig& model : models) {
    const absl::Status status = Load(model);
    if (absl::IsCancelled(status)) return false;
    const bool again = !status.ok() && MayPass(status);
    all = all && !again;
    const std::string why(status.message());
    {
      const absl::MutexLock lock(&state.mu);
      const auto item = std::ranges::find(state.items, model, &Item::model);
      if (item == state.items.end()) continue;  // No longer configured.
      item->over = !again;
      if (status.ok() || item->told == why) continue;
      item->told = why;
    }
    note_(absl::StrCat("models.preload: ", model.path, ": ", why,
                       again ? "; it is tried again" : ""));
  }
  return all;
}

absl::Status Preloader::Load(const PreloadConfig& model) {
  State& state = *state_;
  {
    const absl::MutexLock lock(&state.mu);
    state.outcome.reset();
  }
  Peer self;
  self.uid = User(geteuid());
  self.pid = getpid();
  self.admin = true;
  self.via = "hoistd";
  LoadWish wish;
  wish.path = model.path;
  wish.name = model.name;
  wish.to = TierOf(model);
  BringUp(
      engine_, {.roots = {"/"}, .io_helpers = &io_helpers_}, self,
      "models.preload", std::move(wish), [](const LoadProgress&) {},
      [&engine = engine_, self, model,
       shared = state_](absl::StatusOr<BroughtUp> loaded) {
        if (!loaded.ok()) return shared->Set(loaded.status());
        Loaded(engine, self, model, shared, *std::move(loaded));
      });
  const absl::MutexLock lock(&state.mu);
  const auto known = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu) {
    return state.ends || state.outcome.has_value();
  };
  state.mu.Await(absl::Condition(&known));
  return state.ends ? absl::CancelledError("hoistd ends") : *state.outcome;
}

void Preloader::Loaded(EngineApi& engine, const Peer& self,
                       const PreloadConfig& model,
                       const std::shared_ptr<State>& state, BroughtUp loaded) {
  const LoadProgress& last = loaded.progress;
  SPDLOG_INFO("models.preload: {} is loaded to {}: {}, {} of {} groups",
              loaded.model->spec->name, ToString(TierOf(model)),
              HumanBytes(last.done_bytes), last.done_groups, last.total_groups);
  if (last.left_out_groups > 0) {
    return state->Set(absl::ResourceExhaustedError(absl::StrCat(
        last.left_out_groups, " of its groups have no room there")));
  }
  if (!model.pin) return state->Set(absl::OkStatus());
  CopySelector which;
  which.model = loaded.model->spec->name;
  which.at = TierOf(model);
  which.asker = self;
  engine.Ask(
      PinArgs{std::move(which), kPinDeadline},
      [state](absl::StatusOr<CopyTotals> done) { state->Set(done.status()); });
}

}  // namespace hoistd
