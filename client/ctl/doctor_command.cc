#include <optional>
#include <string>
#include <vector>

#include "client/ctl/calls.h"
#include "client/ctl/commands.h"
#include "client/ctl/disk_rate.h"
#include "client/ctl/text.h"

namespace hoist::ctl {
namespace {

constexpr char kDisk[] = "disk rate";

v1::Finding DiskFinding(const std::vector<std::string>& where) {
  v1::Finding finding;
  finding.set_what(kDisk);
  finding.set_state(v1::Finding::STATE_GOOD);
  const std::string path = LargestModel(where);
  const std::optional<DiskRate> rate =
      path.empty() ? std::nullopt : MeasureDisk(path);
  if (!rate.has_value()) {
    finding.set_found(
        path.empty() ? "no model to read below models.roots; name a file or "
                       "folder with --disk"
                     : path + " cannot be read");
    return finding;
  }
  finding.set_found(HumanBytes(rate->bytes_per_second) + "/s, by " +
                    HumanBytes(rate->bytes) + " of " + rate->path +
                    (rate->direct ? "" : ", page cache included"));
  return finding;
}

}  // namespace

int Doctor(Connection& daemon, const DoctorOptions& options,
           const Output& output) {
  v1::ExamineResponse response;
  const grpc::Status got =
      Call(daemon, Lasts::kTimeout, &v1::Admin::Stub::Examine, {}, &response);
  if (!got.ok()) return daemon.Fail(got, output);
  if (options.tries_disk) {
    const std::vector<std::string> roots(response.model_roots().begin(),
                                         response.model_roots().end());
    *response.add_findings() = DiskFinding(
        options.disk.empty() ? roots : std::vector<std::string>{options.disk});
  }
  int degraded = 0;
  size_t widest = 0;
  for (const v1::Finding& finding : response.findings()) {
    if (finding.state() == v1::Finding::STATE_DEGRADED) ++degraded;
    widest = std::max(widest, Columns(finding.what()));
  }
  if (output.json) {
    PrintJson(response, JsonStyle::kPretty, output);
    return degraded == 0 ? kExitOk : kExitDamaged;
  }
  for (const v1::Finding& finding : response.findings()) {
    const bool good = finding.state() != v1::Finding::STATE_DEGRADED;
    const std::string pad(widest - Columns(finding.what()), ' ');
    output.out << (good ? "good      " : "DEGRADED  ") << Shown(finding.what())
               << pad << "  " << Shown(finding.found()) << '\n';
    if (!good) {
      output.out << std::string(12 + widest, ' ') << "-> "
                 << Shown(finding.cure()) << '\n';
    }
  }
  return degraded == 0 ? kExitOk : kExitDamaged;
}

}  // namespace hoist::ctl
