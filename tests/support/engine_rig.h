// An Engine over an emulated device, real files and a real spill store, with
// fault injection in each.
#ifndef HOIST_TESTS_SUPPORT_ENGINE_RIG_H_
#define HOIST_TESTS_SUPPORT_ENGINE_RIG_H_

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/base/clock.h"
#include "daemon/base/status.h"
#include "daemon/core/device_space.h"
#include "daemon/device/emulated_device.h"
#include "daemon/engine/engine.h"
#include "daemon/io/aligned_buffer.h"
#include "daemon/io/create_io_engine.h"
#include "daemon/keeper/keep.h"
#include "daemon/link/link.h"
#include "daemon/store/spill_store.h"
#include "daemon/successor/persisted_host.h"
#include "daemon/successor/persisted_node.h"
#include "gtest/gtest.h"
#include "hoist/shared/unique_fd.h"
#include "tests/support/faulty_device.h"
#include "tests/support/faulty_io.h"
#include "tests/support/holding_store.h"
#include "tests/support/io_wait.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/until.h"

namespace hoistd::testing {

// Time that advances at the test's command. Thread-safe.
class ManualClock final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() + absl::Seconds(seconds_.load());
  }
  void Advance(int64_t seconds) { seconds_ += seconds; }

 private:
  std::atomic<int64_t> seconds_ = 1'000'000;
};

struct EngineRigOptions {
  uint64_t host_bytes = uint64_t{8} << 20;
  uint64_t device_bytes = uint64_t{8} << 20;
  uint64_t pageable_bytes = 0;
  bool saves_at_once = false;
  bool spills = true;
  uint32_t devices = 1;
  bool keeps = false;  // What an engine has outlives it, for the next one.
};

class EngineRig {
 public:
  static constexpr uint64_t kSeed = 11;

  explicit EngineRig(EngineRigOptions options = {}) : options_(options) {
    host_ = *AlignedBuffer::Create(options_.host_bytes);
    io_ = *CreateIoEngine({.choice = IoChoice::kThreads, .threads = 2});
    faulty_io.emplace(*io_);
    for (uint32_t index = 0; index < options_.devices; ++index) {
      EmulatedDeviceOptions device;
      device.index = DeviceIndex(index);
      device.total_bytes = options_.device_bytes;
      device.span_bytes = DeviceSpace::SpanFor(options_.device_bytes,
                                               EmulatedDevice::kGranularity);
      devices_.push_back(*EmulatedDevice::Create(device));
      faulty_devices.push_back(
          std::make_unique<FaultyDevice>(*devices_.back()));
    }
    faulty_device = faulty_devices[0].get();
  }
  ~EngineRig() { Stop(); }

  absl::Status Start() {
    EngineParts parts;
    if (options_.spills) {
      HOIST_ASSIGN_OR_RETURN(
          store_,
          SpillStore::Open({.dir = dir / "spill", .capacity_bytes = 1 << 30},
                           *faulty_io));
    }
    parts.node.host_capacity_bytes = options_.host_bytes;
    parts.node.slab_bytes = EmulatedDevice::kGranularity;
    parts.node.spill_capacity_bytes = options_.spills ? 1 << 30 : 0;
    parts.mover.host = host_.span();
    parts.node.pageable_bytes = options_.pageable_bytes;
    parts.node.saves_at_once = options_.saves_at_once;
    if (options_.pageable_bytes > 0) {
      HOIST_ASSIGN_OR_RETURN(pageable_,
                             AlignedBuffer::Create(options_.pageable_bytes));
      parts.mover.pageable = pageable_.span();
      parts.mover.make_pages = [this](std::span<std::byte>) {
        return memory_is_short ? absl::ResourceExhaustedError("no memory")
                               : absl::OkStatus();
      };
    }
    parts.mover.io = &*faulty_io;
    parts.mover.store = store_.get();
    for (const auto& device : faulty_devices) {
      parts.node.device_capacity_bytes.push_back(options_.device_bytes);
      parts.device_views.push_back({device->info(), options_.device_bytes,
                                    EmulatedDevice::kGranularity});
      // In true time: the rate of current copies depends on the time of earlier
      // ones.
      HOIST_ASSIGN_OR_RETURN(auto link, Link::Create(*device, monotonic_));
      parts.mover.links.push_back(link.get());
      links_.push_back(std::move(link));
    }
    parts.clock = &clock;
    parts.version = "test";
    if (options_.keeps) HOIST_RETURN_IF_ERROR(TakeOver(parts));
    HOIST_ASSIGN_OR_RETURN(engine_, Engine::Create(std::move(parts)));
    engine_->Resize(OnHost(), {options_.host_bytes});
    return absl::OkStatus();
  }
  void Stop() {
    engine_.reset();
    links_.clear();
    store_.reset();
    keep_.reset();
  }
  Engine& engine() { return *engine_; }
  std::span<std::byte> host() { return host_.span(); }
  std::span<std::byte> pageable() { return pageable_.span(); }

  // --- The verbs, each with a wait ------------------------------------------

  // The peer for evictions: an admin of that uid.
  static inline const Peer kAdmin = {.uid = User(1), .admin = true};
  SessionId Open(uint32_t uid = 1) {
    OpenSessionArgs args;
    args.client_name = "test";
    args.peer.uid = User(uid);
    if (options_.keeps) {
      args.socket = std::make_shared<hoist::UniqueFd>(eventfd(0, EFD_CLOEXEC));
    }
    Answer<absl::StatusOr<SessionId>> answer;
    engine_->OpenSession(args, nullptr, answer.done());
    return answer.Wait().value_or(SessionId());
  }
  template <typename Args>
  Outcome<typename Args::Result> Ask(SessionId session, Args args) {
    Answer<Outcome<typename Args::Result>> answer;
    engine_->Ask(session, std::move(args), answer.done());
    return answer.Wait();
  }
  template <typename Args>
  Outcome<typename Args::Result> Ask(Args args) {
    Answer<Outcome<typename Args::Result>> answer;
    engine_->Ask(std::move(args), answer.done());
    return answer.Wait();
  }
  // A small transformer on disk, written once per name.
  RegisterModelArgs Files(const std::string& name, int layers = 3,
                          size_t shards = 2) {
    const std::string folder = dir / name;
    const auto tensors = SmallTransformer(layers, 128);
    if (!std::filesystem::exists(folder)) {
      std::filesystem::create_directory(folder);
      HOIST_CHECK(WriteModel(folder, tensors, shards, kSeed).ok());
    }
    RegisterModelArgs args;
    args.name = name;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      OpenFile opened = {
          file.path().filename(),
          hoist::UniqueFd(open(file.path().c_str(), O_RDONLY | O_CLOEXEC))};
      HOIST_CHECK(opened.fd.valid());
      if (file.path().extension() == ".json") {
        args.index = std::move(opened);
      } else {
        args.shards.push_back(std::move(opened));
      }
    }
    return args;
  }
  absl::StatusOr<ModelPtr> Register(SessionId session,
                                    const std::string& name) {
    return Ask(session, Files(name));
  }
  static std::string PublishedBytes(const std::string& group, size_t bytes) {
    return TensorBytes(kSeed, group, bytes);
  }
  static PublishArgs Image(const std::string& model, const std::string& group,
                           size_t bytes = 64 * 4096) {
    PublishArgs args;
    args.model = model;
    args.group.name = group;
    args.group.image_bytes = bytes;
    args.group.tensors = {{.name = group,
                           .dtype = hoist::DType::kU8,
                           .shape = {static_cast<int64_t>(bytes)},
                           .bytes = bytes}};
    args.image =
        hoist::UniqueFd(memfd_create("image", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const std::string image = PublishedBytes(group, bytes);
    HOIST_CHECK(write(args.image.get(), image.data(), bytes) ==
                static_cast<ssize_t>(bytes));
    HOIST_CHECK(fcntl(args.image.get(), F_ADD_SEALS,
                      F_SEAL_WRITE | F_SEAL_SHRINK) == 0);
    return args;
  }
  absl::StatusOr<ModelPtr> Publish(SessionId session, const std::string& model,
                                   const std::string& group) {
    return Ask(session, Image(model, group));
  }
  // Waits for bytes, not for space: the clock stands still.
  absl::StatusOr<LeaseGrant> Stage(SessionId session, GroupKey key,
                                   uint32_t device = 0) {
    return Ask(session,
               StageArgs{key, DeviceIndex(device), absl::ZeroDuration()});
  }
  absl::Status Release(SessionId session, LeaseId lease) {
    return Ask(session, ReleaseArgs{{lease}});
  }
  // What `read` finds, after all earlier requests.
  template <typename Read>
  auto Look(Read read) {
    std::optional<std::invoke_result_t<Read, const NodeView&>> found;
    HOIST_CHECK(Ask(LookArgs{[&](const NodeView& view) {
                  found.emplace(read(view));
                }}).ok());
    return *std::move(found);
  }
  Counters counters() {
    return Look([](const NodeView& view) { return view.counters; });
  }
  size_t sessions() {
    return Look([](const NodeView& view) {
      return view.node.tenure().sessions().all().size();
    });
  }
  absl::StatusOr<CopyTotals> Evict(const std::string& model,
                                   bool forget = false,
                                   std::optional<TierAt> at = {}) {
    return Ask(EvictArgs{{model, "", at, kAdmin}, forget});
  }
  absl::StatusOr<LoadProgress> Load(ModelId model, TierAt to) {
    return Ask(LoadArgs{model, to, [](const LoadProgress&) {}});
  }
  // Waits until the tier has no used bytes: spills end on their own.
  bool Empties(TierAt at) {
    return Until([&] { return UsedOf(at) == 0; });
  }
  uint64_t UsedOf(TierAt at) {
    return Look([at](const NodeView& view) {
      return view.node.picture().UseOf(at, view.now).used_bytes;
    });
  }

  // --- The bytes -----------------------------------------------------------

  // The device's bytes at the lease's place.
  std::string BytesOf(const LeaseGrant& lease) {
    return BytesAt(lease.device, lease.offset, lease.bytes);
  }
  std::string BytesAt(DeviceIndex device, uint64_t offset, uint64_t size) {
    std::string bytes(size, '?');
    auto stream = *devices_[device.number()]->CreateStream();
    EXPECT_OK(stream->CopyOut(
        std::as_writable_bytes(std::span(bytes.data(), bytes.size())), offset));
    Answer<absl::Status> answer;
    stream->Then(answer.done());
    EXPECT_OK(answer.Wait());
    return bytes;
  }
  // Expects each tensor to have the bytes of the files, and zeros between
  // tensors.
  void ExpectRight(const Model& model, const LeaseGrant& lease) {
    const Group& group = *model.spec->groups[lease.key.group.number()];
    EXPECT_EQ(lease.bytes, group.image_bytes);
    ExpectRight(group, BytesOf(lease));
  }
  static void ExpectRight(const Group& group, const std::string& bytes) {
    std::string want(group.image_bytes, '\0');
    for (const Tensor& tensor : group.tensors) {
      want.replace(tensor.offset, tensor.bytes,
                   TensorBytes(kSeed, tensor.name, tensor.bytes));
    }
    EXPECT_TRUE(bytes == want) << "wrong bytes in " << group.name;
  }

  TempDir dir;
  ManualClock clock;
  std::atomic<bool> memory_is_short = false;  // For pageable pages.
  // Called with the last one's host state, before the next one has it.
  std::function<void(FoundOnHost&)> on_found = [](FoundOnHost&) {};

 private:
  // As in hoistd.cc.
  absl::Status TakeOver(EngineParts& parts) {
    std::vector<HandedFd> handed = held_.Hand();
    Keep::Found left;
    std::map<PersistedKey, hoist::UniqueFd> descriptors;
    HOIST_ASSIGN_OR_RETURN(
        keep_, Keep::Create(held_, handed, left,
                            [&](PersistedKey key, hoist::UniqueFd fd) {
                              descriptors[key] = std::move(fd);
                            }));
    parts.keep = &*keep_;
    parts.left =
        ReadLeft(std::move(left.records), std::move(descriptors), left.notes);
    on_found(parts.left.host);
    return parts.left.node.status;
  }

  const EngineRigOptions options_;
  AlignedBuffer host_;
  AlignedBuffer pageable_;
  std::unique_ptr<IoEngine> io_;
  std::vector<std::unique_ptr<EmulatedDevice>> devices_;

 public:
  std::optional<FaultyIo> faulty_io;
  std::vector<std::unique_ptr<FaultyDevice>> faulty_devices;
  FaultyDevice* faulty_device = nullptr;  // The first.

 private:
  const MonotonicClock monotonic_;
  std::unique_ptr<SpillStore> store_;
  HoldingStore held_;
  std::optional<Keep> keep_;
  std::vector<std::unique_ptr<Link>> links_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_ENGINE_RIG_H_
