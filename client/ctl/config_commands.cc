// What hoistd.toml says, and having it read again.
#include <string>
#include <vector>

#include "client/ctl/calls.h"
#include "client/ctl/commands.h"
#include "client/ctl/table.h"
#include "client/ctl/text.h"
#include "hoist/shared/nearest.h"

namespace hoist::ctl {
namespace {

// Whether `key` is what is asked for, or in that table.
bool Within(const std::string& key, const std::string& asked) {
  if (asked.empty() || key == asked) return true;
  return key.rfind(asked + ".", 0) == 0;
}

int NoSuchKey(const v1::GetConfigResponse& all, const std::string& key,
              const Output& output) {
  std::vector<std::string> names;
  for (const v1::ConfigSetting& one : all.settings()) {
    names.push_back(one.key());
  }
  const std::string nearest = NearestName(key, names);
  WriteError(output, "NOT_FOUND",
             "there is no key \"" + key + "\"; " +
                 (nearest.empty() ? "`hoistctl config` lists them"
                                  : "did you mean " + nearest + "?"));
  return kExitRefused;
}

}  // namespace

int ShowConfig(Connection& daemon, const std::string& key,
               const Output& output) {
  v1::GetConfigResponse all, asked;
  const grpc::Status got =
      Call(daemon, Lasts::kTimeout, &v1::Admin::Stub::GetConfig, {}, &all);
  if (!got.ok()) return daemon.Fail(got, output);
  for (const v1::ConfigSetting& one : all.settings()) {
    if (Within(one.key(), key)) *asked.add_settings() = one;
  }
  if (asked.settings().empty()) return NoSuchKey(all, key, output);
  if (output.json) {
    PrintJson(asked, JsonStyle::kPretty, output);
    return kExitOk;
  }
  Table table({"KEY", "VALUE", "COMES TO", "FROM"});
  bool pending = false;
  for (const v1::ConfigSetting& one : asked.settings()) {
    table.Add({Shown(one.key()), Shown(one.value()), Shown(one.comes_to()),
               Shown(one.source())});
    if (one.pending().empty()) continue;
    pending = true;
    table.Add({"", Shown(one.pending()), "", "after a restart"});
  }
  table.Print(output.out);
  if (pending) output.out << "a restart of hoistd takes over what is new\n";
  return kExitOk;
}

int Reload(Connection& daemon, const Output& output) {
  return Ask(
      daemon, Lasts::kTimeout, &v1::Admin::Stub::Reload, {}, output,
      [&](const v1::ReloadResponse& response) {
        for (const std::string& key : response.changed()) {
          output.out << "changed: " << Shown(key) << '\n';
        }
        for (const std::string& key : response.needs_restart()) {
          output.out << "needs a restart: " << Shown(key) << '\n';
        }
        if (response.changed().empty() && response.needs_restart().empty()) {
          output.out << "nothing has changed\n";
        }
      });
}

int SetLogLevel(Connection& daemon, const std::string& level,
                const Output& output) {
  v1::SetLogLevelRequest request;
  request.set_level(level);
  return Ask(daemon, Lasts::kTimeout, &v1::Admin::Stub::SetLogLevel, request,
             output, [&](const v1::SetLogLevelResponse&) {
               output.out << "hoistd logs what is " << level
                          << " or graver, until "
                          << "log.level is read again\n";
             });
}

}  // namespace hoist::ctl
