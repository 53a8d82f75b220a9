// The C API's attachments.
#include "client/src/attachment/attachment.h"

#include <chrono>

#include "client/src/c_api/handles.h"

struct hoist_attachment {
  std::unique_ptr<hoist::Attachment> own;
};

namespace hoist {
namespace {

// The structs that an attachment's options point to.
struct AttachmentOptions {
  hoist_attachment_options own = {};
  hoist_connect_options connect = {};
  hoist_register_options files = {};
  hoist_plan_options plan = {};
};

Status Read(const hoist_attachment_options* options, AttachmentOptions* read) {
  hoist_attachment_options& own = read->own;
  Status s = ReadSized(options, "hoist_attachment_options", &own);
  if (!s.ok()) return s;
  if (s = ReadConnect(own.connect, &read->connect); !s.ok()) return s;
  if (s = ReadPlan(own.plan, &read->plan); !s.ok()) return s;
  own.plan = &read->plan;
  if (own.files != nullptr) {
    if (s = ReadRegister(own.files, &read->files); !s.ok()) return s;
    own.files = &read->files;
  }
  own.renew_deadline_ms = AtMostADay(own.renew_deadline_ms);
  if (own.session != nullptr || own.model != nullptr) {
    if (s = CheckBoth(own.session, own.model); !s.ok()) return s;
  }
  return own.resident_count == 0 ? s : Check({{own.residents, "residents"}});
}

}  // namespace
}  // namespace hoist

using hoist::Attachment;
using hoist::Status;
using hoist::With;

int hoist_attach(const hoist_attachment_options* options,
                 hoist_attachment** attachment, hoist_error** error) {
  return hoist::Guarded(
      error, {{options, "options"}, {attachment, "attachment"}},
      [&]() -> Status {
        hoist::AttachmentOptions given;
        if (Status s = hoist::Read(options, &given); !s.ok()) return s;
        hoist::Standing::Begin begin;
        if (const hoist_session* on = given.own.session; on != nullptr) {
          auto table = given.own.model->Whole();
          if (!table.ok()) return table.status();
          begin = {on->session, on->open, {*table, on->session->Hold(*table)}};
        }
        return hoist::Hand(
            attachment,
            Attachment::Create(given.own, hoist::ConnectorOf(given.connect),
                               std::move(begin)));
      });
}

void hoist_attachment_free(hoist_attachment* attachment) {
  hoist::Free(attachment);
}

int hoist_attachment_stage(hoist_attachment* attachment, uint32_t group,
                           hoist_stream stream, uint64_t turn_deadline_ms,
                           const void** data, hoist_error** error) {
  return With(attachment, "attachment", error, {}, [&](Attachment& own) {
    return own.Stage(group, hoist::StreamOf(stream),
                     hoist::Milliseconds(turn_deadline_ms), data);
  });
}

int hoist_attachment_done(hoist_attachment* attachment, uint32_t group,
                          hoist_stream stream, hoist_error** error) {
  return With(attachment, "attachment", error, {}, [&](Attachment& own) {
    return own.Done(group, hoist::StreamOf(stream));
  });
}

int hoist_attachment_end_pass(hoist_attachment* attachment, int* changed,
                              hoist_error** error) {
  return With(attachment, "attachment", error, {}, [&](Attachment& own) {
    bool remade = false;
    Status ended = own.EndPass(&remade);
    if (ended.ok() && changed != nullptr) *changed = remade ? 1 : 0;
    return ended;
  });
}

int hoist_attachment_check(hoist_attachment* attachment, hoist_error** error) {
  return With(attachment, "attachment", error, {},
              [](Attachment& own) { return own.Check(); });
}

int hoist_attachment_renew(hoist_attachment* attachment, hoist_error** error) {
  return With(attachment, "attachment", error, {},
              [](Attachment& own) { return own.Renew(); });
}

int hoist_attachment_set_budget(hoist_attachment* attachment, uint64_t bytes,
                                hoist_error** error) {
  return With(attachment, "attachment", error, {},
              [&](Attachment& own) { return own.SetBudget(bytes); });
}

int hoist_attachment_set_order(hoist_attachment* attachment,
                               const uint32_t* order, size_t order_length,
                               hoist_error** error) {
  return With(attachment, "attachment", error, {{order, "order"}},
              [&](Attachment& own) {
                return own.Reorder({order, order + order_length});
              });
}

int hoist_attachment_event_fd(const hoist_attachment* attachment) {
  return attachment == nullptr ? -1 : attachment->own->event_fd();
}

int hoist_attachment_describe(hoist_attachment* attachment,
                              hoist_attachment_info* info,
                              hoist_error** error) {
  return With(
      attachment, "attachment", error, {{info, "info"}},
      [&](Attachment& own) { return hoist::WriteSized(own.info(), info); });
}

int hoist_attachment_plan(hoist_attachment* attachment, hoist_plan_info* info,
                          hoist_error** error) {
  return With(attachment, "attachment", error, {{info, "info"}},
              [&](Attachment& own) -> Status {
                auto found = own.plan_info();
                if (!found.ok()) return found.status();
                return hoist::WriteSized(*found, info);
              });
}

int hoist_attachment_group_kind(hoist_attachment* attachment, uint32_t group,
                                int* kind, hoist_error** error) {
  return With(attachment, "attachment", error, {{kind, "kind"}},
              [&](Attachment& own) -> Status {
                const auto found = own.KindOf(group);
                if (found.ok()) *kind = found.value();
                return found.status();
              });
}

int hoist_attachment_get_stats(hoist_attachment* attachment,
                               hoist_plan_stats* stats, hoist_error** error) {
  return With(
      attachment, "attachment", error, {{stats, "stats"}},
      [&](Attachment& own) { return hoist::WriteSized(own.stats(), stats); });
}

int hoist_attachment_model(const hoist_attachment* attachment,
                           hoist_model** model, hoist_error** error) {
  return With(attachment, "attachment", error, {{model, "model"}},
              [&](const Attachment& own) {
                *model = new hoist_model{.table = own.model()};
                return Status();
              });
}

int hoist_attachment_tensor(hoist_attachment* attachment, uint32_t group,
                            uint32_t tensor, hoist_tensor_info* info,
                            hoist_error** error) {
  return With(attachment, "attachment", error, {{info, "info"}},
              [&](Attachment& own) -> Status {
                auto placed = own.Place(group, tensor);
                if (!placed.ok()) return placed.status();
                return hoist::DescribeTensor(*placed->tensor, placed->image,
                                             info);
              });
}
