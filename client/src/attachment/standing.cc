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

uint64_t BytesOf(const std::map<uint32_t, std::unique_ptr<Lease>>& leases) {
  uint64_t bytes = 0;
  for (const auto& [group, lease] : leases) bytes += lease->grant().image_bytes;
  return bytes;
}

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

Result<Attachment::StandingPtr> Attachment::StandBy(const PlanTerms& terms,
                                                    StandingPtr before,
                                                    Clock::time_point until) {
  milliseconds pause = kFirstPause;
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(
        std::max(until - Clock::now(), Clock::duration::zero()));
    Result<StandingPtr> made = Stand(terms, std::move(before), left);
    if (made.ok()) return made;
    const Code code = made.status().code();
    if (code != Code::kUnavailable && code != Code::kAborted) return made;
    if (Clock::now() >= until) return NotBack(wait_, made.status());
    std::this_thread::sleep_for(std::min(pause, left));
    pause = std::min(2 * pause, kLongestPause);
  }
}

// If only the plan has ended, the session stays.
Result<Attachment::StandingPtr> Attachment::Stand(
    const PlanTerms& terms, StandingPtr before,
    std::optional<milliseconds> deadline) {
  StandingPtr at = std::move(before);
  if (at != nullptr) at->GiveBack();
  if (at == nullptr || !at->session->Check().ok()) {
    at = std::make_unique<Standing>();
    Result<std::shared_ptr<Session>> connected = connect_(deadline);
    if (!connected.ok()) return connected.status();
    at->session = std::move(connected).value();
    if (Status s = FindModel(*at); !s.ok()) return s;
  }
  if (Status s = CheckOptions(*at->session, plan_options_); !s.ok()) return s;
  if (Status s = HoldResidents(*at); !s.ok()) return s;
  if (Status s = MakePlan(*at, terms); !s.ok()) return s;
  return at;
}

Status Attachment::FindModel(Standing& at) {
  Result<HeldModel> found = source_.Find(*at.session, first_.get());
  if (!found.ok()) return found.status();
  at.model = std::move(found).value();
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

Status Attachment::HoldResidents(Standing& at) {
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

Status Attachment::MakePlan(Standing& at, const PlanTerms& terms) {
  Result<uint64_t> budget = PlanBudget(at, terms.budget);
  if (!budget.ok()) return budget.status();
  Result<std::vector<uint32_t>> order = PlanOrder(at, terms.order);
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
  return at.plan->SignalOn(event_.get());
}

// Without the residents; an unknown one stays unknown if there are none.
Result<std::vector<uint32_t>> Attachment::PlanOrder(
    const Standing& at, std::span<const uint32_t> order) const {
  std::vector<uint32_t> numbers;
  if (order.empty() && residents_.empty()) return numbers;
  std::vector<uint32_t> all(order.begin(), order.end());
  if (all.empty()) {
    all.resize(at.number.size());
    std::iota(all.begin(), all.end(), 0);
  }
  for (const uint32_t group : all) {
    if (group >= at.number.size()) return at.model.table->CheckGroup(group);
    if (at.Resident(group) == nullptr) numbers.push_back(at.number[group]);
  }
  if (!numbers.empty()) return numbers;
  return Status(Code::kInvalidArgument,
                "all groups of the order are residents; leave one to the plan, "
                "or give no residents and a budget that holds all");
}

Result<uint64_t> Attachment::PlanBudget(const Standing& at,
                                        uint64_t budget) const {
  const uint64_t held = BytesOf(at.residents);
  if (budget == 0 || budget > held) return budget == 0 ? 0 : budget - held;
  return Status(Code::kResourceExhausted,
                "a budget of " + std::to_string(budget) +
                    " bytes is too small: its residents have " +
                    std::to_string(held) +
                    " bytes, and the plan needs room for other groups; raise "
                    "it, or name fewer residents");
}

}  // namespace hoist
