#include <algorithm>
#include <cstdio>
#include <ctime>
#include <optional>
#include <string>

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
               << " groups did not fit there and stay where they were\n";
  }
}

template <typename Response>
int PrintTotals(const char* verb, const Response& response,
                const Output& output) {
  if (output.json) {
    PrintJson(response, JsonStyle::kPretty, output);
  } else {
    output.out << verb << ' ' << response.groups() << " groups, "
               << HumanBytes(response.bytes()) << '\n';
  }
  return kExitOk;
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

}  // namespace

int Load(Connection& daemon, const v1::LoadRequest& request,
         const Output& output) {
  const auto context = daemon.context(Lasts::kWork);
  const auto stream = daemon.admin().Load(context.get(), request);
  v1::LoadProgress progress;
  std::optional<v1::LoadProgress> last;
  while (stream->Read(&progress)) {
    if (output.json) {
      PrintJson(progress, JsonStyle::kLine, output);
    } else if (output.terminal) {
      output.out << '\r' << ProgressText(progress) << "\x1b[K" << std::flush;
    }
    last = progress;
  }
  if (output.terminal && !output.json && last.has_value()) output.out << '\n';
  const grpc::Status status = daemon.Finish(*context, *stream);
  if (!status.ok()) return daemon.Fail(status, output);
  if (!output.json && last.has_value()) PrintLoaded(*last, request, output);
  return kExitOk;
}

int Check(Connection& daemon, const v1::CheckRequest& request,
          const Output& output) {
  const auto context = daemon.context(Lasts::kWork);
  const auto stream = daemon.admin().Check(context.get(), request);
  v1::CheckProgress progress;
  while (stream->Read(&progress)) {
    if (output.json) {
      PrintJson(progress, JsonStyle::kLine, output);
    } else if (output.terminal) {
      output.out << '\r' << progress.done_groups() << " of "
                 << progress.total_groups() << " groups, "
                 << HumanBytes(progress.read_bytes()) << " read\x1b[K"
                 << std::flush;
    }
  }
  if (output.terminal && !output.json) output.out << '\n';
  const grpc::Status status = daemon.Finish(*context, *stream);
  if (!status.ok()) return daemon.Fail(status, output);
  const int damaged = static_cast<int>(progress.damaged());
  if (output.json) return damaged == 0 ? kExitOk : kExitDamaged;
  for (const v1::CheckFinding& finding : progress.findings()) {
    output.out << Shown(finding.group()) << " on "
               << TierName(finding.tier(), finding.device()) << ": "
               << Shown(finding.what()) << '\n';
  }
  if (damaged > progress.findings_size()) {
    output.out << damaged - progress.findings_size()
               << " more; hoistd's log has them\n";
  }
  output.out << progress.done_groups() << " groups, "
             << HumanBytes(progress.read_bytes()) << " read: "
             << (damaged == 0 ? "all are right"
                              : std::to_string(damaged) + " damaged")
             << '\n';
  return damaged == 0 ? kExitOk : kExitDamaged;
}

int Pin(Connection& daemon, const v1::PinRequest& request,
        const Output& output) {
  const auto context = daemon.context(Lasts::kWork);
  v1::PinResponse response;
  const grpc::Status got =
      daemon.admin().Pin(context.get(), request, &response);
  if (!got.ok()) return daemon.Fail(got, output);
  return PrintTotals("pinned", response, output);
}

int Unpin(Connection& daemon, const v1::UnpinRequest& request,
          const Output& output) {
  const auto context = daemon.context(Lasts::kTimeout);
  v1::UnpinResponse response;
  const grpc::Status got =
      daemon.admin().Unpin(context.get(), request, &response);
  if (!got.ok()) return daemon.Fail(got, output);
  return PrintTotals("unpinned", response, output);
}

int Evict(Connection& daemon, const v1::EvictRequest& request,
          const Output& output) {
  const auto context = daemon.context(Lasts::kWork);
  v1::EvictResponse response;
  const grpc::Status got =
      daemon.admin().Evict(context.get(), request, &response);
  if (!got.ok()) return daemon.Fail(got, output);
  PrintTotals(request.forget() ? "forgot" : "evicted", response, output);
  if (!output.json && response.kept() > 0) {
    output.out << "kept " << response.kept()
               << " groups: " << Shown(response.kept_reason()) << '\n';
  }
  return kExitOk;
}

int Share(Connection& daemon, const v1::SetShareRequest& request,
          const Output& output) {
  const auto context = daemon.context(Lasts::kTimeout);
  v1::SetShareResponse response;
  const grpc::Status got =
      daemon.admin().SetShare(context.get(), request, &response);
  if (!got.ok()) return daemon.Fail(got, output);
  if (output.json) {
    PrintJson(response, JsonStyle::kPretty, output);
  } else {
    const bool loads = request.has_loads_of_device();
    const auto text = [loads](const v1::Share& share) {
      return loads ? CapText(share.max_bytes_per_second()) : ShareText(share);
    };
    output.out << WhoseShare(request) << ": " << text(response.before())
               << " -> " << text(response.after()) << '\n';
  }
  return kExitOk;
}

int Drain(Connection& daemon, const v1::DrainRequest& request,
          const Output& output) {
  const auto context = daemon.context(Lasts::kWork);
  const auto stream = daemon.admin().Drain(context.get(), request);
  v1::DrainProgress progress;
  while (stream->Read(&progress)) {
    if (output.json) {
      PrintJson(progress, JsonStyle::kLine, output);
      continue;
    }
    if (request.resume()) {
      output.out << "takes new work again\n";
      continue;
    }
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
  const grpc::Status status = daemon.Finish(*context, *stream);
  if (!status.ok()) return daemon.Fail(status, output);
  return kExitOk;
}

int Watch(Connection& daemon, const Output& output) {
  const auto context = daemon.context(Lasts::kWork);
  const auto stream = daemon.admin().Watch(context.get(), v1::WatchRequest());
  v1::Event event;
  while (stream->Read(&event)) {
    if (output.json) {
      PrintJson(event, JsonStyle::kLine, output);
      continue;
    }
    output.out << TimeOf(event.at_unix_ms()) << "  " << Shown(event.kind());
    if (!event.model().empty()) output.out << "  " << Shown(event.model());
    if (!event.group().empty()) output.out << '/' << Shown(event.group());
    if (event.tier() != v1::TIER_UNSPECIFIED) {
      output.out << "  " << TierName(event.tier(), event.device());
    }
    if (event.session_id() != 0) {
      output.out << "  session " << event.session_id();
    }
    if (event.bytes() != 0) output.out << "  " << HumanBytes(event.bytes());
    if (!event.detail().empty()) output.out << "  " << Shown(event.detail());
    output.out << std::endl;
  }
  const grpc::Status status = daemon.Finish(*context, *stream);
  if (!status.ok()) return daemon.Fail(status, output);
  return kExitOk;
}

}  // namespace hoist::ctl
