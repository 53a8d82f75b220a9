// Models by turns: the real Node grants plans to workers that give way, under
// requests of a trace and a stepped clock. Beside it, with the same trace, link
// and device: whole models evicted by last use, static shares, and an oracle
// that evicts the model which is called again last.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::turns_sim_test {

using testing::IsOk;
using testing::kPage;
using testing::NodeRig;

// A page stands for 512 MiB: models of 8 GiB, a device of 40, a link of 50
// GiB/s.
constexpr uint64_t kPages = 16;
constexpr uint64_t kDevicePages = 80;
constexpr double kPagesPerSecond = 100;
constexpr double kPassSeconds = 0.02;
constexpr size_t kModels = 20;

struct Request {
  double at = 0;
  size_t model = 0;
  uint32_t passes = 1;  // Tokens.
};
using Trace = std::vector<Request>;

// $HOIST_TURNS_SECONDS: for tables in RESULTS.md.
double Seconds() {
  const char* text = getenv("HOIST_TURNS_SECONDS");
  return text == nullptr ? 80 : std::atof(text);
}

struct TraceOptions {
  double seconds = Seconds();
  double per_second = 1;
  double skew = 1;   // Of Zipf's law over the models.
  double burst = 1;  // Mean requests of a model in a row, seconds apart.
  uint64_t seed = 1;
};

// Bursts arrive by Poisson's law, as published traces of serverless inference
// have them; a burst's requests follow each other after a second on average.
Trace MakeTrace(const TraceOptions& options) {
  std::mt19937_64 random(options.seed);
  std::vector<double> weights(kModels);
  for (size_t m = 0; m < kModels; ++m) {
    weights[m] = 1 / std::pow(static_cast<double>(m + 1), options.skew);
  }
  std::discrete_distribution<size_t> model(weights.begin(), weights.end());
  std::exponential_distribution<double> gap(options.per_second / options.burst);
  std::geometric_distribution<uint32_t> more(1 / options.burst);
  std::exponential_distribution<double> soon(1.0);
  std::lognormal_distribution<double> passes(3.4, 0.8);
  Trace trace;
  for (double at = gap(random); at < options.seconds; at += gap(random)) {
    const size_t which = model(random);
    double when = at;
    for (uint32_t left = 1 + more(random); left > 0; --left) {
      const double tokens = std::clamp(passes(random), 1.0, 400.0);
      trace.push_back({when, which, static_cast<uint32_t>(tokens)});
      when += soon(random);
    }
  }
  std::sort(trace.begin(), trace.end(),
            [](const Request& a, const Request& b) { return a.at < b.at; });
  return trace;
}

struct Outcome {
  std::vector<double> first_tokens;  // Seconds from the request.
  double moved_pages = 0;
  double unfinished = 0;

  double Quantile(double q) const {
    std::vector<double> sorted = first_tokens;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<size_t>(q * double(sorted.size() - 1))];
  }
  double Mean() const {
    return std::accumulate(first_tokens.begin(), first_tokens.end(), 0.0) /
           static_cast<double>(first_tokens.size());
  }
};

// Workers, one a model, that serve a trace. A policy decides what lies on the
// device.
class Turns {
 public:
  explicit Turns(Trace trace) : trace_(std::move(trace)) {}
  virtual ~Turns() = default;

  Outcome Run() {
    for (const Request& request : trace_) {
      At(request.at, [this, &request] { Arrive(request); });
    }
    while (!events_.empty()) {
      Event next = events_.top();
      events_.pop();
      now_ = next.at;
      next.act();
    }
    for (const Worker& worker : workers_) {
      outcome_.unfinished += static_cast<double>(worker.requests.size());
    }
    return std::move(outcome_);
  }

 protected:
  struct Worker {
    std::deque<Request> requests;  // The first one is served.
    bool runs = false;             // A pass.
    uint32_t passes = 0;           // Of the first request.
    double idle_since = 0;
    uint64_t resident = 0;  // Pages; the rest is copied in each pass.
  };

  // The worker is to begin a pass. Calls Pass, now or later.
  virtual void Need(size_t model) = 0;
  virtual void PassEnded(size_t) {}

  void At(double when, std::function<void()> act) {
    events_.push({when, ++events_made_, std::move(act)});
  }
  void In(double seconds, std::function<void()> act) {
    At(now_ + seconds, std::move(act));
  }
  double now() const { return now_; }
  Worker& worker(size_t model) { return workers_[model]; }

  // When so many pages have been copied, after the copies before them.
  double Copied(double pages) {
    link_free_ = std::max(link_free_, now_) + pages / kPagesPerSecond;
    outcome_.moved_pages += pages;
    return link_free_;
  }
  void Pass(size_t model, uint64_t brought) {
    Worker& one = workers_[model];
    one.runs = true;
    const uint64_t streamed = kPages - one.resident;
    const double ends = std::max(
        now_ + kPassSeconds,
        brought + streamed > 0 ? Copied(static_cast<double>(brought + streamed))
                               : now_);
    At(ends, [this, model] { Ended(model); });
  }
  // The next request of this model after now; infinite if there is none.
  double NextUse(size_t model) const {
    if (!workers_[model].requests.empty()) return now_;
    const auto next = std::find_if(
        trace_.begin() + static_cast<std::ptrdiff_t>(arrived_), trace_.end(),
        [&](const Request& request) { return request.model == model; });
    return next == trace_.end() ? std::numeric_limits<double>::infinity()
                                : next->at;
  }

 private:
  struct Event {
    double at;
    uint64_t number;
    std::function<void()> act;
    bool operator<(const Event& other) const {
      return std::tie(at, number) > std::tie(other.at, other.number);
    }
  };

  void Arrive(const Request& request) {
    ++arrived_;
    Worker& one = workers_[request.model];
    one.requests.push_back(request);
    if (one.requests.size() == 1) Need(request.model);
  }
  void Ended(size_t model) {
    Worker& one = workers_[model];
    one.runs = false;
    one.idle_since = now_;
    if (one.passes++ == 0) {
      outcome_.first_tokens.push_back(now_ - one.requests.front().at);
    }
    if (one.passes == one.requests.front().passes) {
      one.requests.pop_front();
      one.passes = 0;
    }
    PassEnded(model);
    if (!one.requests.empty()) Need(model);
  }

  const Trace trace_;
  size_t arrived_ = 0;
  std::vector<Worker> workers_{kModels};
  std::priority_queue<Event> events_;
  uint64_t events_made_ = 0;
  double now_ = 0;
  double link_free_ = 0;
  Outcome outcome_;
};

// Whole models. `evicts` chooses among idle ones.
class WholeModels : public Turns {
 public:
  using Turns::Turns;

 protected:
  // The greatest is evicted first.
  virtual double Worth(size_t model) = 0;

 private:
  void Need(size_t model) override {
    if (on_device_.contains(model)) return Pass(model, 0);
    while (on_device_.size() == kDevicePages / kPages) {
      std::optional<size_t> goes;
      for (const size_t other : on_device_) {
        if (worker(other).runs || !worker(other).requests.empty()) continue;
        if (!goes.has_value() || Worth(other) > Worth(*goes)) goes = other;
      }
      if (!goes.has_value()) return waiting_.push_back(model);
      on_device_.erase(*goes);
    }
    on_device_.insert(model);
    worker(model).resident = kPages;
    Pass(model, kPages);
  }
  void PassEnded(size_t model) override {
    if (waiting_.empty() || !worker(model).requests.empty()) return;
    const size_t next = waiting_.front();
    waiting_.pop_front();
    Need(next);
  }

  std::set<size_t> on_device_;
  std::deque<size_t> waiting_;
};

class Lru final : public WholeModels {
 public:
  using WholeModels::WholeModels;

 private:
  double Worth(size_t model) override { return -worker(model).idle_since; }
};

class Oracle final : public WholeModels {
 public:
  using WholeModels::WholeModels;

 private:
  double Worth(size_t model) override { return NextUse(model); }
};

class StaticShares final : public Turns {
 public:
  using Turns::Turns;

 private:
  void Need(size_t model) override {
    worker(model).resident = kDevicePages / kModels - 2;  // A ring of two.
    Pass(model,
         std::exchange(brought_[model], true) ? 0 : worker(model).resident);
  }
  std::map<size_t, bool> brought_;
};

// hoistd's Node, and workers that heed it as PyTorch's do.
class Hoist final : public Turns {
 public:
  explicit Hoist(Trace trace) : Turns(std::move(trace)) {
    for (size_t m = 0; m < kModels; ++m) {
      Client& client = clients_.emplace_back();
      client.session = rig_.Open();
      client.model = rig_.AddModel(client.session, "m" + std::to_string(m),
                                   std::vector<uint64_t>(kPages, 1));
    }
    epoch_ = rig_.now;
  }

 private:
  struct Client {
    SessionId session;
    ModelId model;
    std::optional<RequestId> asks;  // For a plan.
    std::optional<PlanGrant> plan;
    std::vector<LeaseId> leases;  // Of residents.
    std::optional<double> idle;  // hoistd asks for the plan, once idle so long.
    bool looks = false;          // A look follows.
  };

  void Need(size_t model) override {
    Client& client = clients_[model];
    if (client.plan.has_value()) return Pass(model, 0);
    if (client.asks.has_value()) return;
    SetTime();
    std::vector<uint32_t> order(kPages);
    std::iota(order.begin(), order.end(), 0u);
    SetPlanArgs args =
        rig_.PlanArgs(client.model, order, 0, absl::Seconds(3600));
    args.gives_way = true;
    client.asks = rig_.SetPlan(client.session, args);
    Follow();
  }

  void SetTime() {
    const absl::Duration by = epoch_ + absl::Seconds(now()) - rig_.now;
    if (by > absl::ZeroDuration()) rig_.Advance(by);
  }

  // Carries out what hoistd has answered and asked.
  void Follow() {
    for (bool more = true; more;) {
      more = false;
      rig_.DoSlabWork();
      for (const GiveWay& ask : rig_.TakeGiveWay()) {
        for (size_t m = 0; m < kModels; ++m) {
          if (!clients_[m].plan || clients_[m].plan->id != ask.plan) continue;
          clients_[m].idle = absl::ToDoubleSeconds(ask.idle);
          more = Consider(m) || more;
        }
      }
      for (size_t m = 0; m < kModels; ++m) more = Answered(m) || more;
    }
    const bool waits =
        std::any_of(clients_.begin(), clients_.end(),
                    [](const Client& one) { return one.asks.has_value(); });
    if (!waits || ticks_) return;
    ticks_ = true;
    In(0.01, [this] {
      ticks_ = false;
      SetTime();
      Follow();
    });
  }

  // Gives way if it is idle for long enough; else looks again.
  bool Consider(size_t model) {
    Client& client = clients_[model];
    if (!client.plan || !client.idle || worker(model).runs) return false;
    const double left = worker(model).idle_since + *client.idle - now();
    if (left > 1e-9) {
      if (std::exchange(client.looks, true)) return false;
      In(left, [this, model] {
        clients_[model].looks = false;
        SetTime();
        if (Consider(model)) Follow();
      });
      return false;
    }
    for (const LeaseId lease : client.leases) {
      EXPECT_THAT(rig_.Release(client.session, lease), IsOk());
    }
    client.leases.clear();
    const PlanId plan = client.plan->id;
    client.plan.reset();
    client.idle.reset();
    EXPECT_THAT(rig_.EndPlan(client.session, plan), IsOk());
    rig_.FreePlan(plan);
    return true;
  }

  bool Answered(size_t model) {
    Client& client = clients_[model];
    if (!client.asks.has_value() || rig_.AnswerTo(*client.asks) == nullptr) {
      return false;
    }
    client.plan = rig_.PlanOf(*client.asks);
    client.asks.reset();
    uint64_t resident = 0, brought = 0;
    for (const PlannedGroup& group : client.plan->groups) {
      if (!group.resident) continue;
      const GroupKey key = {client.model, group.group};
      brought += rig_.Has(key, NodeRig::FirstDevice()) ? 0 : 1;
      ++resident;
      client.leases.push_back(rig_.StageNow(client.session, key));
    }
    worker(model).resident = resident;
    Pass(model, brought);
    return true;
  }

  void PassEnded(size_t model) override {
    if (!clients_[model].idle.has_value()) return;
    SetTime();
    if (Consider(model)) Follow();
  }

  NodeRig rig_{{.host_pages = kModels * kPages + 16,
                .device_pages = {kDevicePages},
                .host_bytes_per_second = kPagesPerSecond * kPage}};
  std::vector<Client> clients_;
  absl::Time epoch_;
  bool ticks_ = false;
};

template <typename Policy>
Outcome Serve(const char* name, const std::vector<Trace>& traces) {
  Outcome all;
  for (const Trace& trace : traces) {
    const Outcome one = Policy(trace).Run();
    EXPECT_EQ(one.unfinished, 0) << name;
    EXPECT_EQ(one.first_tokens.size(), trace.size()) << name;
    all.first_tokens.insert(all.first_tokens.end(), one.first_tokens.begin(),
                            one.first_tokens.end());
    all.moved_pages += one.moved_pages;
  }
  std::printf("| %s | %.3f | %.3f | %.3f | %.1f |\n", name, all.Mean(),
              all.Quantile(0.5), all.Quantile(0.99), all.moved_pages / 2048);
  return all;
}

// Prints the table of four traces.
void Compare(const char* name, TraceOptions options) {
  std::vector<Trace> traces;
  for (options.seed = 1; options.seed <= 4; ++options.seed) {
    traces.push_back(MakeTrace(options));
  }
  std::printf(
      "\n%s\n\n"
      "| policy | first token, mean s | p50 | p99 | TiB copied |\n"
      "| --- | --- | --- | --- | --- |\n",
      name);
  const Outcome oracle = Serve<Oracle>("oracle", traces);
  const Outcome hoist = Serve<Hoist>("hoist", traces);
  Serve<Lru>("whole, least recently used", traces);
  const Outcome shares = Serve<StaticShares>("static shares", traces);
  EXPECT_LE(hoist.Mean(), 1.2 * oracle.Mean());  // 1.12 in long traces.
  EXPECT_LT(hoist.Mean(), shares.Mean());
}

TEST(Turns, SkewedRequests) {
  Compare("skewed", {.per_second = 1, .skew = 1.2});
}

TEST(Turns, BurstyRequests) {
  Compare("bursty", {.per_second = 1, .skew = 0.8, .burst = 6});
}

}  // namespace hoistd::turns_sim_test
