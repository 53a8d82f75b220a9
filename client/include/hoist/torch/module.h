// A module's weights: their shared bytes and their groups. Internal to torch.h.
#ifndef HOIST_TORCH_MODULE_H_
#define HOIST_TORCH_MODULE_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hoist/torch/source.h"
#include "hoist/torch/staged.h"

namespace hoist {
inline namespace v0 {
namespace torch {

// Which weights are staged together.
enum class Groups {
  // Each element of the outermost ModuleLists and Sequentials with several
  // weighted modules, and each largest subtree outside them. A block of 32 MiB
  // or more is several groups, "layers.0/1" and so on, if the module has a
  // budget or exceeds the device: a part of each then stays there.
  kBlock,
  kLeaf,  // Each module that owns weights.
};
// A name puts the module and all below it into that group. nullopt gives its
// own weights a separate group, and visits its children.
using GroupRule = std::function<std::optional<std::string>(
    const std::string& name, const ::torch::nn::Module& module)>;

namespace internal {

using Module = ::torch::nn::Module;

// A tensor object of modules, once for all its names.
struct Weight {
  at::Tensor tensor;
  std::vector<std::string> names;
  const Module* owner = nullptr;  // The first.
  bool buffer = false;
  bool hoisted = false;  // Else private to this process.

  const std::string& name() const { return names.front(); }
};

struct Node {
  const Module* module = nullptr;
  std::string name;
  std::vector<size_t> children;  // Seen first here.
  bool own = false;              // Own hoisted weights,
  bool any = false;              // or any below.
};

// A module tree; nodes in preorder, each module once.
struct Tree {
  std::vector<Node> nodes;
  std::unordered_map<std::string, const Module*> named;  // By all its names.
  std::vector<Weight> weights;  // In the order of their modules.
  std::unordered_map<const Module*, size_t> node_of;
  std::unordered_map<const c10::TensorImpl*, size_t> weight_of;
};

inline std::string Join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

inline void Walk(const Module& module, const std::string& name, Tree* tree) {
  const auto [known, fresh] =
      tree->node_of.try_emplace(&module, tree->nodes.size());
  const size_t node = known->second;
  tree->named.emplace(name, &module);
  if (fresh) tree->nodes.push_back({&module, name, {}, false, false});
  const auto add = [&](const std::string& key, const at::Tensor& tensor,
                       bool buffer) {
    if (!tensor.defined()) return;
    const auto [it, added] = tree->weight_of.try_emplace(
        tensor.unsafeGetTensorImpl(), tree->weights.size());
    if (added) tree->weights.push_back({tensor, {}, &module, buffer, false});
    tree->weights[it->second].names.push_back(Join(name, key));
  };
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    add(item.key(), item.value(), false);
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    add(item.key(), item.value(), true);
  }
  for (const auto& item : module.named_children()) {
    const size_t before = tree->nodes.size();
    Walk(*item.value(), Join(name, item.key()), tree);
    if (fresh && tree->nodes.size() > before) {
      tree->nodes[node].children.push_back(before);
    }
  }
}

// "a.1" covers "a.1" and "a.1.weight", not "a.10".
inline bool Covers(const std::string& prefix, const std::string& name) {
  return name.compare(0, prefix.size(), prefix) == 0 &&
         (name.size() == prefix.size() || name[prefix.size()] == '.');
}

// Why hoist cannot keep the tensor; empty: it can.
inline std::string WhyNot(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized() ||
      tensor.is_nested() || !tensor.has_storage()) {
    return "is no plain strided tensor";
  }
  if (!tensor.is_cpu() && !tensor.is_cuda() && !tensor.is_meta()) {
    return "is on " + tensor.device().str() + ", neither CPU, CUDA nor meta";
  }
  if (tensor.is_conj() || tensor.is_neg()) return "is a lazy conjugate";
  for (const TypePair& type : Types()) {
    if (type.torch == tensor.scalar_type()) return "";
  }
  return std::string("has the type ") + c10::toString(tensor.scalar_type()) +
         ", which hoist lacks";
}

// The raw pointer, also of a storage whose accessor throws.
inline const void* RawData(const at::Tensor& tensor) {
  return tensor.storage()
      .unsafeGetStorageImpl()
      ->_mutable_data_ptr_no_checks()
      .get();
}

// The device of a detached module's weights.
inline c10::Device HomeDevice(const at::Tensor& tensor) {
  return tensor.is_meta() ? c10::Device(at::kCPU) : tensor.device();
}

// FailedPrecondition: its bytes are nowhere. `theirs`: as in Choose.
inline Status CheckBytes(const Weight& weight, bool theirs) {
  if (weight.tensor.is_meta() && !theirs) {
    return Status(Code::kFailedPrecondition,
                  "\"" + weight.name() +
                      "\" is on the meta device and has no bytes; give `path` "
                      "or `model`, where they are");
  }
  if (!weight.hoisted || SpanOf(GeometryOf(weight.tensor)) == 0 ||
      OrphanOf(weight.tensor) != nullptr) {
    return Status();
  }
  if (IsLent(weight.tensor.storage())) {
    return Status(Code::kFailedPrecondition,
                  "\"" + weight.name() +
                      "\" is hoist's; if the module is attached already, "
                      "detach it first");
  }
  if (RawData(weight.tensor) == nullptr && !theirs) {
    return Status(Code::kFailedPrecondition,
                  "\"" + weight.name() +
                      "\" has no bytes of its own; give `path` or `model`, "
                      "where they are");
  }
  return Status();
}

// Chooses the hoisted weights; `theirs`: their bytes come from elsewhere. A
// weight that shares a storage with a private tensor, which may be written, is
// private.
inline Status Choose(const std::vector<std::string>& exclude,
                     const std::function<bool(const std::string&,
                                              const at::Tensor&)>& hoist_buffer,
                     bool theirs, Tree* tree) {
  std::unordered_set<const c10::StorageImpl*> kept;
  for (Weight& weight : tree->weights) {
    const bool excluded = std::any_of(
        weight.names.begin(), weight.names.end(), [&](const std::string& name) {
          return std::any_of(
              exclude.begin(), exclude.end(),
              [&](const std::string& prefix) { return Covers(prefix, name); });
        });
    weight.hoisted =
        !excluded &&
        (!weight.buffer ||
         (hoist_buffer && hoist_buffer(weight.name(), weight.tensor)));
    const std::string why = WhyNot(weight.tensor);
    if (weight.hoisted && !why.empty()) {
      return Status(Code::kInvalidArgument, "\"" + weight.name() + "\" " + why +
                                                "; name it in `exclude`");
    }
    if (!why.empty()) continue;
    if (Status s = CheckBytes(weight, theirs); !s.ok()) return s;
    if (!weight.hoisted) {
      kept.insert(weight.tensor.storage().unsafeGetStorageImpl());
    }
  }
  for (Weight& weight : tree->weights) {
    if (weight.hoisted &&
        kept.count(weight.tensor.storage().unsafeGetStorageImpl()) > 0) {
      weight.hoisted = false;
    }
  }
  for (const Weight& weight : tree->weights) {
    if (weight.hoisted) tree->nodes[tree->node_of[weight.owner]].own = true;
  }
  for (size_t i = tree->nodes.size(); i-- > 0;) {  // Children come later.
    Node& node = tree->nodes[i];
    node.any = node.own;
    for (const size_t child : node.children) {
      node.any = node.any || tree->nodes[child].any;
    }
  }
  return Status();
}

// Names a group for each module with hoisted weights of its own.
class Grouper {
 public:
  Grouper(const Tree& tree, Groups groups, const GroupRule& rule)
      : tree_(tree), groups_(groups), rule_(rule) {}

  std::unordered_map<const Module*, std::string> Run() {
    if (rule_) {
      ByRule(0);
    } else if (groups_ == Groups::kLeaf) {
      for (size_t i = 0; i < tree_.nodes.size(); ++i) Own(i, Name(i));
    } else {
      ByBlock(0);
    }
    return std::move(names_);
  }

 private:
  const Node& At(size_t node) const { return tree_.nodes[node]; }
  std::string Name(size_t node) const {
    return At(node).name.empty() ? "model" : At(node).name;
  }
  void Own(size_t node, const std::string& group) {
    if (At(node).own) names_[At(node).module] = group;
  }
  void Whole(size_t node, const std::string& group) {
    Own(node, group);
    for (const size_t child : At(node).children) Whole(child, group);
  }
  bool IsRow(size_t node) const {
    const Module* module = At(node).module;
    if (dynamic_cast<const ::torch::nn::ModuleListImpl*>(module) == nullptr &&
        dynamic_cast<const ::torch::nn::SequentialImpl*>(module) == nullptr) {
      return false;
    }
    const auto& children = At(node).children;
    return std::count_if(children.begin(), children.end(),
                         [&](size_t child) { return At(child).any; }) >= 2;
  }
  bool RowBelow(size_t node) const {
    const auto& children = At(node).children;
    return IsRow(node) ||
           std::any_of(children.begin(), children.end(),
                       [&](size_t child) { return RowBelow(child); });
  }
  // As Python names them (hoist/nn/_tree/grouping.py), so that the two share
  // models: a name that is taken already gets a "'".
  std::string Unique(size_t node) {
    std::string name = Name(node);
    while (!taken_.insert(name).second) name += "'";
    return name;
  }
  void ByBlock(size_t node) {
    const bool row = IsRow(node);
    if (!row && !RowBelow(node)) {
      if (At(node).any) Whole(node, Unique(node));
      return;
    }
    if (At(node).own) Own(node, Unique(node));
    for (const size_t child : At(node).children) {
      if (!row) {
        ByBlock(child);
      } else if (At(child).any) {
        Whole(child, Unique(child));
      }
    }
  }
  void ByRule(size_t node) {
    const std::optional<std::string> group =
        rule_(At(node).name, *At(node).module);
    if (group.has_value()) {
      Whole(node, *group);
      return;
    }
    Own(node, Name(node));
    for (const size_t child : At(node).children) ByRule(child);
  }

  const Tree& tree_;
  const Groups groups_;
  const GroupRule& rule_;
  std::unordered_map<const Module*, std::string> names_;
  std::unordered_set<std::string> taken_;
};

// A range of a storage that weights cover, kept by hoist.
struct Stored {
  c10::StorageImpl* storage = nullptr;
  uint64_t from = 0, to = 0;    // Of the storage, in bytes.
  std::vector<size_t> weights;  // Of the tree. Not all alike: views.
  bool alike = true;
};

// The hoisted weights' bytes, each once, in the order of the weights.
inline std::vector<Stored> FindStored(const Tree& tree) {
  std::vector<Stored> all;
  for (size_t i = 0; i < tree.weights.size(); ++i) {
    if (!tree.weights[i].hoisted) continue;
    const at::Tensor& tensor = tree.weights[i].tensor;
    const Geometry geometry = GeometryOf(tensor);
    const uint64_t from = geometry.offset * c10::elementSize(geometry.dtype);
    Stored stored{tensor.storage().unsafeGetStorageImpl(),
                  from,
                  from + SpanOf(geometry),
                  {i},
                  true};
    // Merges all earlier ranges that overlap it.
    const auto overlaps = [&](const Stored& other) {
      return other.storage == stored.storage && other.from < stored.to &&
             stored.from < other.to;
    };
    auto found = std::find_if(all.begin(), all.end(), overlaps);
    if (found == all.end()) {
      all.push_back(std::move(stored));
      continue;
    }
    found->alike =
        found->alike && found->from == stored.from && found->to == stored.to;
    found->from = std::min(found->from, stored.from);
    found->to = std::max(found->to, stored.to);
    found->weights.push_back(i);
    stored = *found;
    for (auto other = found + 1; other != all.end();) {
      if (!overlaps(*other)) {
        ++other;
        continue;
      }
      found->alike = false;
      found->from = stored.from = std::min(found->from, other->from);
      found->to = stored.to = std::max(found->to, other->to);
      found->weights.insert(found->weights.end(), other->weights.begin(),
                            other->weights.end());
      other = all.erase(other);
    }
  }
  return all;
}

// Ranges of one group.
struct StoredGroup {
  std::string name;
  std::vector<size_t> stored;
};

// Merges groups that share bytes, which are kept once.
inline std::vector<StoredGroup> GroupStored(
    const Tree& tree, const std::vector<Stored>& stored,
    const std::unordered_map<const Module*, std::string>& names) {
  std::unordered_map<std::string, std::string> parent;
  const auto root = [&](std::string name) {
    while (parent.count(name) > 0 && parent[name] != name) name = parent[name];
    return name;
  };
  const auto group_of = [&](size_t weight) {
    return root(names.at(tree.weights[weight].owner));
  };
  for (const Stored& one : stored) {
    const std::string first = group_of(one.weights.front());
    for (const size_t weight : one.weights) {
      const std::string other = group_of(weight);
      if (other != first) parent[other] = first;
    }
  }
  std::vector<StoredGroup> groups;
  std::unordered_map<std::string, size_t> index;
  for (size_t i = 0; i < stored.size(); ++i) {
    const std::string name = group_of(stored[i].weights.front());
    const auto [it, fresh] = index.try_emplace(name, groups.size());
    if (fresh) groups.push_back({name, {}});
    groups[it->second].stored.push_back(i);
  }
  return groups;
}

}  // namespace internal
}  // namespace torch
}  // namespace v0
}  // namespace hoist

#endif  // HOIST_TORCH_MODULE_H_
