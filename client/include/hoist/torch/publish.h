// Publishes a module's weights as a model. Internal to torch.h.
#ifndef HOIST_TORCH_PUBLISH_H_
#define HOIST_TORCH_PUBLISH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hoist/torch.h"
#include "hoist/torch/parts.h"

namespace hoist {
inline namespace v0 {
namespace torch {
namespace internal {

class Publisher {
 public:
  Publisher(const Tree& tree, const AttachOptions& options, Session& session)
      : tree_(tree), options_(options), session_(session) {}

  // `model`: complete, with these groups; if it fails, whatever is published.
  // `made`: whether hoistd lacked it.
  Status Run(std::optional<Model>* model, bool* made) {
    stored_ = FindStored(tree_);
    for (Stored& stored : stored_) {
      // Each view then begins at a whole element of the bytes.
      if (!stored.alike) stored.from -= stored.from % 16;
    }
    groups_ = GroupStored(tree_, stored_,
                          Grouper(tree_, options_.groups, options_.rule).Run());
    uint64_t bytes = 0;
    for (const Stored& one : stored_) bytes += one.to - one.from;
    if (HasParts(options_, bytes, session_)) {
      groups_ =
          InParts(std::move(groups_), &StoredGroup::stored,
                  [this](size_t i) { return stored_[i].to - stored_[i].from; });
    }
    if (groups_.empty()) {
      return Status(Code::kInvalidArgument,
                    "the module has no weight that hoist may keep");
    }
    std::string name = options_.name;
    if (name.empty()) {
      Status looked = FindSame(model, &name);
      if (!looked.ok() || model->has_value()) return looked;
    }
    *made = IsLacking(session_, name);
    return PublishAs(name, model);
  }

  // Ranges of bytes, and their groups.
  const std::vector<Stored>& stored() const { return stored_; }
  const std::vector<StoredGroup>& groups() const { return groups_; }

 private:
  // The bytes as host memory; on a GPU, a copy of them.
  static at::Tensor HostBytes(const Stored& stored) {
    c10::Storage storage(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(stored.storage));
    return View(std::move(storage), Bytes(stored.to - stored.from, stored.from))
        .to(at::kCPU);
  }

  // The published form of a range: all its names, or, if weights are views of
  // parts of it, plain bytes under the first name.
  std::vector<PublishTensor> Describe(const Stored& stored,
                                      const void* data) const {
    std::vector<PublishTensor> all;
    if (!stored.alike) {
      all.push_back({tree_.weights[stored.weights.front()].name(),
                     DType::kU8,
                     {static_cast<int64_t>(stored.to - stored.from)},
                     data,
                     {}});
      return all;
    }
    for (const size_t i : stored.weights) {
      const Weight& weight = tree_.weights[i];
      const Geometry geometry = GeometryOf(weight.tensor);
      DType dtype = DType::kU8;
      for (const TypePair& type : Types()) {
        if (type.torch == geometry.dtype) dtype = type.hoist;
      }
      for (const std::string& name : weight.names) {
        all.push_back({name, dtype, geometry.sizes, data, geometry.strides});
      }
    }
    return all;
  }

  // Its data are in `keep`.
  PublishOptions RequestOf(const StoredGroup& group,
                           std::vector<at::Tensor>* keep) const {
    PublishOptions request;
    request.group = group.name;
    request.readers = options_.readers;
    for (const size_t i : group.stored) {
      keep->push_back(HostBytes(stored_[i]));
      const void* data =
          keep->back().numel() == 0 ? nullptr : keep->back().const_data_ptr();
      for (PublishTensor& one : Describe(stored_[i], data)) {
        request.tensors.push_back(std::move(one));
      }
    }
    return request;
  }

  // Finds the model by its content, whoever published it; or else names it.
  Status FindSame(std::optional<Model>* model, std::string* name) const {
    std::vector<Content> contents;
    for (const StoredGroup& group : groups_) {
      std::vector<at::Tensor> keep;
      Result<Content> content = GroupContent(RequestOf(group, &keep));
      if (!content.ok()) return content.status();
      contents.push_back(*content);
    }
    const Content content = ModelContent(contents);
    Result<Model> found = session_.Find(content);
    if (found.ok()) {
      model->emplace(std::move(*found));
      return Status();
    }
    if (found.status().code() != Code::kNotFound) return found.status();
    constexpr char kDigits[] = "0123456789abcdef";
    *name = "libtorch-";
    for (size_t i = 0; i < 8; ++i) {
      name->push_back(kDigits[content[i] >> 4]);
      name->push_back(kDigits[content[i] & 15]);
    }
    return Status();
  }

  Status PublishAs(const std::string& name, std::optional<Model>* model) {
    for (const StoredGroup& group : groups_) {
      std::vector<at::Tensor> keep;
      PublishOptions request = RequestOf(group, &keep);
      request.model = name;
      Result<Model> now = session_.Publish(request);
      if (!now.ok()) return now.status();
      model->emplace(std::move(*now));
    }
    if ((*model)->group_count() != groups_.size()) {
      return Status(Code::kAlreadyExists,
                    "the model \"" + name + "\" has " +
                        std::to_string((*model)->group_count()) +
                        " groups, and not only this module's " +
                        std::to_string(groups_.size()) +
                        "; give it another name, or attach with `model`");
    }
    return Status();
  }

  const Tree& tree_;
  const AttachOptions& options_;
  Session& session_;
  std::vector<Stored> stored_;
  std::vector<StoredGroup> groups_;
};

}  // namespace internal
}  // namespace torch
}  // namespace v0
}  // namespace hoist

#endif  // HOIST_TORCH_PUBLISH_H_
