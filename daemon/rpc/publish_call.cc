#include "daemon/rpc/publish_call.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/convert/types_convert.h"
#include "daemon/rpc/admin_convert.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {

std::shared_ptr<PublishCall> PublishCall::Start(std::shared_ptr<CallEnv> env,
                                                absl::StatusOr<Peer> peer,
                                                pb::Model* response) {
  std::shared_ptr<PublishCall> self(new PublishCall(std::move(env), response));
  self->self_ = self;
  if (!peer.ok()) {
    self->Answer(peer.status());
    return self;
  }
  self->peer_ = *std::move(peer);
  self->StartRead(&self->part_);
  return self;
}

PublishCall::~PublishCall() { env_->publishing_bytes -= reserved_bytes_; }

void PublishCall::OnReadDone(bool ok) {
  if (answered()) return;
  const absl::Status status = ok ? Take(part_) : Complete();
  if (!status.ok()) return Answer(status);
  if (ok) StartRead(&part_);
}

absl::Status PublishCall::Take(const pb::WorkerPublishRequest& part) {
  switch (part.part_case()) {
    case pb::WorkerPublishRequest::kHeader:
      return TakeHeader(part.header());
    case pb::WorkerPublishRequest::kChunk:
      return TakeChunk(part.chunk());
    case pb::WorkerPublishRequest::PART_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "a message of Publish is empty; send the header, then chunks");
}

absl::Status PublishCall::TakeHeader(
    const pb::WorkerPublishRequest::Header& header) {
  if (args_.has_value()) {
    return absl::InvalidArgumentError(
        "a second header came; one Publish call is one group");
  }
  PublishArgs args;
  HOIST_ASSIGN_OR_RETURN(
      args.model, NameFromProto("model", header.model(), kMaxModelNameBytes));
  HOIST_ASSIGN_OR_RETURN(args.group, GroupFromProto(header.group()));
  HOIST_ASSIGN_OR_RETURN(args.readers, ReadersFromProto(header.readers()));
  if (header.deadline_ms() != 0) {
    args.deadline = DeadlineFromProto(header.deadline_ms());
  }
  if (!header.content().empty()) {
    HOIST_ASSIGN_OR_RETURN(args.expected, ContentFromProto(header.content()));
  }
  image_bytes_ = args.group.image_bytes;
  HOIST_RETURN_IF_ERROR(Reserve(image_bytes_));
  HOIST_ASSIGN_OR_RETURN(
      args.image, ToAbsl(hoist::CreateMemfd("hoist-publish", image_bytes_)));
  args_ = std::move(args);
  return absl::OkStatus();
}

absl::Status PublishCall::Reserve(uint64_t bytes) {
  const uint64_t most = env_->max_publish_bytes;
  uint64_t others = env_->publishing_bytes;
  do {
    if (others > most || bytes > most - others) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "an image of ", bytes, " bytes cannot be received now: ", others,
          " bytes of others are on their way, and ", most,
          " is the limit for all; wait, or publish with libhoist, which hands "
          "its memory over"));
    }
  } while (
      !env_->publishing_bytes.compare_exchange_weak(others, others + bytes));
  reserved_bytes_ = bytes;
  return absl::OkStatus();
}

absl::Status PublishCall::TakeChunk(const std::string& chunk) {
  if (!args_.has_value()) {
    return absl::InvalidArgumentError(
        "a chunk came before the header; the header is first");
  }
  if (chunk.size() > image_bytes_ - received_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "more bytes came than image_bytes says (", image_bytes_, ")"));
  }
  size_t done = 0;
  while (done < chunk.size()) {
    const ssize_t n =
        pwrite(args_->image.get(), chunk.data() + done, chunk.size() - done,
               static_cast<off_t>(received_bytes_ + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoToStatus(errno, "store the image");
    done += static_cast<size_t>(n);
  }
  received_bytes_ += chunk.size();
  return absl::OkStatus();
}

absl::Status PublishCall::Complete() {
  if (!args_.has_value()) {
    return absl::InvalidArgumentError("the stream ended without a header");
  }
  if (received_bytes_ != image_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("the stream ended after ",
                                                   received_bytes_, " of ",
                                                   image_bytes_, " bytes"));
  }
  HOIST_RETURN_IF_ERROR(ToAbsl(hoist::SealMemfd(args_->image.get())));
  std::shared_ptr<PublishCall> self = self_;
  OpenCallSession(env_->engine, peer_, "Worker.Publish",
                  [self](absl::StatusOr<CallSession> session) mutable {
                    if (!session.ok()) return self->Answer(session.status());
                    const SessionId id = session->id();
                    EngineApi& engine = self->env_->engine;
                    PublishArgs args = *std::move(self->args_);
                    engine.Ask(
                        id, std::move(args),
                        [self = std::move(self), session = *std::move(session)](
                            absl::StatusOr<ModelPtr> model) mutable {
                          session.Close();
                          if (!model.ok()) return self->Answer(model.status());
                          pb::Model out;
                          ModelToProto(**model, &out);
                          self->Answer(std::move(out));
                        });
                  });
  return absl::OkStatus();
}

void PublishCall::Answer(absl::StatusOr<pb::Model> model) {
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(answered_, true)) return;
    if (model.ok()) *response_ = *std::move(model);
  }
  Finish(ToGrpc(model.status()));
}

bool PublishCall::answered() const {
  absl::MutexLock lock(&mu_);
  return answered_;
}

void PublishCall::OnCancel() {
  Answer(
      absl::CancelledError("the call was cancelled, or its deadline passed"));
}

}  // namespace hoistd
