// The source of a module's weights: for Attached after hoistd's end, and for
// Attach if an Attached left weights behind. Internal to torch.h.
#ifndef HOIST_TORCH_SOURCE_H_
#define HOIST_TORCH_SOURCE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "hoist/torch/tensor.h"

namespace hoist {
inline namespace v0 {
namespace torch {
namespace internal {

// Whether hoistd has no model of that name.
inline bool IsLacking(Session& session, const std::string& name) {
  return session.Find(ModelSource(name)).status().code() == Code::kNotFound;
}
// Ends a failed call's use of a model. `made`: it was lacking before.
inline void EndUse(Session& session, const Model& model, bool made) {
  (void)(made ? hoist_forget_unused_model : hoist_done_with_model)(
      session.get(), model.get(), nullptr);
}

// A model, and its expected weights.
struct Source {
  ModelSource at;
  std::string model;  // Its name.
  std::string fingerprint;

  // DataLoss: it has other weights. NotFound: it has none.
  Result<Model> Find(Session& session) const {
    Result<Model> found = session.Find(at);
    if (!found.ok()) {
      if (found.status().code() != Code::kNotFound) return found;
      return Status(Code::kNotFound,
                    "hoistd has the weights of \"" + model +
                        "\" no more; it was started again, or needed the "
                        "room: " +
                        found.status().message());
    }
    if (std::holds_alternative<Content>(at) ||
        found->fingerprint() == fingerprint) {
      return found;
    }
    const bool files = std::holds_alternative<RegisterOptions>(at);
    if (files) (void)session.Forget(*found);  // It has the name.
    return Status(Code::kDataLoss,
                  "hoistd was started again, and \"" + model +
                      "\" is other weights now" +
                      (files ? "; the files have changed" : ""));
  }
};

// Recovers a weight whose bytes are not in this process, after the end of its
// Attached. The weight's storage owns it, and the error that it throws, so it
// ends with the last tensor of the weight.
struct Orphan {
  std::shared_ptr<const Source> source;  // One for each Attached.
  std::string group, tensor;             // There.
  uint64_t bytes = 0;
  c10::Device home{at::kCPU};  // The module's device.
};

inline void DropOrphan(void* orphan) { delete static_cast<Orphan*>(orphan); }

// nullptr: not an orphan.
inline const Orphan* OrphanOf(const at::Tensor& tensor) {
  const c10::DataPtr& data =
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.get_deleter() == &DropOrphan
             ? static_cast<const Orphan*>(data.get_context())
             : nullptr;
}

// Makes `storage`, of idle tensors, throw `error`; it has no bytes.
inline void MakeOrphan(const c10::Storage& storage, Orphan orphan,
                       const std::string& error) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  impl.set_data_ptr_noswap({nullptr, new Orphan(std::move(orphan)), &DropOrphan,
                            c10::Device(at::kCPU)});
  impl.release_data_and_set_meta_custom_data_ptr_error_msg_(error);
  impl.set_nbytes(0);
}

}  // namespace internal
}  // namespace torch
}  // namespace v0
}  // namespace hoist

#endif  // HOIST_TORCH_SOURCE_H_
