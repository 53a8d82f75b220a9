#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "client/ctl/calls.h"
#include "client/ctl/commands.h"
#include "client/ctl/features.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/model_name.h"
#include "client/ctl/whole_file.h"
#include "google/protobuf/struct.pb.h"

namespace hoist::ctl {
namespace {

// So that one pass that takes long, or a restart, costs nothing.
constexpr int kPassesUntilExpiry = 3;

struct Found {
  Labels labels;
  int models = 0;
  int left_out = 0;
};

int Find(Connection& daemon, const FeaturesOptions& options, Found* found,
         const Output& output) {
  v1::NodeStatus status;
  grpc::Status got =
      Call(daemon, Lasts::kTimeout, &v1::Admin::Stub::Status, {}, &status);
  if (!got.ok()) return daemon.Fail(got, output);
  v1::ListModelsResponse models;
  got =
      Call(daemon, Lasts::kTimeout, &v1::Admin::Stub::ListModels, {}, &models);
  if (!got.ok()) return daemon.Fail(got, output);
  found->labels = RoomLabels(status);
  const std::set<uint32_t> on_host = DevicesOnHost(status);
  const auto told = ModelsToTell(models, options.all);
  for (const v1::ModelSummary& model : told) {
    if (found->labels.size() >= options.labels) break;
    v1::ListGroupsRequest request;
    request.set_model(NameFor(geteuid(), model));
    v1::ListGroupsResponse groups;
    got = Call(daemon, Lasts::kTimeout, &v1::Admin::Stub::ListGroups, request,
               &groups);
    // It was forgotten meanwhile.
    if (got.error_code() == grpc::StatusCode::NOT_FOUND) continue;
    if (!got.ok()) return daemon.Fail(got, output);
    const v1::Tier tier = WholeOn(model, groups, on_host);
    if (tier == v1::TIER_UNSPECIFIED) continue;
    if (!AddModel(model, tier, options.labels, &found->labels)) break;
    ++found->models;
  }
  found->left_out = static_cast<int>(told.size()) - found->models;
  return kExitOk;
}

void PrintFound(const Found& found, JsonStyle style, const Output& output) {
  google::protobuf::Struct all;
  auto& fields = *all.mutable_fields();
  auto& labels = *fields["labels"].mutable_struct_value()->mutable_fields();
  for (const auto& [name, value] : found.labels) {
    labels[name].set_string_value(value);
  }
  fields["models"].set_number_value(found.models);
  fields["models_left_out"].set_number_value(found.left_out);
  PrintJson(all, style, output);
}

int Write(const FeaturesOptions& options, const std::string& text,
          const Output& output) {
  WholeFile file(options.out, FileReaders::kEveryone);
  file.Write(text);
  file.Keep();
  if (file.error().empty()) return kExitOk;
  WriteError(output, "INVALID_ARGUMENT", file.error(), /*show_code=*/false);
  return kExitUsage;
}

// Asks and writes, once. A connection of its own, so that the next hoistd is
// found as well.
int Tell(const FeaturesOptions& options, const Output& output) {
  Connection daemon(options.socket, options.timeout);
  if (const int exit = daemon.Check(output); exit != kExitOk) return exit;
  Found found;
  if (const int exit = Find(daemon, options, &found, output); exit != kExitOk) {
    return exit;
  }
  const bool over_and_over = options.every.count() > 0;
  std::optional<std::chrono::system_clock::time_point> expires;
  if (over_and_over) {
    expires =
        std::chrono::system_clock::now() + kPassesUntilExpiry * options.every;
  }
  const std::string text = FeatureFile(found.labels, expires);
  if (!options.out.empty()) {
    if (const int exit = Write(options, text, output); exit != kExitOk) {
      return exit;
    }
  } else if (!output.json) {
    output.out << text;
  }
  if (output.json) {
    PrintFound(found, over_and_over ? JsonStyle::kLine : JsonStyle::kPretty,
               output);
  }
  return kExitOk;
}

}  // namespace

int Features(const FeaturesOptions& options, const Output& output) {
  if (options.every.count() == 0) return Tell(options, output);
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  const Interrupt interrupt([&] {
    const std::lock_guard<std::mutex> lock(mutex);
    ended = true;
    changed.notify_all();
  });
  std::string said;  // Of a hoistd that does not answer: not every time.
  int exit = kExitOk;
  while (true) {
    std::ostringstream why;
    exit = Tell(options, {output.out, why, output.json, output.terminal});
    if (why.str() != said) output.err << why.str() << std::flush;
    said = why.str();
    if (exit != kExitOk) unlink(options.out.c_str());
    if (exit != kExitOk && exit != kExitNoDaemon) return exit;
    std::unique_lock<std::mutex> lock(mutex);
    if (changed.wait_for(lock, options.every, [&] { return ended; })) break;
  }
  unlink(options.out.c_str());
  return kExitOk;
}

}  // namespace hoist::ctl
