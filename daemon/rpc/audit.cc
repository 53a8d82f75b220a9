#include "daemon/rpc/audit.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/one_line.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

// Quotes client text, and keeps it on one line.
std::string Escaped(absl::string_view text) {
  return absl::StrCat("\"", OneLine(text), "\"");
}

}  // namespace

std::string AuditText(const CopyTotals& totals) {
  std::string text =
      absl::StrCat("groups=", totals.groups, " bytes=", totals.bytes);
  if (totals.kept > 0) absl::StrAppend(&text, " kept=", totals.kept);
  return text;
}

std::string AuditText(const PlanTotals& totals) {
  return absl::StrCat("plans=", totals.asked, " bytes=", totals.asked_bytes,
                      " kept=", totals.kept);
}

std::string AuditText(const LoadProgress& progress) {
  return absl::StrCat("groups=", progress.done_groups,
                      " bytes=", progress.done_bytes,
                      " left_out_groups=", progress.left_out_groups);
}

std::string AuditText(const CheckProgress& progress) {
  return absl::StrCat("groups=", progress.done_groups,
                      " read_bytes=", progress.read_bytes,
                      " damaged=", progress.damaged);
}

std::string AuditText(const ShareChanged& changed) {
  const ShareOptions& before = changed.before;
  const ShareOptions& after = changed.after;
  return absl::StrCat("weight=", before.weight, "->", after.weight,
                      " priority=", before.priority, "->", after.priority,
                      " max_bytes_per_second=", before.max_bytes_per_second,
                      "->", after.max_bytes_per_second);
}

std::string AuditText(const hoist::v1::SessionStatus& ended) {
  return absl::StrCat("client=", Escaped(ended.client_name()),
                      " pid=", ended.pid(), " leases=", ended.leases(),
                      " leased_bytes=", ended.leased_bytes(),
                      " plans=", ended.plans());
}

void AdminAct::Ended(const absl::Status& result,
                     const std::string& changed) const {
  std::string line = absl::StrCat(
      "audit: act=", act_,
      who_.uid.is_tenant() ? " tenant=" : " uid=", ShortName(who_.uid),
      " pid=", who_.pid, " on=", Escaped(on_),
      " result=", absl::StatusCodeToString(result.code()));
  if (!changed.empty()) absl::StrAppend(&line, " ", changed);
  if (!result.ok()) {
    absl::StrAppend(&line, " why=", Escaped(result.message()));
  }
  // The log keeps every line of an admin's (daemon/log). Others could flood it,
  // so theirs are rate-limited.
  if (who_.admin) {
    SPDLOG_INFO("{}", line);
  } else {
    SPDLOG_WARN("{}", line);
  }
}

}  // namespace hoistd
