// Attachments, for C++: a header of its own, which hoist.h does not include.
#ifndef HOIST_HOIST_ATTACHMENT_H_
#define HOIST_HOIST_ATTACHMENT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "hoist/hoist.h"

namespace hoist {
inline namespace v0 {

// Of Attachment::Create.
struct AttachmentOptions {
  ModelSource source;  // At first, and after hoistd's end.
  ConnectOptions connect = {};
  PlanOptions plan = {};
  // Groups that stay resident, within the budget; see
  // hoist_attachment_options.
  std::vector<uint32_t> residents = {};
  // How long a renewal waits for the next hoistd; 0: 60 s.
  std::chrono::milliseconds renew_deadline{0};
};

// What an attachment is by now.
enum class AttachmentState {
  kReady = HOIST_ATTACHMENT_READY,
  kEnded = HOIST_ATTACHMENT_ENDED,
  kRenewing = HOIST_ATTACHMENT_RENEWING,
  kAsleep = HOIST_ATTACHMENT_ASLEEP,  // It gave way.
};

// A model's groups under a plan, found again after hoistd's end; see
// c/attachment.h, also for the errors of a renewal. Move-only; the destructor
// waits for the GPU and gives everything back.
//
//   hoist::Result<hoist::Attachment> weights =
//       hoist::Attachment::Create({"minilm"});
//   if (!weights.ok()) return weights.status();
//   for (uint32_t group : order) {
//     hoist::Result<const void*> image = weights->Stage(group, stream);
//     if (!image.ok()) return image.status();
//     Compute(*image, stream);
//     if (hoist::Status s = weights->Done(group, stream); !s.ok()) return s;
//   }
class Attachment : internal::Handle<hoist_attachment, hoist_attachment_free> {
 public:
  explicit Attachment(hoist_attachment* handle) : Handle(handle) {}  // Owns.

  // Connects, finds the model, and sets the plan. Fails as hoist_attach.
  static Result<Attachment> Create(const AttachmentOptions& options) {
    return Create(options, nullptr, nullptr, options.connect);
  }
  // The same, but begins with `session`, which it shares, and with the source's
  // model there. Renewals connect as the session did.
  static Result<Attachment> Create(const AttachmentOptions& options,
                                   const Session& session, const Model& model) {
    return Create(options, session.get(), model.get(), session.options());
  }

  // The image's address, for later work on the stream, until Done. Renews
  // first, if need be. `turn_deadline`: how long it waits for other threads'
  // groups; see hoist_attachment_stage.
  Result<const void*> Stage(uint32_t group, hoist_stream stream = nullptr,
                            std::chrono::milliseconds turn_deadline = {}) {
    return Take<const void*>(hoist_attachment_stage, group, stream,
                             internal::Count(turn_deadline));
  }
  // Earlier work on the stream is the last to read the image. Also ends a stage
  // whose plan has ended.
  Status Done(uint32_t group, hoist_stream stream = nullptr) {
    return Call(hoist_attachment_done, group, stream);
  }
  // True: the plan was remade with the learned order. Renews nothing.
  Result<bool> EndPass() { return Take<bool, int>(hoist_attachment_end_pass); }
  // Whether results since the last check are valid. Call it after
  // synchronizing, before results are used. Renews nothing.
  Status Check() const { return Call(hoist_attachment_check); }
  // As the next Stage would, if need be.
  Status Renew() { return Call(hoist_attachment_renew); }
  // Between passes; for later hoistds, too. ResourceExhausted: the plan is
  // unchanged.
  Status SetBudget(uint64_t bytes) {
    return Call(hoist_attachment_set_budget, bytes);
  }
  // The same with another order of one pass; learning ends.
  Status SetOrder(const std::vector<uint32_t>& order) {
    return Call(hoist_attachment_set_order, order.data(), order.size());
  }

  // Readable once the plan was remade or renewed, or has ended or given way,
  // since the last read. The attachment owns it.
  int event_fd() const { return hoist_attachment_event_fd(handle_.get()); }
  // Notices the plan's end. Renews nothing.
  AttachmentState state() const {
    return static_cast<AttachmentState>(Describe().state);
  }
  // The state, the renewals so far, and the generation, with which addresses
  // and graphs become void.
  hoist_attachment_info Describe() const {
    return Filled<hoist_attachment_info>(hoist_attachment_describe);
  }
  // The plan's numbers. Renews, if need be; all 0 if that fails.
  hoist_plan_info info() const {
    return Filled<hoist_plan_info>(hoist_attachment_plan);
  }
  // Of the last plan.
  hoist_plan_stats stats() const {
    return Filled<hoist_plan_stats>(hoist_attachment_get_stats);
  }
  // By the last plan. kNot also if the model has no such group.
  Planned kind(uint32_t group) const {
    int kind = HOIST_PLANNED_NOT;
    hoist_attachment_group_kind(handle_.get(), group, &kind, nullptr);
    return static_cast<Planned>(kind);
  }
  // The model as first found, whose numbers groups and tensors have for good.
  Result<Model> model() const {
    return Take<Model, hoist_model*>(hoist_attachment_model);
  }
  // A group's tensor, with its address in every stage of this generation; or
  // without, if the order lacks the group.
  // Renews, if need be.
  Result<TensorView> tensor(uint32_t group, uint32_t index) const {
    return TakeTensor(hoist_attachment_tensor, group, index);
  }
  hoist_attachment* get() const { return handle_.get(); }  // For the C API.

 private:
  static Result<Attachment> Create(const AttachmentOptions& options,
                                   const hoist_session* session,
                                   const hoist_model* model,
                                   const ConnectOptions& options_to_connect) {
    const ConnectOptions resolved = internal::Resolved(options_to_connect);
    const hoist_connect_options connect = internal::InC(resolved);
    const hoist_plan_options plan = internal::InC(options.plan);
    const auto* name = std::get_if<std::string>(&options.source);
    const auto* files = std::get_if<RegisterOptions>(&options.source);
    const auto* content = std::get_if<Content>(&options.source);
    std::optional<internal::Registration> registration;
    auto given = internal::Sized<hoist_attachment_options>();
    if (name != nullptr) given.name = name->c_str();
    if (files != nullptr) given.files = registration.emplace(*files).get();
    if (content != nullptr) given.content = content->data();
    given.connect = &connect;
    given.plan = &plan;
    given.residents = options.residents.data();
    given.resident_count = options.residents.size();
    given.renew_deadline_ms = internal::Count(options.renew_deadline);
    given.session = session;
    given.model = model;
    return internal::Take<Attachment, hoist_attachment*>(hoist_attach, &given);
  }
};

}  // namespace v0
}  // namespace hoist

#endif  // HOIST_HOIST_ATTACHMENT_H_
