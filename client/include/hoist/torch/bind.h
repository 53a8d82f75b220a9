// Binds a module's tensor objects to hoist's bytes, and unbinds them. Internal
// to torch.h.
//
// The module and other holders keep the same tensor object; set_data exchanges
// its data. A staged group's tensor shows the group's place on the device. An
// idle one has the true shape and type, but no data: access throws.
#ifndef HOIST_TORCH_BIND_H_
#define HOIST_TORCH_BIND_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hoist/torch/module.h"

namespace hoist {
inline namespace v0 {
namespace torch {
namespace internal {

// A former storage of the module.
struct Home {
  uint64_t bytes = 0;
  c10::Device device{at::kCPU};
  // Alive if another holder exists.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> was;
};

inline Home HomeOf(const at::Tensor& tensor) {
  return {tensor.storage().nbytes(), tensor.device(),
          tensor.storage().getWeakStorageImpl()};
}

// A hoisted weight: its geometry at home, and in its hoist tensor.
struct Bound {
  at::Tensor tensor;
  Geometry home;
  Geometry image;
  at::Tensor idle;
  at::Tensor staged;
};

// A tensor of a group, kept by hoist.
struct Kept {
  uint32_t group = 0;
  uint32_t tensor = 0;
  size_t home = 0;
  uint64_t from = 0;  // In its home.
  uint64_t bytes = 0;
  std::vector<Bound> bound;
  std::string name = {};  // Of its first weight.
  std::string group_name = {}, tensor_name = {};
};

// A weight moved to the device, where forward may write it.
struct Moved {
  at::Tensor tensor;
  size_t home = 0;
  Geometry geometry;
};

// Private weights of one storage, and their new storage.
struct Move {
  Home here;
  c10::Storage there;  // The old one, if on the device.
  std::vector<std::pair<at::Tensor, Geometry>> weights = {};
};

// Threads:  Begun and Ended of one group are serialized; the others exclusive.
class Bindings {
 public:
  std::shared_ptr<const Source> source;  // Of all.
  std::vector<Home> homes;
  std::vector<Kept> kept;
  std::vector<Moved> moved;
  std::vector<std::vector<size_t>> of_group;  // Of `kept`.

  // `name`: a weight of `kept[i]`, for the error on misuse.
  void MakeIdle(size_t i, const std::string& name, const Model& model) {
    const std::string group(model.group_name(kept[i].group));
    kept[i].group_name = group;
    kept[i].tensor_name =
        std::string(model.tensors(kept[i].group)[kept[i].tensor].name());
    const c10::Storage storage = Borrow(kept[i].bytes, c10::Device(at::kCPU));
    kept[i].name = name;
    storage.unsafeGetStorageImpl()
        ->release_data_and_set_meta_custom_data_ptr_error_msg_(
            "hoist: \"" + name + "\" is in hoistd, and its group \"" + group +
            "\" is not staged; use it, and take views of it, in a scope of "
            "attached.Use(...), copy it by attached.Value(\"" +
            name + "\"), or attached.Detach()");
    for (Bound& bound : kept[i].bound) {
      bound.idle = View(storage, bound.image, bound.tensor.is_inference());
    }
  }

  // Makes the idle tensors of `kept[i]` orphans. It is not staged.
  void MakeOrphans(size_t i, const std::string& why) {
    const Kept& one = kept[i];
    MakeOrphan(
        one.bound.front().idle.storage(),
        {source, one.group_name, one.tensor_name, one.bytes,
         homes[one.home].device},
        "hoist: \"" + one.name + "\" " + why + "; attach the module again");
  }

  void Release() {
    for (const Kept& one : kept) {
      for (const Bound& bound : one.bound) SetData(bound.tensor, bound.idle);
    }
  }

  void Begun(uint32_t group, const std::vector<at::Tensor>& tensors) {
    for (const size_t i : of_group[group]) {
      for (Bound& bound : kept[i].bound) {
        if (!bound.staged.defined()) {
          bound.staged = View(tensors[kept[i].tensor].storage(), bound.image,
                              bound.tensor.is_inference());
        }
        bound.tensor.set_data(bound.staged);
      }
    }
  }

  void Ended(uint32_t group) {
    for (const size_t i : of_group[group]) Unbind(kept[i]);
  }

  // The new storage of `home`'s private weights, with the bytes. Changes
  // nothing. Throws torch's exceptions.
  static Move Prepare(const at::Tensor& home, c10::Device device) {
    Move move{HomeOf(home), home.storage(), {}};
    if (home.device() == device) return move;
    move.there = Allocate(move.here.bytes, device, /*all=*/true);
    Copy(home.storage(), 0, move.there, 0, move.here.bytes);
    return move;
  }

  void Commit(const Move& move) {
    const bool moves = move.there.device() != move.here.device;
    if (moves) homes.push_back(move.here);
    for (const auto& [tensor, geometry] : move.weights) {
      if (moves) moved.push_back({tensor, homes.size() - 1, geometry});
      SetData(tensor, View(move.there, geometry, tensor.is_inference()));
    }
  }

  // Allocates everything before any tensor changes. Throws torch's exceptions.
  // Weights that hoistd has lost, or without `staged` all that are not in this
  // process, are left without bytes and listed in `lost`; `why`, if ok before,
  // gets the first reason.
  Status GiveBack(StagedTensors* staged, std::vector<std::string>* lost,
                  Status* why) {
    lost->clear();
    std::vector<bool> alive(homes.size(), false);
    const std::vector<c10::Storage> storages = OpenHomes(&alive);
    std::vector<bool> gone(kept.size(), false);
    for (uint32_t group = 0; group < of_group.size(); ++group) {
      Status fetched = Fetch(staged, group, alive, storages);
      if (fetched.ok()) continue;
      if (fetched.code() != Code::kDataLoss) return fetched;
      if (why->ok()) *why = fetched;
      for (const size_t i : of_group[group]) {
        gone[i] = !alive[kept[i].home];
        if (gone[i]) lost->push_back(kept[i].name);
      }
    }
    if (staged != nullptr) {
      if (Status s = staged->Check(); !s.ok()) return s;
    }
    const std::vector<c10::Storage> back = CopyMoved();
    for (size_t i = 0; i < kept.size(); ++i) {
      const Kept& one = kept[i];
      if (gone[i]) {
        // A resident one is bound, with its bytes, until `staged` goes.
        Unbind(one);
        MakeOrphans(i, "was in hoistd alone, which has ended");
        continue;
      }
      for (const Bound& bound : one.bound) {
        bound.tensor.set_data(
            View(storages[one.home], bound.home, bound.tensor.is_inference()));
      }
    }
    ShowMoved(back);
    return Status();
  }

  // Private weights lie where they did before Attach. Throws torch's
  // exceptions, and changes nothing then.
  void MoveBack() { ShowMoved(CopyMoved()); }

  // Makes existing views show the module's own bytes: those of returned
  // weights, if on the same device.
  void ShowHomes() const {
    for (const Kept& one : kept) {
      const Bound& first = one.bound.front();
      const c10::Storage home = first.tensor.storage();
      if (OrphanOf(first.tensor) != nullptr) continue;
      const auto* data = static_cast<const char*>(home.data());
      for (const at::Tensor& viewed : {first.staged, first.idle}) {
        if (!viewed.defined() || home.device() != viewed.device()) continue;
        Show(viewed.storage(),
             {const_cast<char*>(data + one.from), new c10::Storage(home),
              [](void* held) { delete static_cast<c10::Storage*>(held); },
              viewed.device()});
      }
    }
  }

  static void Copy(const c10::Storage& from, uint64_t at,
                   const c10::Storage& to, uint64_t to_at, uint64_t bytes) {
    if (bytes == 0) return;
    View(to, Bytes(bytes, to_at)).copy_(View(from, Bytes(bytes, at)));
  }

 private:
  static void Unbind(const Kept& one) {
    for (const Bound& bound : one.bound) {
      bound.tensor.set_data(bound.idle);
      // Its old place gets other bytes: a view that backward kept must not take
      // them for the weight.
      if (!bound.tensor.is_inference()) {
        bound.tensor.unsafeGetTensorImpl()->bump_version();
      }
    }
  }

  // By home: a storage there, with the present bytes. None for a weight that
  // somebody gave other memory.
  std::vector<c10::Storage> CopyMoved() const {
    std::vector<c10::Storage> storages(homes.size());
    for (const Moved& one : moved) {
      const Home& home = homes[one.home];
      if (storages[one.home] || one.tensor.storage().nbytes() != home.bytes) {
        continue;
      }
      bool alive = false;
      storages[one.home] = Open(home, /*all=*/true, &alive);
      Copy(one.tensor.storage(), 0, storages[one.home], 0, home.bytes);
    }
    return storages;
  }

  void ShowMoved(const std::vector<c10::Storage>& storages) const {
    for (const Moved& one : moved) {
      if (!storages[one.home]) continue;
      one.tensor.set_data(
          View(storages[one.home], one.geometry, one.tensor.is_inference()));
    }
  }

  // Reads the group's bytes that are not in this process. DataLoss: lost.
  Status Fetch(StagedTensors* staged, uint32_t group,
               const std::vector<bool>& alive,
               const std::vector<c10::Storage>& storages) const {
    const bool here = std::all_of(
        of_group[group].begin(), of_group[group].end(),
        [&](size_t i) { return static_cast<bool>(alive[kept[i].home]); });
    if (here) return Status();  // Unchanged bytes.
    if (staged == nullptr) return Status(Code::kDataLoss, "no hoistd has them");
    Result<StagedTensors::Scope> scope = staged->Stage(group);
    if (!scope.ok()) return scope.status();
    const std::vector<at::Tensor> tensors = scope->tensors();
    for (const size_t i : of_group[group]) {
      const Kept& one = kept[i];
      if (alive[one.home]) continue;
      Copy(tensors[one.tensor].storage(), 0, storages[one.home], one.from,
           one.bytes);
    }
    return scope->End();
  }

  static c10::Storage Allocate(uint64_t bytes, c10::Device device, bool all) {
    const auto options = at::TensorOptions().dtype(at::kByte).device(device);
    const auto count = static_cast<int64_t>(bytes);
    // Bytes that no weight covers are zero, not random.
    return (all ? at::empty({count}, options) : at::zeros({count}, options))
        .storage();
  }

  // The former storage if it is `alive`, else a new one.
  static c10::Storage Open(const Home& home, bool all, bool* alive) {
    if (home.was.has_value()) {
      if (auto was = home.was->lock()) {
        *alive = true;
        return c10::Storage(std::move(was));
      }
    }
    return Allocate(home.bytes, home.device, all);
  }

  // Of hoisted weights.
  std::vector<c10::Storage> OpenHomes(std::vector<bool>* alive) const {
    std::vector<uint64_t> covered(homes.size(), 0);
    for (const Kept& one : kept) covered[one.home] += one.bytes;
    std::vector<c10::Storage> storages(homes.size());
    for (const Kept& one : kept) {
      if (storages[one.home]) continue;
      const Home& home = homes[one.home];
      bool is_alive = false;
      storages[one.home] =
          Open(home, covered[one.home] >= home.bytes, &is_alive);
      (*alive)[one.home] = is_alive;
    }
    return storages;
  }
};

}  // namespace internal
}  // namespace torch
}  // namespace v0
}  // namespace hoist

#endif  // HOIST_TORCH_BIND_H_
