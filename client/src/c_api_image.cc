// The C API's host images.
#include <memory>
#include <utility>

#include "client/src/c_handles.h"
#include "client/src/host_image.h"

struct hoist_host_image {
  std::unique_ptr<hoist::HostImage> image;
};

using hoist::Code;
using hoist::Guarded;
using hoist::Missing;
using hoist::Status;

namespace {

// Whether there is such a group, in a session that lives.
Status CheckPlace(const hoist_session* session, const hoist_model* model,
                  uint32_t group) {
  if (Status s = hoist::CheckBoth(session, model); !s.ok()) return s;
  const hoist::ModelTable& table = *model->table;
  if (group < table.groups().size()) return Status();
  return Status(Code::kOutOfRange, "model \"" + table.facts().name + "\" has " +
                                       std::to_string(table.groups().size()) +
                                       " groups, none is number " +
                                       std::to_string(group));
}

}  // namespace

int hoist_host_image_create(hoist_session* session, const hoist_model* model,
                            uint32_t group, hoist_host_image** image,
                            hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (image == nullptr) return Missing("image");
    if (Status s = CheckPlace(session, model, group); !s.ok()) return s;
    auto made = hoist::HostImage::Create(
        session->session, session->session->Hold(model->table), group);
    if (!made.ok()) return made.status();
    *image = new hoist_host_image{std::move(made).value()};
    return Status();
  });
}

int hoist_host_image_move(hoist_host_image* image, hoist_session* session,
                          const hoist_model* model, uint32_t group,
                          hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (image == nullptr) return Missing("image");
    if (Status s = CheckPlace(session, model, group); !s.ok()) return s;
    return image->image->Move(session->session,
                              session->session->Hold(model->table), group);
  });
}

int hoist_host_image_load(hoist_host_image* image, uint64_t deadline_ms,
                          hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (image == nullptr) return Missing("image");
    return image->image->Load(hoist::Milliseconds(deadline_ms));
  });
}

void hoist_host_image_drop(hoist_host_image* image) {
  if (image == nullptr) return;
  (void)Guarded(nullptr, [image] {
    image->image->Drop();
    return Status();
  });
}

int hoist_host_image_is_loaded(const hoist_host_image* image) {
  return image != nullptr && image->image->loaded() ? 1 : 0;
}

const void* hoist_host_image_data(const hoist_host_image* image) {
  return image == nullptr ? nullptr : image->image->data();
}

uint64_t hoist_host_image_bytes(const hoist_host_image* image) {
  return image == nullptr ? 0 : image->image->bytes();
}

// In the child of a fork the session is the parent's (see hoist_session_free):
// the memory goes, the handle leaks.
void hoist_host_image_free(hoist_host_image* image) {
  if (image == nullptr) return;
  if (image->image->forked()) return image->image->Drop();
  (void)Guarded(nullptr, [image] {
    delete image;
    return Status();
  });
}
