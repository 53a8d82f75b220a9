#include <algorithm>
#include <cstdio>
#include <ctime>
#include <ostream>
#include <string>

#include "client/ctl/calls.h"
#include "client/ctl/commands.h"
#include "client/ctl/text.h"

namespace hoist::ctl {
namespace {

// "[######----]  60 %  54.1 MiB of 90.9 MiB, 4 of 8 groups".
std::string ProgressText(const v1::LoadProgress& progress) {
  constexpr uint64_t kWidth = 24;
  const uint64_t total = progress.total_bytes();
  const uint64_t done = std::min(progress.done_bytes(), total);
  const uint64_t percent = total == 0 ? 100 : done / (total / 100.0);
  const uint64_t filled = percent * kWidth / 100;
  return "[" + std::string(filled, '#') + std::string(kWidth - filled, '-') +
         "] " + std::to_string(percent) + " %  " + HumanBytes(done) + " of " +
         HumanBytes(total) + ", " + std::to_string(progress.done_groups()) +
         " of " + std::to_string(progress.total_groups()) + " groups";
}

void PrintLoaded(const v1::LoadProgress& last, const v1::LoadRequest& request,
                 const Output& output) {
  const v1::Model& model = last.model();
  const v1::Tier tier =
      request.tier() == v1::TIER_UNSPECIFIED ? v1::TIER_HOST : request.tier();
  output.out << "loaded " << Shown(model.name()) << " to "
             << TierName(tier, request.device()) << ": "
             << HumanBytes(last.done_bytes()) << ", " << last.done_groups()
             << " of " << last.total_groups() << " groups, fingerprint "
             << Hex(model.fingerprint()) << '\n';
  if (last.left_out_groups() > 0) {
    output.out << last.left_out_groups()
               << " groups did not fit there and stay where they were: "
               << Shown(last.left_out_reason()) << '\n';
  }
}

void PrintChecked(const v1::CheckProgress& last, const Output& output) {
  const int damaged = static_cast<int>(last.damaged());
  for (const v1::CheckFinding& finding : last.findings()) {
    output.out << Shown(finding.group()) << " on "
               << TierName(finding.tier(), finding.device()) << ": "
               << Shown(finding.what()) << '\n';
  }
  if (damaged > last.findings_size()) {
    output.out << damaged - last.findings_size()
               << " more; hoistd's log has them\n";
  }
  output.out << last.done_groups() << " groups, "
             << HumanBytes(last.read_bytes()) << " read: "
             << (damaged == 0 ? "all are right"
                              : std::to_string(damaged) + " damaged")
             << '\n';
}

template <typename Response>
void PrintTotals(const char* verb, const Response& response,
                 const Output& output) {
  output.out << verb << ' ' << response.groups() << " groups, "
             << HumanBytes(response.bytes()) << '\n';
}

void PrintDraining(const v1::DrainProgress& progress, const Output& output) {
  output.out << (progress.drained() ? "drained: " : "draining: ")
             << progress.leases() << " leases left" << std::endl;
  for (const v1::SessionStatus& holder : progress.holders()) {
    output.out << "  session " << holder.id() << " ("
               << Shown(holder.client_name()) << ", pid "
               << ProcessText(holder.pid()) << ", user "
               << UserName(holder.tenant(), holder.uid())
               << "): " << holder.leases() << " leases, "
               << HumanBytes(holder.leased_bytes()) << std::endl;
  }
}

std::string WhoseShare(const v1::SetShareRequest& request) {
  switch (request.of_case()) {
    case v1::SetShareRequest::kLoadsOfDevice:
      return "loads of device " + std::to_string(request.loads_of_device());
    case v1::SetShareRequest::kPermitId:
      return "permit " + std::to_string(request.permit_id());
    default:
      return "plan " + std::to_string(request.plan_id());
  }
}

std::string TimeOf(uint64_t unix_ms) {
  const std::time_t seconds = static_cast<std::time_t>(unix_ms / 1000);
  std::tm local = {};
  localtime_r(&seconds, &local);
  char text[16];
  std::strftime(text, sizeof(text), "%H:%M:%S", &local);
  char all[24];
  std::snprintf(all, sizeof(all), "%s.%03d", text,
                static_cast<int>(unix_ms % 1000));
  return all;
}

void PrintEvent(const v1::Event& event, std::ostream& out) {
  out << TimeOf(event.at_unix_ms()) << "  " << Shown(event.kind());
  if (!event.model().empty()) out << "  " << Shown(event.model());
  if (!event.group().empty()) out << '/' << Shown(event.group());
  if (event.tier() != v1::TIER_UNSPECIFIED) {
    out << "  " << TierName(event.tier(), event.device());
  }
  if (event.session_id() != 0) out << "  session " << event.session_id();
  if (event.bytes() != 0) out << "  " << HumanBytes(event.bytes());
  if (!event.detail().empty()) out << "  " << Shown(event.detail());
  out << std::endl;
}

}  // namespace

int Load(Connection& daemon, const v1::LoadRequest& request,
         const Output& output) {
  v1::LoadProgress last;
  const int exit = Follow(
      daemon, &v1::Admin::Stub::Load, request, output, last,
      [&](const v1::LoadProgress& progress) {
        if (!output.terminal) return;
        output.out << '\r' << ProgressText(progress) << "\x1b[K" << std::flush;
      },
      output.terminal ? "\n" : "");
  if (exit == kExitOk && !output.json) PrintLoaded(last, request, output);
  return exit;
}

int Check(Connection& daemon, const v1::CheckRequest& request,
          const Output& output) {
  v1::CheckProgress last;
  const int exit = Follow(
      daemon, &v1::Admin::Stub::Check, request, output, last,
      [&](const v1::CheckProgress& progress) {
        if (!output.terminal) return;
        output.out << '\r' << progress.done_groups() << " of "
                   << progress.total_groups() << " groups, "
                   << HumanBytes(progress.read_bytes()) << " read\x1b[K"
                   << std::flush;
      },
      output.terminal ? "\n" : "");
  if (exit != kExitOk) return exit;
  if (!output.json) PrintChecked(last, output);
  return last.damaged() == 0 ? kExitOk : kExitDamaged;
}

int Pin(Connection& daemon, const v1::PinRequest& request,
        const Output& output) {
  return Ask(daemon, Lasts::kWork, &v1::Admin::Stub::Pin, request, output,
             [&](const v1::PinResponse& response) {
               PrintTotals("pinned", response, output);
             });
}

int Unpin(Connection& daemon, const v1::UnpinRequest& request,
          const Output& output) {
  return Ask(daemon, Lasts::kTimeout, &v1::Admin::Stub::Unpin, request, output,
             [&](const v1::UnpinResponse& response) {
               PrintTotals("unpinned", response, output);
             });
}

int Evict(Connection& daemon, const v1::EvictRequest& request,
          const Output& output) {
  return Ask(
      daemon, Lasts::kWork, &v1::Admin::Stub::Evict, request, output,
      [&](const v1::EvictResponse& response) {
        PrintTotals(request.forget() ? "forgot" : "evicted", response, output);
        if (response.kept() == 0) return;
        output.out << "kept " << response.kept()
                   << " groups: " << Shown(response.kept_reason()) << '\n';
      });
}

int Share(Connection& daemon, const v1::SetShareRequest& request,
          const Output& output) {
  return Ask(daemon, Lasts::kTimeout, &v1::Admin::Stub::SetShare, request,
             output, [&](const v1::SetShareResponse& response) {
               const auto text = [&](const v1::Share& share) {
                 return request.has_loads_of_device()
                            ? CapText(share.max_bytes_per_second())
                            : ShareText(share);
               };
               output.out << WhoseShare(request) << ": "
                          << text(response.before()) << " -> "
                          << text(response.after()) << '\n';
             });
}

int Sleep(Connection& daemon, const v1::SleepRequest& request,
          const Output& output) {
  return Ask(daemon, Lasts::kTimeout, &v1::Admin::Stub::Sleep, request, output,
             [&](const v1::SleepResponse& response) {
               output.out << "asked " << response.asked_plans() << " plans for "
                          << HumanBytes(response.asked_bytes()) << '\n';
               if (response.kept_plans() == 0) return;
               output.out << response.kept_plans() << " plans do not give way: "
                          << HumanBytes(response.kept_bytes()) << '\n';
             });
}

int Wake(Connection& daemon, const v1::WakeRequest& request,
         const Output& output) {
  return Ask(daemon, Lasts::kTimeout, &v1::Admin::Stub::Wake, request, output,
             [&](const v1::WakeResponse&) {
               output.out << "asked session " << request.session_id()
                          << " to wake\n";
             });
}

int Drain(Connection& daemon, const v1::DrainRequest& request,
          const Output& output) {
  v1::DrainProgress last;
  return Follow(daemon, &v1::Admin::Stub::Drain, request, output, last,
                [&](const v1::DrainProgress& progress) {
                  if (request.resume()) {
                    output.out << "takes new work again\n";
                  } else {
                    PrintDraining(progress, output);
                  }
                });
}

int Watch(Connection& daemon, const Output& output) {
  v1::Event last;
  return Follow(daemon, &v1::Admin::Stub::Watch, v1::WatchRequest(), output,
                last,
                [&](const v1::Event& event) { PrintEvent(event, output.out); });
}

}  // namespace hoist::ctl
