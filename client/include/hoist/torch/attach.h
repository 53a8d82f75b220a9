// The steps of Attach. Internal to torch.h.
#ifndef HOIST_TORCH_ATTACH_H_
#define HOIST_TORCH_ATTACH_H_

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hoist/torch.h"
#include "hoist/torch/parts.h"
#include "hoist/torch/publish.h"

namespace hoist {
inline namespace v0 {
namespace torch {
namespace internal {

inline Status Refuse(const std::string& name, const std::string& why) {
  return Status(Code::kInvalidArgument, "\"" + name + "\" " + why);
}

class Attacher {
 public:
  Attacher(::torch::nn::Module& module, Session& session,
           const AttachOptions& options)
      : session_(session),
        options_(options),
        state_(std::make_unique<Attached::State>()) {
    Walk(module, "", &tree_);
  }
  Attacher(const Attacher&) = delete;
  Attacher& operator=(const Attacher&) = delete;
  // An attach that has failed leaves no model that hoistd lacked before, unless
  // another session uses it.
  ~Attacher() {
    if (state_ == nullptr) return;              // Taken.
    if (made_ && state_->staged.has_value()) {  // The plan has the model.
      (void)Keep(
          session_.DescribeModel(std::string(state_->staged->model().name())));
    }
    state_.reset();
    // No effect if it was moved away.
    if (model_.has_value()) EndUse(session_, *model_, made_);
  }

  Status Run() {
    if (!options_.plan.order.empty()) {
      return Status(Code::kInvalidArgument,
                    "plan.order is set; name groups in `order`");
    }
    const bool theirs = !options_.path.empty() || !options_.model.empty();
    if (Status s =
            Choose(options_.exclude, options_.hoist_buffer, theirs, &tree_);
        !s.ok()) {
      return s;
    }
    std::shared_ptr<const Source> left;
    if (Status s = theirs ? Status() : FindLeft(&left); !s.ok()) return s;
    Status found = theirs            ? Keep(FindModel())
                   : left != nullptr ? Keep(FindAgain(*left))
                                     : publisher_.Run(&model_, &made_);
    if (!found.ok()) return found;
    state_->bindings.source = std::make_shared<const Source>(
        Source{at_.has_value() ? *at_ : SourceOf(*model_),
               std::string(model_->name()), model_->fingerprint()});
    Status bound = theirs            ? BindByName(*model_)
                   : left != nullptr ? BindLeft(*model_)
                                     : BindPublished(*model_);
    if (bound.ok()) bound = MakePlan();
    return bound.ok() ? TakeOver() : bound;
  }

  Attached Take() { return Attached(std::move(state_)); }

 private:
  Status Keep(Result<Model> found) {
    if (!found.ok()) return found.status();
    model_.emplace(std::move(*found));
    return Status();
  }

  // Moves the model away, unless it fails.
  Status MakePlan() {
    PlanOptions plan = options_.plan;
    if (Status s = FillOrder(*model_, &plan); !s.ok()) return s;
    if (plan.blocks.empty() && !options_.rule) plan.blocks = BlocksOf(*model_);
    state_->turn_deadline = options_.turn_deadline;
    Result<StagedTensors> staged = StagedTensors::Create(
        session_, std::move(*model_), plan, state_->bindings.source->at);
    if (!staged.ok()) return staged.status();
    state_->device = staged->device();
    state_->staged.emplace(std::move(*staged));
    Index();
    return Status();
  }

  // The caller's order; else the module's own, until EndPass learns another.
  Status FillOrder(const Model& model, PlanOptions* plan) const {
    for (const std::string& name : options_.order) {
      Result<std::vector<uint32_t>> groups = GroupsNamed(model, name);
      if (!groups.ok()) return groups.status();
      plan->order.insert(plan->order.end(), groups->begin(), groups->end());
    }
    if (!plan->order.empty()) return Status();
    plan->learn = true;
    std::vector<bool> known(model.group_count(), false);
    for (const Kept& kept : state_->bindings.kept) {
      if (known[kept.group] || model.group_image_bytes(kept.group) == 0) {
        continue;
      }
      known[kept.group] = true;
      plan->order.push_back(kept.group);
    }
    return Status();
  }

  Result<Model> FindModel() {
    if (options_.path.empty()) return session_.DescribeModel(options_.model);
    if (!options_.model.empty()) {
      return Status(Code::kInvalidArgument, "give `path` or `model`, not both");
    }
    RegisterOptions given;
    given.path = options_.path;
    given.name = options_.name.empty() ? options_.path : options_.name;
    // A model's name may not begin or end with "/".
    const size_t first = given.name.find_first_not_of('/');
    const size_t last = given.name.find_last_not_of('/');
    if (first == std::string::npos) {
      return Status(Code::kInvalidArgument, "`name` is empty");
    }
    given.name = given.name.substr(first, last - first + 1);
    given.grouping =
        options_.groups == Groups::kLeaf ? Grouping::kModule : Grouping::kBlock;
    given.readers = options_.readers;
    Result<Model> whole = Register(given);
    if (!whole.ok() || !HasParts(options_, whole->image_bytes(), session_)) {
      return whole;
    }
    const size_t blocks = whole->group_count();
    given.groups = PartsOf(*whole);
    if (given.groups.size() == blocks) return whole;
    EndUse(session_, *whole, made_);
    given.name += "-parts";
    return Register(given);
  }

  Result<Model> Register(const RegisterOptions& given) {
    at_ = given;
    made_ = IsLacking(session_, given.name);
    return session_.RegisterModel(given);
  }

  // The model's groups, large ones divided.
  static std::vector<GroupSpec> PartsOf(const Model& model) {
    std::vector<GroupSpec> groups;
    std::unordered_map<std::string, uint64_t> bytes;
    for (uint32_t g = 0; g < model.group_count(); ++g) {
      groups.push_back({std::string(model.group_name(g)), {}});
      for (const TensorView& view : model.tensors(g)) {
        groups.back().tensors.emplace_back(view.name());
        bytes[groups.back().tensors.back()] = view.size_bytes();
      }
    }
    return InParts(std::move(groups), &GroupSpec::tensors,
                   [&](const std::string& tensor) { return bytes.at(tensor); });
  }

  // Where a former Attached left the weights; nullptr: they are here.
  Status FindLeft(std::shared_ptr<const Source>* left) const {
    const Weight* other = nullptr;
    for (const Weight& weight : tree_.weights) {
      if (!weight.hoisted) continue;
      const Orphan* orphan = OrphanOf(weight.tensor);
      if (orphan == nullptr) {
        if (SpanOf(GeometryOf(weight.tensor)) > 0) other = &weight;
      } else if (*left == nullptr) {
        *left = orphan->source;
      } else if ((*left)->fingerprint != orphan->source->fingerprint) {
        other = &weight;
      }
    }
    if (*left == nullptr || other == nullptr) return Status();
    return Status(Code::kFailedPrecondition,
                  "some weights were left in hoistd, as model \"" +
                      (*left)->model + "\", and \"" + other->name() +
                      "\" was not; give `path` or `model`, where all are, or "
                      "see `exclude`");
  }

  Result<Model> FindAgain(const Source& left) {
    at_ = left.at;
    const auto* files = std::get_if<RegisterOptions>(&left.at);
    made_ = files != nullptr && IsLacking(session_, files->name);
    Result<Model> found = left.Find(session_);
    if (found.ok() || (found.status().code() != Code::kNotFound &&
                       found.status().code() != Code::kDataLoss)) {
      return found;
    }
    return Status(found.status().code(), found.status().message() +
                                             "; give `path` or `model`, where "
                                             "the module's weights are");
  }

  size_t AddHome(const at::Tensor& tensor) {
    const auto [it, fresh] = homes_.try_emplace(
        tensor.storage().unsafeGetStorageImpl(), state_->bindings.homes.size());
    if (fresh) state_->bindings.homes.push_back(HomeOf(tensor));
    return it->second;
  }

  static std::optional<uint32_t> FindTensor(
      const std::vector<TensorView>& views, const std::string& name) {
    for (uint32_t i = 0; i < views.size(); ++i) {
      if (views[i].name() == name) return i;
    }
    return std::nullopt;
  }

  Status BindPublished(const Model& model) {
    Bindings& bindings = state_->bindings;
    bindings.of_group.resize(model.group_count());
    for (const StoredGroup& group : publisher_.groups()) {
      Result<uint32_t> number = model.FindGroup(group.name);
      if (!number.ok()) return number.status();
      const std::vector<TensorView> views = model.tensors(*number);
      for (const size_t i : group.stored) {
        const Stored& stored = publisher_.stored()[i];
        const Weight& first = tree_.weights[stored.weights.front()];
        const auto index = FindTensor(views, first.name());
        if (!index.has_value()) {
          return Refuse(first.name(), "was published, and is not there");
        }
        Kept kept{*number,
                  *index,
                  AddHome(first.tensor),
                  stored.from,
                  stored.to - stored.from,
                  {}};
        for (const size_t w : stored.weights) {
          const Geometry home = GeometryOf(tree_.weights[w].tensor);
          Geometry image = home;
          image.offset -= static_cast<int64_t>(stored.from) /
                          static_cast<int64_t>(c10::elementSize(home.dtype));
          kept.bound.push_back({tree_.weights[w].tensor, home, image, {}, {}});
        }
        bindings.of_group[*number].push_back(bindings.kept.size());
        bindings.kept.push_back(std::move(kept));
        bindings.MakeIdle(bindings.kept.size() - 1, first.name(), model);
      }
    }
    return Status();
  }

  using Places = std::unordered_map<std::string, std::pair<uint32_t, uint32_t>>;

  std::optional<std::pair<uint32_t, uint32_t>> Find(
      const Places& places, const Weight& weight) const {
    for (const std::string& name : weight.names) {
      const auto found =
          places.find(options_.rename ? options_.rename(name) : name);
      if (found != places.end()) return found->second;
    }
    return std::nullopt;
  }

  static Status CheckSame(const Weight& weight, const TensorView& view) {
    std::string type = "?";
    for (const TypePair& pair : Types()) {
      if (pair.torch == weight.tensor.scalar_type()) type = NameOf(pair.hoist);
    }
    if (type != NameOf(view.dtype())) {
      return Refuse(weight.name(), "is " + type + " in the module and " +
                                       NameOf(view.dtype()) + " in the model");
    }
    if (weight.tensor.sizes().vec() != view.shape()) {
      return Refuse(weight.name(),
                    "has the shape " + c10::str(weight.tensor.sizes()) +
                        " in the module and " +
                        c10::str(c10::IntArrayRef(view.shape())) +
                        " in the model");
    }
    return Status();
  }

  Status BindByName(const Model& model) {
    Bindings& bindings = state_->bindings;
    bindings.of_group.resize(model.group_count());
    std::vector<std::vector<TensorView>> views;
    Places places;
    for (uint32_t g = 0; g < model.group_count(); ++g) {
      views.push_back(model.tensors(g));
      for (uint32_t t = 0; t < views[g].size(); ++t) {
        places[std::string(views[g][t].name())] = {g, t};
      }
    }
    std::set<std::string_view> taken;
    // By offset, except empty ones, which have the next one's.
    std::map<std::pair<uint32_t, uint64_t>, size_t> known;
    for (const Weight& weight : tree_.weights) {
      const auto place = Find(places, weight);
      if (!place.has_value()) {
        if (!weight.hoisted && !weight.tensor.is_meta()) continue;
        return Status(
            Code::kNotFound,
            "the model \"" + std::string(model.name()) + "\" has no tensor \"" +
                weight.name() +
                (weight.hoisted ? "\"; see `rename`, or name it in `exclude`"
                                : "\", which is on the meta device: see "
                                  "`rename`, or make it on the CPU"));
      }
      const TensorView& view = views[place->first][place->second];
      taken.insert(view.name());
      if (Status s = CheckSame(weight, view); !s.ok()) return s;
      if (!weight.hoisted) {
        if (WhyNot(weight.tensor).empty() && !IsHoists(weight.tensor)) {
          to_load_.push_back({weight.tensor, *place});
        }
        continue;
      }
      // Tied here, or named twice there: one home.
      const auto [it, fresh] = known.try_emplace(
          {place->first, view.size_bytes() > 0 ? view.offset_bytes() : ~0ull},
          bindings.kept.size());
      if (fresh) {
        bindings.of_group[place->first].push_back(bindings.kept.size());
        bindings.kept.push_back({place->first,
                                 place->second,
                                 bindings.homes.size(),
                                 0,
                                 view.size_bytes(),
                                 {}});
        bindings.homes.push_back(
            {view.size_bytes(), HomeOrOrphans(weight.tensor), std::nullopt});
      }
      const Geometry geometry{weight.tensor.scalar_type(), view.shape(),
                              view.strides(), 0};
      Kept& kept = bindings.kept[it->second];
      if (kept.bytes != view.size_bytes()) {
        return Refuse(weight.name(), "is a part of another weight's bytes");
      }
      kept.bound.push_back({weight.tensor, geometry, geometry, {}, {}});
      bindings.MakeIdle(it->second, weight.name(), model);
    }
    for (const auto& [name, place] : places) {
      if (Status s = CheckBeside(name, taken); !s.ok()) return s;
    }
    return Status();
  }

  // Refuses to take a tensor without its companions: a scale, a zero point or
  // an order of rows, which define the meaning of its bytes. A companion is
  // below the same leaf, or continues the tensor's name.
  static Status CheckBeside(const std::string& name,
                            const std::set<std::string_view>& taken) {
    constexpr std::string_view kWeight = "weight";
    if (taken.count(name) > 0) return Status();
    for (size_t at = name.find_first_of("._"); at != std::string::npos;
         at = name.find_first_of("._", at + 1)) {
      std::string weight = name.substr(0, at);
      const bool longer =
          name[at] == '.' || name.find('.', at) == std::string::npos;
      if (!longer || taken.count(weight) == 0) {
        if (name[at] != '.') continue;
        weight.append(".").append(kWeight);
        if (taken.count(weight) == 0) continue;
      }
      return Status(Code::kUnimplemented,
                    "the model has \"" + name + "\" beside \"" + weight +
                        "\", and the module has no place for it: without it "
                        "the weight's bytes may not be its value; give the "
                        "module a buffer of that name");
    }
    return Status();
  }

  static c10::Device HomeOrOrphans(const at::Tensor& tensor) {
    const Orphan* orphan = OrphanOf(tensor);
    return orphan != nullptr ? orphan->home : HomeDevice(tensor);
  }

  // Binds to the places that the weights' own storages name.
  Status BindLeft(const Model& model) {
    Bindings& bindings = state_->bindings;
    bindings.of_group.resize(model.group_count());
    std::unordered_map<const Orphan*, size_t> known;  // Of one storage.
    for (const Weight& weight : tree_.weights) {
      const Orphan* orphan = weight.hoisted ? OrphanOf(weight.tensor) : nullptr;
      if (orphan == nullptr) continue;
      const auto [it, fresh] = known.try_emplace(orphan, bindings.kept.size());
      if (fresh) {
        Result<uint32_t> group = model.FindGroup(orphan->group);
        if (!group.ok()) return group.status();
        const auto index = FindTensor(model.tensors(*group), orphan->tensor);
        if (!index.has_value()) {
          return Refuse(weight.name(), "was left in hoistd, and is not there");
        }
        bindings.of_group[*group].push_back(bindings.kept.size());
        bindings.kept.push_back(
            {*group, *index, bindings.homes.size(), 0, orphan->bytes, {}});
        bindings.homes.push_back({orphan->bytes, orphan->home, std::nullopt});
      }
      const Geometry geometry = GeometryOf(weight.tensor);
      bindings.kept[it->second].bound.push_back(
          {weight.tensor, geometry, geometry, {}, {}});
      bindings.MakeIdle(it->second, weight.name(), model);
    }
    return Status();
  }

  // Finds the groups below each module.
  void Index() {
    Attached::State& state = *state_;
    for (const Kept& kept : state.bindings.kept) {
      for (const Bound& bound : kept.bound) {
        state.group_of[bound.tensor.unsafeGetTensorImpl()] = kept.group;
      }
    }
    for (const Weight& weight : tree_.weights) {
      for (const std::string& name : weight.names) {
        state.weights.emplace(name, weight.tensor);
      }
    }
    state.modules = tree_.named;
    for (size_t i = tree_.nodes.size(); i-- > 0;) {  // Children come later.
      const Node& node = tree_.nodes[i];
      std::vector<uint32_t>& groups = state.groups_of[node.module];
      const auto add = [&](uint32_t group) {
        if (std::find(groups.begin(), groups.end(), group) == groups.end()) {
          groups.push_back(group);
        }
      };
      // By the module itself: a tie has one owner and several users.
      const auto own = [&](const auto& tensors) {
        for (const auto& item : tensors) {
          const auto found =
              state.group_of.find(item.value().unsafeGetTensorImpl());
          if (found != state.group_of.end()) add(found->second);
        }
      };
      own(node.module->named_parameters(/*recurse=*/false));
      own(node.module->named_buffers(/*recurse=*/false));
      for (const auto& child : node.module->named_children()) {
        for (const uint32_t group : state.groups_of[child.value().get()]) {
          add(group);
        }
      }
      std::sort(groups.begin(), groups.end());
    }
  }

  using Values = std::unordered_map<c10::TensorImpl*, at::Tensor>;

  // Reads the private weights that the model has.
  Status Load(Values* values) {
    for (const auto& [tensor, place] : to_load_) {
      Result<StagedTensors::Scope> scope = state_->staged->Stage(place.first);
      if (!scope.ok()) return scope.status();
      values->emplace(tensor.unsafeGetTensorImpl(),
                      scope->tensors()[place.second].to(
                          HomeOrOrphans(tensor), tensor.scalar_type(),
                          /*non_blocking=*/false, /*copy=*/true));
    }
    return to_load_.empty() ? Status() : state_->staged->Check();
  }

  // Moves private weights to the device, with the model's values. All that can
  // fail comes first; then the module changes at once.
  Status TakeOver() {
    Values values, in_place;
    if (Status s = Load(&values); !s.ok()) return s;
    std::map<c10::StorageImpl*, Move> moves;
    for (const Weight& weight : tree_.weights) {
      const at::Tensor& tensor = weight.tensor;
      if (weight.hoisted || !WhyNot(tensor).empty() || IsHoists(tensor)) {
        continue;
      }
      const auto value = values.find(tensor.unsafeGetTensorImpl());
      const bool has_bytes = !tensor.is_meta() && OrphanOf(tensor) == nullptr;
      if (!has_bytes && value == values.end()) continue;
      const at::Tensor& home = has_bytes ? tensor : value->second;
      const auto [it, fresh] =
          moves.try_emplace(home.storage().unsafeGetStorageImpl());
      Move& move = it->second;
      if (fresh) move = Bindings::Prepare(home, state_->device);
      if (has_bytes && home.device() == state_->device) {
        if (value != values.end()) in_place.insert(*value);
        continue;
      }
      move.weights.emplace_back(tensor, GeometryOf(home));
      if (has_bytes && value != values.end()) {
        View(move.there, GeometryOf(home)).copy_(value->second);
      }
    }
    for (const Weight& weight : tree_.weights) {
      const auto value = in_place.find(weight.tensor.unsafeGetTensorImpl());
      if (value == in_place.end()) continue;
      View(weight.tensor.storage(), GeometryOf(weight.tensor))
          .copy_(value->second);
    }
    for (const auto& [storage, move] : moves) state_->bindings.Commit(move);
    state_->bindings.Release();
    state_->Watch();
    return Status();
  }

  Session& session_;
  const AttachOptions& options_;
  Tree tree_;
  Publisher publisher_{tree_, options_, session_};
  std::optional<ModelSource> at_;  // Unless the model says itself.
  std::optional<Model> model_;     // Until the plan has it.
  bool made_ = false;              // hoistd lacked it.
  std::unordered_map<c10::StorageImpl*, size_t> homes_;
  std::vector<std::pair<at::Tensor, std::pair<uint32_t, uint32_t>>> to_load_;
  std::unique_ptr<Attached::State> state_;
};

}  // namespace internal

inline Result<Attached> Attach(::torch::nn::Module& module, Session& session,
                               const AttachOptions& options) {
  std::optional<Attached> attached;
  Status status = internal::Catching([&] {
    internal::Attacher attacher(module, session, options);
    Status s = attacher.Run();
    if (s.ok()) attached.emplace(attacher.Take());
    return s;
  });
  if (!status.ok()) return status;
  return std::move(*attached);
}

}  // namespace torch
}  // namespace v0
}  // namespace hoist

#endif  // HOIST_TORCH_ATTACH_H_
