#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/ctl/calls.h"
#include "client/ctl/commands.h"
#include "client/ctl/loans.h"
#include "client/ctl/picture.h"
#include "client/ctl/table.h"
#include "client/ctl/text.h"
#include "google/protobuf/message.h"

namespace hoist::ctl {
namespace {

constexpr size_t kMostRows = 10;

struct Sample {
  v1::NodeStatus status;
  v1::ListPlansResponse plans;
  v1::ListSessionsResponse sessions;
};

grpc::Status Take(Connection& daemon, Sample& sample) {
  using Stub = v1::Admin::Stub;
  grpc::Status got =
      Call(daemon, Lasts::kTimeout, &Stub::Status, {}, &sample.status);
  if (!got.ok()) return got;
  got = Call(daemon, Lasts::kTimeout, &Stub::ListPlans, {}, &sample.plans);
  if (!got.ok()) return got;
  return Call(daemon, Lasts::kTimeout, &Stub::ListSessions, {},
              &sample.sessions);
}

// What has grown from one sample to the next, a second.
class Rates {
 public:
  Rates(const Sample& before, const Sample& now)
      : before_(before.status),
        now_(now.status),
        // Another hoistd's counters begin anew.
        seconds_(
            now_.uptime_ms() > before_.uptime_ms()
                ? static_cast<double>(now_.uptime_ms() - before_.uptime_ms()) /
                      1000
                : 0) {}

  uint64_t Of(uint64_t before, uint64_t now) const {
    if (seconds_ == 0 || now < before) return 0;
    return static_cast<uint64_t>(static_cast<double>(now - before) / seconds_);
  }
  v1::Counters Counters() const {
    v1::Counters rates;
    const google::protobuf::Reflection& fields = *rates.GetReflection();
    for (int i = 0; i < rates.GetDescriptor()->field_count(); ++i) {
      const auto* field = rates.GetDescriptor()->field(i);
      fields.SetUInt64(&rates, field,
                       Of(fields.GetUInt64(before_.counters(), field),
                          fields.GetUInt64(now_.counters(), field)));
    }
    rates.clear_longest_event_us();  // A maximum has no rate.
    return rates;
  }
  std::string Bytes(uint64_t before, uint64_t now) const {
    return HumanBytes(Of(before, now)) + "/s";
  }
  const v1::LinkStatus* LinkBefore(uint32_t device) const {
    for (const v1::LinkStatus& link : before_.links()) {
      if (link.device() == device) return &link;
    }
    return nullptr;
  }

 private:
  const v1::NodeStatus& before_;
  const v1::NodeStatus& now_;
  const double seconds_;
};

void PrintRates(const Sample& before, const Sample& now, std::ostream& out) {
  const Rates rates(before, now);
  for (const v1::LinkStatus& link : now.status.links()) {
    const v1::LinkStatus* was = rates.LinkBefore(link.device());
    if (was == nullptr) continue;
    out << "link of device " << link.device() << ": "
        << rates.Bytes(was->plan_bytes(), link.plan_bytes()) << " for plans, "
        << rates.Bytes(was->lease_bytes(), link.lease_bytes())
        << " for who waits, "
        << rates.Bytes(was->background_bytes(), link.background_bytes())
        << " in the background, " << HumanBytes(link.read_bytes_per_second())
        << "/s read in place; by workers "
        << rates.Bytes(was->own_bytes(), link.own_bytes()) << " to the device, "
        << rates.Bytes(was->own_read_bytes(), link.own_read_bytes())
        << " from it\n";
  }
  PrintCounters(rates.Counters(), "/s", out);
}

// The largest first, and no more than fit a screen.
template <typename Row, typename By>
std::vector<Row> Largest(const google::protobuf::RepeatedPtrField<Row>& rows,
                         By by) {
  std::vector<Row> sorted(rows.begin(), rows.end());
  std::ranges::stable_sort(sorted, std::greater<>(), by);
  if (sorted.size() > kMostRows) sorted.resize(kMostRows);
  return sorted;
}

void PrintRows(const Sample& now, std::ostream& out) {
  Table plans(
      {">PLAN", "CLIENT", "MODEL", ">DEVICE", ">NOW", ">A PASS", ">RESIDENT"});
  for (const v1::PlanStatus& plan :
       Largest(now.plans.plans(), &v1::PlanStatus::bytes_per_second)) {
    plans.Add({std::to_string(plan.id()), Shown(plan.client_name()),
               Shown(plan.model()), std::to_string(plan.device()),
               HumanBytes(plan.bytes_per_second()) + "/s",
               HumanBytes(plan.streamed_bytes()),
               HumanBytes(plan.resident_bytes())});
  }
  Table sessions(
      {">SESSION", "CLIENT", ">PID", ">USER", ">LEASED", ">WAITING"});
  for (const v1::SessionStatus& session :
       Largest(now.sessions.sessions(), &v1::SessionStatus::leased_bytes)) {
    sessions.Add({std::to_string(session.id()), Shown(session.client_name()),
                  ProcessText(session.pid()),
                  UserName(session.tenant(), session.uid()),
                  HumanBytes(session.leased_bytes()),
                  std::to_string(session.waiting())});
  }
  for (const Table* table : {&plans, &sessions}) {
    if (table->empty()) continue;
    out << '\n';
    table->Print(out);
  }
  PrintLoans(now.plans.loans(), out);
}

}  // namespace

int Top(Connection& daemon, const TopOptions& options, const Output& output) {
  constexpr char kHomeAndClear[] = "\x1b[H\x1b[J";
  const uint64_t count = options.count > 0 ? options.count
                         : output.terminal ? UINT64_MAX
                                           : 1;
  Sample before;
  if (const grpc::Status got = Take(daemon, before); !got.ok()) {
    return daemon.Fail(got, output);
  }
  for (uint64_t shown = 0; shown < count; ++shown) {
    std::this_thread::sleep_for(options.every);
    Sample now;
    if (const grpc::Status got = Take(daemon, now); !got.ok()) {
      return daemon.Fail(got, output);
    }
    if (output.json) {
      PrintJson(now.status, JsonStyle::kLine, output);
      continue;
    }
    if (output.terminal) output.out << kHomeAndClear;
    PrintHead(now.status, output.out);
    output.out << '\n';
    PrintTiers(now.status, output.out);
    output.out << '\n';
    PrintRates(before, now, output.out);
    PrintRows(now, output.out);
    output.out << std::flush;
    before = std::move(now);
  }
  return kExitOk;
}

}  // namespace hoist::ctl
