#include "daemon/rpc/trace_call.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/convert/types_convert.h"

namespace hoistd {
namespace {

// At 300,000 events/s, a tenth of the recorder's capacity arrives in this time.
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(20);

uint64_t Nanoseconds(absl::Duration time) {
  return static_cast<uint64_t>(
      std::max<int64_t>(0, absl::ToInt64Nanoseconds(time)));
}

pb::TraceEvent::Kind ToProto(TraceKind kind) {
  using Event = pb::TraceEvent;
  switch (kind) {  // No default: a new one must fail to compile here.
    case TraceKind::kCopyIn:
      return Event::KIND_COPY_IN;
    case TraceKind::kCopyOut:
      return Event::KIND_COPY_OUT;
    case TraceKind::kGrantedCopy:
      return Event::KIND_GRANTED_COPY;
    case TraceKind::kOwnRead:
      return Event::KIND_OWN_READ;
    case TraceKind::kLinkGap:
      return Event::KIND_LINK_GAP;
    case TraceKind::kFileRead:
      return Event::KIND_FILE_READ;
    case TraceKind::kSpillRead:
      return Event::KIND_SPILL_READ;
    case TraceKind::kSpillWrite:
      return Event::KIND_SPILL_WRITE;
    case TraceKind::kPageIn:
      return Event::KIND_PAGE_IN;
    case TraceKind::kPageOut:
      return Event::KIND_PAGE_OUT;
    case TraceKind::kCheck:
      return Event::KIND_CHECK;
    case TraceKind::kReceive:
      return Event::KIND_RECEIVE;
    case TraceKind::kDeliver:
      return Event::KIND_DELIVER;
    case TraceKind::kStage:
      return Event::KIND_STAGE;
    case TraceKind::kReadImage:
      return Event::KIND_READ_IMAGE;
    case TraceKind::kPublish:
      return Event::KIND_PUBLISH;
    case TraceKind::kSetPlan:
      return Event::KIND_SET_PLAN;
    case TraceKind::kBring:
      return Event::KIND_BRING;
    case TraceKind::kLaneWait:
      return Event::KIND_LANE_WAIT;
    case TraceKind::kLaneGap:
      return Event::KIND_LANE_GAP;
    case TraceKind::kHostWait:
      return Event::KIND_HOST_WAIT;
    case TraceKind::kSlowEvent:
      return Event::KIND_SLOW_EVENT;
    case TraceKind::kHostUsed:
      return Event::KIND_HOST_USED;
    case TraceKind::kDeviceUsed:
      return Event::KIND_DEVICE_USED;
  }
  return Event::KIND_UNSPECIFIED;
}

pb::TraceEvent::Why ToProto(TraceWhy why) {
  switch (why) {  // No default: a new one must fail to compile here.
    case TraceWhy::kNotDue:
      return pb::TraceEvent::WHY_NOT_DUE;
    case TraceWhy::kNotOnHost:
      return pb::TraceEvent::WHY_HOST;
    case TraceWhy::kPlaceInUse:
      return pb::TraceEvent::WHY_SLOT;
    case TraceWhy::kNotDone:
      return pb::TraceEvent::WHY_KERNELS;
    case TraceWhy::kTurn:
      return pb::TraceEvent::WHY_TURN;
    case TraceWhy::kPinning:
      return pb::TraceEvent::WHY_PINNING;
    case TraceWhy::kDriver:
      return pb::TraceEvent::WHY_DRIVER;
    case TraceWhy::kThread:
      return pb::TraceEvent::WHY_THREAD;
  }
  return pb::TraceEvent::WHY_UNSPECIFIED;
}

void ToProto(const TraceEvent& event, absl::Time started, pb::TraceEvent* out) {
  out->set_kind(ToProto(event.kind));
  out->set_why(ToProto(event.why));
  out->set_begin_ns(Nanoseconds(event.begin - started));
  out->set_duration_ns(Nanoseconds(event.end - event.begin));
  out->set_bytes(event.bytes);
  out->set_device(event.device.number());
  out->set_session_id(event.session.number());
  out->set_plan_id(event.plan.number());
  out->set_model_id(event.model.number());
  out->set_group(event.group.number());
  out->set_failed(event.failed);
  out->set_background(event.background);
  out->set_open(event.open);
  out->set_request(event.request.number());
}

void NamesToProto(const TraceBatch& batch, pb::TraceChunk* out) {
  for (const TraceSession& from : batch.sessions) {
    pb::TraceSession& session = *out->add_sessions();
    session.set_id(from.id.number());
    session.set_client_name(from.client_name);
    session.set_pid(static_cast<uint32_t>(from.pid));
    session.set_uid(from.user.number());
    session.set_tenant(std::string(from.user.tenant()));
    session.set_via(from.via);
  }
  for (const TracePlan& from : batch.plans) {
    pb::TracePlan& plan = *out->add_plans();
    plan.set_id(from.id.number());
    plan.set_session_id(from.session.number());
    plan.set_model_id(from.model.number());
    plan.set_device(from.device.number());
  }
  for (const TraceModel& from : batch.models) {
    pb::TraceModel& model = *out->add_models();
    model.set_id(from.id.number());
    model.set_name(from.name);
  }
  for (const TraceGroup& from : batch.groups) {
    pb::TraceGroup& group = *out->add_groups();
    group.set_model_id(from.key.model.number());
    group.set_group(from.key.group.number());
    group.set_name(from.name);
  }
}

absl::Status CheckLength(absl::Duration length) {
  if (length > absl::ZeroDuration() && length <= TraceCall::kLongest) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "duration_ms is ", absl::ToInt64Milliseconds(length), "; 1 to ",
      absl::ToInt64Milliseconds(TraceCall::kLongest), " can be recorded"));
}

}  // namespace

std::shared_ptr<TraceCall> TraceCall::Start(std::shared_ptr<CallEnv> env,
                                            absl::StatusOr<AdminAct> act,
                                            absl::Duration length) {
  const absl::Status allowed = act.status();
  std::optional<AdminAct> allowed_act;
  if (act.ok()) allowed_act = *std::move(act);
  std::shared_ptr<TraceCall> self(
      new TraceCall(std::move(env), std::move(allowed_act), length));
  self->Own(self);
  if (!allowed.ok()) {
    self->End(allowed);
    return self;
  }
  if (const absl::Status right = CheckLength(length); !right.ok()) {
    self->Refuse(right);
    return self;
  }
  self->env_->engine.Trace(
      [self](absl::StatusOr<std::unique_ptr<TraceRecording>> recording) {
        if (!recording.ok()) return self->Refuse(recording.status());
        self->Began(*std::move(recording));
      });
  return self;
}

void TraceCall::Refuse(const absl::Status& why) {
  act_->Ended(why);
  End(why);
}

void TraceCall::Began(std::unique_ptr<TraceRecording> recording) {
  bool gone_already = false;
  {
    absl::MutexLock lock(&mu_);
    gone_already = gone();
    if (!gone_already) {
      began_ = true;
      recording_ = std::move(recording);
      began_unix_ns_ = static_cast<uint64_t>(absl::ToUnixNanos(absl::Now()));
    }
  }
  if (gone_already) {
    recording.reset();
    act_->Ended(absl::CancelledError("the caller has gone"));
    return;
  }
  Look();
}

void TraceCall::Look() {
  bool over = false;
  {
    absl::MutexLock lock(&mu_);
    if (recording_ == nullptr) return;
    if (all_) {
      recording_.reset();
      return;
    }
    over = recording_->ended() - recording_->started() >= length_;
    if (over) {
      recording_->Stop();
      all_ = true;
    }
    LookIn(over ? kToTakeTheRest : kBetweenLooks);
  }
  if (over) return End(absl::OkStatus());
  Wake();
}

void TraceCall::LookIn(absl::Duration time) {
  // The alarm owns its callback. A strong reference here would be a cycle.
  std::weak_ptr<StreamCall<pb::TraceChunk>> weak = weak_from_this();
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(
      std::chrono::system_clock::now() + absl::ToChronoNanoseconds(time),
      [weak](bool ran_out) {
        auto again = std::static_pointer_cast<TraceCall>(weak.lock());
        if (ran_out && again != nullptr) again->Look();
      });
}

bool TraceCall::Next(pb::TraceChunk* message) {
  if (recording_ == nullptr) return false;
  const TraceBatch batch = recording_->Take(kEventsAChunk);
  const bool first = !std::exchange(told_, true);
  // The last message reports the length and the number of dropped events.
  const bool last = all_ && batch.empty();
  if (batch.empty() && !first && !last) return false;
  if (first) {
    message->set_began_unix_ns(began_unix_ns_);
    for (const DeviceView& device : env_->engine.facts().devices) {
      message->add_devices(device.info.name);
    }
  }
  NamesToProto(batch, message);
  for (const TraceEvent& event : batch.events) {
    ToProto(event, recording_->started(), message->add_events());
  }
  message->set_recorded_ns(
      Nanoseconds(recording_->ended() - recording_->started()));
  message->set_dropped_events(batch.dropped);
  message->set_unnamed_groups(batch.unnamed);
  events_ += batch.events.size();
  dropped_ = batch.dropped;
  if (last) recording_.reset();
  return true;
}

void TraceCall::OnGone() {
  std::unique_ptr<TraceRecording> recording;
  std::unique_ptr<grpc::Alarm> alarm;
  bool began = false;
  std::string recorded;
  bool all = false;
  {
    absl::MutexLock lock(&mu_);
    recording = std::move(recording_);
    alarm = std::move(alarm_);
    began = began_;
    all = all_;
    recorded = absl::StrCat("events=", events_, " dropped=", dropped_);
  }
  recording.reset();
  if (!began) return;
  act_->Ended(
      all ? absl::OkStatus() : absl::CancelledError("the caller ended it"),
      recorded);
}

}  // namespace hoistd
