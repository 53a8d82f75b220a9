// The Admin calls that NodeControl answers.
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/status.h"
#include "daemon/convert/types_convert.h"
#include "daemon/rpc/admin_service.h"
#include "daemon/rpc/unary_call.h"

namespace hoistd {
namespace {

using Context = grpc::CallbackServerContext;
using Reactor = grpc::ServerUnaryReactor;

absl::Status Unknown() {
  return absl::UnimplementedError("this hoistd does not implement the call");
}

// `ask` runs on a work thread, since it may read a file. It returns its changes
// for the audit log.
template <typename Response, typename Ask>
Reactor* AskControl(const std::shared_ptr<CallEnv>& env,
                    absl::StatusOr<AdminAct> act, Response* response, Ask ask) {
  return StartUnaryCall(response, std::move(act), [&](auto call, AdminAct own) {
    env->queue.Post([env, call, act = std::move(own), ask = std::move(ask)] {
      Response out;
      absl::StatusOr<std::string> done = Unknown();
      if (env->control != nullptr) done = ask(*env->control, &out);
      act.Ended(done.status(), done.value_or(""));
      if (!done.ok()) return call->Fail(done.status());
      call->Reply(std::move(out));
    });
  });
}

// Answers an admin with a response that `fill` builds on a work thread.
template <typename Response, typename Fill>
Reactor* FinishControl(const std::shared_ptr<CallEnv>& env,
                       const Context& context, bool knows, Response* response,
                       Fill fill) {
  return StartUnaryCall(response, env->AdminOf(context),
                        [&](auto call, const Peer&) {
                          if (!knows) return call->Fail(Unknown());
                          env->queue.Post([env, call, fill] {
                            Response out;
                            fill(*env, &out);
                            call->Reply(std::move(out));
                          });
                        });
}

}  // namespace

Reactor* AdminService::Reload(Context* context, const pb::ReloadRequest*,
                              pb::ReloadResponse* response) {
  return AskControl(env_, env_->AdminActOf(*context, "reload", ""), response,
                    [](NodeControl& control,
                       pb::ReloadResponse* out) -> absl::StatusOr<std::string> {
                      absl::StatusOr<Reloaded> done = control.Reload();
                      if (!done.ok()) return done.status();
                      std::string changed = absl::StrCat(
                          "changed=", absl::StrJoin(done->changed, ","));
                      for (std::string& key : done->changed) {
                        out->add_changed(std::move(key));
                      }
                      for (std::string& key : done->needs_restart) {
                        out->add_needs_restart(std::move(key));
                      }
                      return changed;
                    });
}

Reactor* AdminService::SetLogLevel(Context* context,
                                   const pb::SetLogLevelRequest* request,
                                   pb::SetLogLevelResponse* response) {
  return AskControl(
      env_, env_->AdminActOf(*context, "log-level", request->level()), response,
      [level = request->level()](NodeControl& control, pb::SetLogLevelResponse*)
          -> absl::StatusOr<std::string> {
        HOIST_RETURN_IF_ERROR(control.SetLogLevel(level));
        return std::string();
      });
}

Reactor* AdminService::GetConfig(Context* context, const pb::GetConfigRequest*,
                                 pb::GetConfigResponse* response) {
  return FinishControl(env_, *context, env_->control != nullptr, response,
                       [](CallEnv& env, pb::GetConfigResponse* out) {
                         for (Setting& one : env.control->Settings()) {
                           pb::ConfigSetting& setting = *out->add_settings();
                           setting.set_key(std::move(one.key));
                           setting.set_value(std::move(one.value));
                           setting.set_source(std::move(one.source));
                           setting.set_comes_to(std::move(one.comes_to));
                           setting.set_pending(std::move(one.pending));
                         }
                       });
}

Reactor* AdminService::Examine(Context* context, const pb::ExamineRequest*,
                               pb::ExamineResponse* response) {
  return FinishControl(env_, *context, env_->examine != nullptr, response,
                       [](CallEnv& env, pb::ExamineResponse* out) {
                         for (Finding& one : env.examine()) {
                           pb::Finding& finding = *out->add_findings();
                           finding.set_what(std::move(one.what));
                           finding.set_state(one.state == Finding::State::kGood
                                                 ? pb::Finding::STATE_GOOD
                                                 : pb::Finding::STATE_DEGRADED);
                           finding.set_found(std::move(one.found));
                           finding.set_cure(std::move(one.cure));
                         }
                         for (std::string& root : env.model_roots.Get()) {
                           out->add_model_roots(std::move(root));
                         }
                       });
}

}  // namespace hoistd
