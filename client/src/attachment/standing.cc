// Making what stands: at first, and after hoistd's end.
#include "client/src/attachment/standing.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "client/src/session/request_checks.h"

namespace hoist {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{10}, kLongestPause{500};
constexpr milliseconds kWait{60'000};

Status NotBack(milliseconds waited, const Status& why) {
  return Status(
      Code::kUnavailable,
      "hoistd has ended, and none took its place in " +
          std::to_string(waited.count()) +
          " ms; start it (systemd and hoist-keeper do so by themselves), and "
          "call again: " +
          why.message());
}

}  // namespace

Renewer::Renewer(const hoist_attachment_options& options, Connect connect,
                 ModelSource source)
    : source_(std::move(source)),
      connect_(std::move(connect)),
      plan_options_(*options.plan),
      wait_(options.renew_deadline_ms > 0
                ? milliseconds(options.renew_deadline_ms)
                : kWait),
      residents_(options.residents,
                 options.residents + options.resident_count) {
  std::sort(residents_.begin(), residents_.end());
  residents_.erase(std::unique(residents_.begin(), residents_.end()),
                   residents_.end());
}

Result<StandingPtr> Renewer::StandBy(const PlanTerms& terms,
                                     StandingPtr& before,
                                     Clock::time_point until) {
  milliseconds pause = kFirstPause;
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(
        std::max(until - Clock::now(), Clock::duration::zero()));
    Result<StandingPtr> made = Stand(terms, before, left);
    if (made.ok()) return made;
    const Code code = made.status().code();
    if (code != Code::kUnavailable && code != Code::kAborted) return made;
    if (Clock::now() >= until) return NotBack(wait_, made.status());
    std::this_thread::sleep_for(std::min(pause, left));
    pause = std::min(2 * pause, kLongestPause);
  }
}

// If only the plan has ended, the session stays.
Result<StandingPtr> Renewer::Stand(const PlanTerms& terms, StandingPtr& before,
                                   std::optional<milliseconds> deadline) {
  StandingPtr at;
  if (before != nullptr && before->session->Check().ok()) {
    at = std::move(before);
    at->GiveBack();
  } else {
    Result<std::shared_ptr<Session>> connected = connect_(deadline);
    if (!connected.ok()) return connected.status();
    before.reset();  // The next plan needs the room.
    std::shared_ptr<Session> made = std::move(connected).value();
    std::shared_ptr<void> open(nullptr, [made](void*) { made->Close(); });
    at = std::make_unique<Standing>(
        Standing::Begin{std::move(made), std::move(open), {}});
  }
  Status made = Make(*at, terms);
  if (made.ok()) {
    at->made = false;
    if (first_ == nullptr) {
      first_ = at->model.table;
      on_cpu_ = at->on_cpu(plan_options_.device);
    }
    return at;
  }
  at->GiveBack();
  // Without the session, hoistd may drop the model.
  if (first_ != nullptr && !at->number.empty()) before = std::move(at);
  return made;
}

Status Renewer::Make(Standing& at, const PlanTerms& terms) {
  if (Status s = FindModel(at); !s.ok()) return s;
  if (Status s = CheckOptions(*at.session, plan_options_); !s.ok()) return s;
  if (first_ != nullptr && at.on_cpu(plan_options_.device) != on_cpu_) {
    return Status(Code::kFailedPrecondition,
                  "hoistd was started again, and its device " +
                      std::to_string(plan_options_.device) +
                      " is of another kind now; put the old one back, or free "
                      "the attachment and attach anew");
  }
  if (Status s = HoldResidents(at); !s.ok()) return s;
  return MakePlan(at, terms);
}

Status Renewer::FindModel(Standing& at) {
  if (!at.number.empty()) return Status();
  if (at.model.table == nullptr) {
    Result<HeldModel> found = source_.Find(*at.session, first_.get(), &at.made);
    if (!found.ok()) return found.status();
    at.model = std::move(found).value();
  }
  if (first_ == nullptr) {
    at.number.resize(at.model.table->groups().size());
    std::iota(at.number.begin(), at.number.end(), 0);
    return Status();
  }
  Result<std::vector<uint32_t>> numbers = Renumber(*first_, *at.model.table);
  if (!numbers.ok()) return numbers.status();
  at.number = std::move(numbers).value();
  return Status();
}

Status Renewer::HoldResidents(Standing& at) {
  for (const uint32_t group : residents_) {
    if (Status s = at.model.table->CheckGroup(group); !s.ok()) return s;
    Result<LeaseGrant> lease =
        at.session->Stage(*at.model.table, at.number[group],
                          plan_options_.device, SpaceDeadline(plan_options_));
    if (!lease.ok()) return lease.status();
    at.residents[group] = std::make_unique<Lease>(
        at.session, HeldModel{at.model.table, at.session->Hold(at.model.table)},
        std::move(lease).value());
  }
  return Status();
}

Status Renewer::MakePlan(Standing& at, const PlanTerms& terms) {
  Result<uint64_t> budget = at.PlanBudget(terms.budget);
  if (!budget.ok()) return budget.status();
  Result<std::vector<uint32_t>> order = at.PlanOrder(terms.order);
  if (!order.ok()) return order.status();
  PlanTerms own{*budget, std::move(order).value(), terms.learn};
  hoist_plan_options options = WithTerms(plan_options_, own);
  std::vector<uint32_t> blocks(plan_options_.block_of.size());
  if (blocks.size() == at.number.size()) {  // Else hoistd refuses them.
    for (size_t g = 0; g < blocks.size(); ++g) {
      blocks[at.number[g]] = plan_options_.block_of[g];
    }
  }
  options.blocks = blocks.data();
  // The residents were taken out of an order that is not known yet.
  if (terms.learn && terms.order.empty() && !own.order.empty()) {
    options.learn = 1;
  }
  Result<std::unique_ptr<Plan>> plan =
      Plan::Create(at.session, at.session->Hold(at.model.table), options);
  if (!plan.ok()) return plan.status();
  at.plan = std::move(plan).value();
  if (events_.wake) at.session->plans().WatchWakes(&at, events_.wake);
  return at.plan->SignalOn(events_.event);
}

}  // namespace hoist
