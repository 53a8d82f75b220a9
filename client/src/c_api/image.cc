// The C API's host images.
#include <memory>
#include <utility>

#include "client/src/c_api/handles.h"
#include "client/src/image/host_image.h"

struct hoist_host_image {
  std::unique_ptr<hoist::HostImage> own;
};

using hoist::Guarded;
using hoist::Status;

namespace {

// A held table with the group.
hoist::Result<hoist::ModelPtr> Hold(const hoist_session* session,
                                    const hoist_model* model, uint32_t group) {
  if (Status s = hoist::CheckBoth(session, model); !s.ok()) return s;
  auto table = model->With(group);
  return table.ok() ? session->session->Hold(*table) : table;
}

}  // namespace

int hoist_host_image_create(hoist_session* session, const hoist_model* model,
                            uint32_t group, hoist_host_image** image,
                            hoist_error** error) {
  return Guarded(error, {{image, "image"}}, [&]() -> Status {
    auto held = Hold(session, model, group);
    if (!held.ok()) return held.status();
    return hoist::Hand(
        image, hoist::HostImage::Create(session->session, *held, group));
  });
}

int hoist_host_image_move(hoist_host_image* image, hoist_session* session,
                          const hoist_model* model, uint32_t group,
                          hoist_error** error) {
  return Guarded(error, {{image, "image"}}, [&]() -> Status {
    auto held = Hold(session, model, group);
    if (!held.ok()) return held.status();
    return image->own->Move(session->session, *held, group);
  });
}

int hoist_host_image_load(hoist_host_image* image, uint64_t deadline_ms,
                          hoist_error** error) {
  return Guarded(error, {{image, "image"}}, [&]() -> Status {
    return image->own->Load(hoist::Milliseconds(deadline_ms));
  });
}

void hoist_host_image_drop(hoist_host_image* image) {
  if (image == nullptr) return;
  (void)Guarded(nullptr, [image] {
    image->own->Drop();
    return Status();
  });
}

int hoist_host_image_is_loaded(const hoist_host_image* image) {
  return image != nullptr && image->own->loaded() ? 1 : 0;
}

const void* hoist_host_image_data(const hoist_host_image* image) {
  return image == nullptr ? nullptr : image->own->data();
}

uint64_t hoist_host_image_bytes(const hoist_host_image* image) {
  return image == nullptr ? 0 : image->own->bytes();
}

// In the child of a fork the session is the parent's (see hoist_session_free):
// the memory goes, the handle leaks.
void hoist_host_image_free(hoist_host_image* image) {
  if (image == nullptr) return;
  if (image->own->forked()) return image->own->Drop();
  (void)Guarded(nullptr, [image] {
    delete image;
    return Status();
  });
}
