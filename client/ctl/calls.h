// A command's call of hoistd: one answer, or a stream of messages.
#ifndef HOIST_CLIENT_CTL_CALLS_H_
#define HOIST_CLIENT_CTL_CALLS_H_

#include <memory>
#include <string_view>
#include <type_traits>

#include "client/ctl/connection.h"
#include "grpcpp/support/sync_stream.h"

namespace hoist::ctl {

template <typename Request, typename Response>
using Verb = grpc::Status (v1::Admin::Stub::*)(grpc::ClientContext*,
                                               const Request&, Response*);
template <typename Request, typename Message>
using StreamVerb = std::unique_ptr<grpc::ClientReader<Message>> (
    v1::Admin::Stub::*)(grpc::ClientContext*, const Request&);

template <typename Request, typename Response>
grpc::Status Call(Connection& daemon, Lasts lasts, Verb<Request, Response> verb,
                  const std::type_identity_t<Request>& request,
                  Response* response) {
  const auto context = daemon.context(lasts);
  return (daemon.admin().*verb)(context.get(), request, response);
}

// Prints the answer: as JSON, or by `show`. Returns an ExitCode.
template <typename Request, typename Response, typename Show>
int Ask(Connection& daemon, Lasts lasts, Verb<Request, Response> verb,
        const std::type_identity_t<Request>& request, const Output& output,
        Show show) {
  Response response;
  const grpc::Status got = Call(daemon, lasts, verb, request, &response);
  if (!got.ok()) return daemon.Fail(got, output);
  if (output.json) {
    PrintJson(response, JsonStyle::kPretty, output);
  } else {
    show(response);
  }
  return kExitOk;
}

// Prints each message: as a line of JSON, or by `show`, and then `end` once.
// `last`: the last message, if there was one. Returns an ExitCode.
template <typename Request, typename Message, typename Show>
int Follow(Connection& daemon, StreamVerb<Request, Message> verb,
           const Request& request, const Output& output, Message& last,
           Show show, std::string_view end = {}) {
  const auto context = daemon.context(Lasts::kWork);
  const auto stream = (daemon.admin().*verb)(context.get(), request);
  bool any = false;
  while (stream->Read(&last)) {
    any = true;
    if (output.json) {
      PrintJson(last, JsonStyle::kLine, output);
    } else {
      show(last);
    }
  }
  if (any && !output.json) output.out << end;
  const grpc::Status status = daemon.Finish(*context, *stream);
  return status.ok() ? kExitOk : daemon.Fail(status, output);
}

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_CALLS_H_
