#include "daemon/app/hoistd.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "daemon/app/doors.h"
#include "daemon/app/open_devices.h"
#include "daemon/app/pool_relay.h"
#include "daemon/app/pool_watch.h"
#include "daemon/app/preflight.h"
#include "daemon/app/preloader.h"
#include "daemon/app/quotas.h"
#include "daemon/app/serve_metrics.h"
#include "daemon/base/clock.h"
#include "daemon/base/inherited.h"
#include "daemon/base/status.h"
#include "daemon/doctor/doctor.h"
#include "daemon/doctor/machine.h"
#include "daemon/engine/engine.h"
#include "daemon/host/host_limits.h"
#include "daemon/host/host_pool.h"
#include "daemon/host/pageable_memory.h"
#include "daemon/host/pool_memory.h"
#include "daemon/io/create_io_engine.h"
#include "daemon/io_helper/io_helpers.h"
#include "daemon/keeper/keep.h"
#include "daemon/link/link.h"
#include "daemon/log/log.h"
#include "daemon/socket/peer_process.h"
#include "daemon/store/spill_store.h"
#include "daemon/successor/persisted_keys.h"
#include "daemon/successor/persisted_node.h"
#include "daemon/trace/recorder.h"
#include "daemon/types/tier.h"
#include "hoist/shared/size_text.h"

namespace hoistd {
namespace {

absl::StatusOr<std::unique_ptr<SpillStore>> OpenStore(const DiskConfig& config,
                                                      IoEngine& io) {
  if (config.spill_dir.empty()) return nullptr;
  SpillOptions options;
  options.dir = config.spill_dir;
  const absl::StatusOr<uint64_t> capacity = SpillCapacity(config);
  if (!capacity.ok()) return Annotate(capacity.status(), "disk.spill_dir");
  options.capacity_bytes = *capacity;
  auto store = SpillStore::Open(options, io);
  if (!store.ok()) return Annotate(store.status(), "disk.spill_dir");
  return store;
}

IoOptions IoOptionsOf(const DiskConfig& config) {
  IoOptions options;
  switch (config.io) {
    case DiskConfig::Io::kAuto:
      options.choice = IoChoice::kAuto;
      break;
    case DiskConfig::Io::kIoUring:
      options.choice = IoChoice::kUring;
      break;
    case DiskConfig::Io::kThreads:
      options.choice = IoChoice::kThreads;
      break;
  }
  return options;
}

// "auto" takes the last hoistd's size if the memory limit still allows it, so
// nothing is dropped. nullopt: HostMemory's choice.
std::optional<uint64_t> WantedPool(const HostConfig& config,
                                   const hoist::UniqueFd& left,
                                   const HostMemory& memory) {
  struct stat found;
  if (config.pool_bytes.has_value() || !left.valid() ||
      fstat(left.get(), &found) != 0) {
    return config.pool_bytes;
  }
  const auto bytes = static_cast<uint64_t>(found.st_size);
  if (bytes > memory.Limit().value_or(bytes)) return std::nullopt;
  return bytes;
}

}  // namespace

// In order of construction; destroyed in reverse.
struct Hoistd::Parts {
  RunningConfig* running = nullptr;
  Config config;  // As of the start.
  MonotonicClock clock;
  TraceRecorder trace{clock};
  OpenedDevices devices;
  std::vector<std::unique_ptr<Link>> links;  // By device.
  PoolRelay relay;
  std::optional<Keep> keep;               // With a keeper or an fd store.
  std::atomic<bool> keeper_gone = false;  // See KeeperGone.
  Left left;
  hoist::UniqueFd host_memory;
  std::unique_ptr<HostPool> host;
  std::unique_ptr<PageableMemory> pageable;  // nullptr: there is none.
  std::unique_ptr<IoEngine> io;
  std::unique_ptr<SpillStore> store;
  std::unique_ptr<IoHelpers> io_helpers;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Doors> doors;
  std::unique_ptr<Preloader> preloader;
  std::unique_ptr<PoolWatch> pool_watch;
  std::unique_ptr<MetricsServer> metrics;
  std::string summary;
  std::function<void(const std::string&)> on_status;
  // For Lives. Shared with the engine until it answers.
  std::shared_ptr<std::atomic<bool>> answered =
      std::make_shared<std::atomic<bool>>(true);
  uint64_t subscription = 0;  // To changes of the status; 0: none.

  void TakeOver(FdStore& holder, std::vector<HandedFd>& handed,
                std::vector<std::string>& notes);
  absl::Status MakeHostPool(uint64_t bytes, std::vector<std::string>& notes);
  absl::Status OpenTiers(std::vector<std::string>& notes);
  absl::Status StartIoHelpers(HelperSpawner& spawner);
  absl::Status StartEngine(std::vector<std::string> notes);
  absl::Status StartPoolWatch();
  absl::Status BringUpHost();
  // Updates Health and systemd's status.
  void WatchDraining();
  void WatchDrainingNoMore();
  absl::Status OpenDoors(hoist::UniqueFd session_fd);
  // Applies changes of keys that can change while hoistd runs.
  void Apply(const Config& now);
  SelfKnowledge Knowledge() const;
  // Resolved values of "auto" and the like, by key.
  std::map<std::string, std::string> ComesTo() const;
  std::vector<Device*> DevicePointers() const;
};

std::vector<Device*> Hoistd::Parts::DevicePointers() const {
  std::vector<Device*> pointers;
  for (const auto& device : devices.all) pointers.push_back(device.get());
  return pointers;
}

// Takes the last hoistd's memory and records. No damage in them prevents the
// start.
void Hoistd::Parts::TakeOver(FdStore& holder, std::vector<HandedFd>& handed,
                             std::vector<std::string>& notes) {
  Keep::Found wrote;
  std::map<PersistedKey, hoist::UniqueFd> descriptors;
  absl::StatusOr<Keep> made = Keep::Create(
      holder, handed, wrote, [&](PersistedKey key, hoist::UniqueFd fd) {
        (key == kHostPoolKey ? host_memory : descriptors[key]) = std::move(fd);
      });
  for (std::string& note : wrote.notes) notes.push_back(std::move(note));
  if (!made.ok()) {
    notes.push_back(absl::StrCat("nothing will outlive this hoistd: ",
                                 std::string(made.status().message())));
    host_memory.reset();
    return;
  }
  keep = *std::move(made);
  left = ReadLeft(std::move(wrote.records), std::move(descriptors), notes);
}

// Reuses the last hoistd's memory if the size is equal.
absl::Status Hoistd::Parts::MakeHostPool(uint64_t bytes,
                                         std::vector<std::string>& notes) {
  HostPoolOptions pool;
  pool.bytes = bytes;
  pool.touch_threads = config.host.touch_threads > 0
                           ? static_cast<int>(config.host.touch_threads)
                           : static_cast<int>(std::clamp(
                                 std::thread::hardware_concurrency(), 1u, 16u));
  pool.best_pages = config.host.huge_pages;
  if (host_memory.valid()) {
    pool.found = true;
    absl::StatusOr<std::unique_ptr<HostPool>> taken =
        HostPool::Create(pool, DevicePointers(), host_memory);
    if (taken.ok()) {
      host = *std::move(taken);
      return CheckParts(host->span(), *keep, left.host.parts, notes);
    }
    notes.push_back(
        absl::StrCat("what the last hoistd had on the host is "
                     "dropped: ",
                     std::string(taken.status().message())));
    pool.found = false;
    HOIST_RETURN_IF_ERROR(keep->DropDescriptor(kHostPoolKey));
    host_memory.reset();  // Its pages are for the new pool.
  }
  // Their bytes are gone with that memory.
  for (const FoundImage& image : left.host.images) {
    HOIST_RETURN_IF_ERROR(EraseOnHost(image.host_offset, *keep));
  }
  for (const FoundPart& part : left.host.parts) {
    HOIST_RETURN_IF_ERROR(EraseOnHost(part.host_offset, *keep));
  }
  left.host = {};
  HOIST_ASSIGN_OR_RETURN(
      host_memory, MakeHostMemory(bytes, pool.best_pages, pool.touch_threads));
  HOIST_ASSIGN_OR_RETURN(host,
                         HostPool::Create(pool, DevicePointers(), host_memory));
  if (!keep.has_value()) return absl::OkStatus();
  const absl::Status stored =
      keep->KeepDescriptor(kHostPoolKey, host_memory.get());
  if (!stored.ok()) {
    notes.push_back(absl::StrCat("nothing will outlive this hoistd: ",
                                 std::string(stored.message())));
    keep.reset();
  }
  return absl::OkStatus();
}

absl::Status Hoistd::Parts::OpenTiers(std::vector<std::string>& notes) {
  HOIST_ASSIGN_OR_RETURN(devices, OpenDevices(config.device));
  if (!devices.note.empty()) notes.push_back(devices.note);
  const HostMemory memory = ReadHostMemory("");
  HOIST_ASSIGN_OR_RETURN(
      const HostPoolSize size,
      ChooseHostPoolSize(WantedPool(config.host, host_memory, memory), memory));
  if (!size.note.empty()) notes.push_back(size.note);
  HOIST_ASSIGN_OR_RETURN(
      const uint64_t in_place,
      ChooseInPlaceSize(config.host.in_place_bytes, size.bytes, memory));
  AddInPlace(in_place, devices);
  if (in_place > 0 && devices.in_place.empty()) {
    notes.push_back(
        absl::StrCat("nothing is read in place: ", devices.no_in_place));
  }
  for (const auto& device : devices.all) {
    LinkOptions options;
    if (device->info().kind != DeviceKind::kInPlace) {
      options.load_bytes_per_second = config.device.load_bytes_per_s;
    }
    options.before_copy = [this](std::span<const std::byte> from) {
      host->Pin(from);
    };
    options.trace = &trace;
    HOIST_ASSIGN_OR_RETURN(auto link, Link::Create(*device, clock, options));
    links.push_back(std::move(link));
  }
  SPDLOG_DEBUG("start: devices are open");
  if (config.device.share == DeviceConfig::Share::kIpc &&
      devices.all[0]->info().kind == DeviceKind::kCuda) {
    notes.push_back(
        "device.share = \"ipc\": workers can write to the weights, and slabs "
        "do not outlive hoistd");
  }
  HOIST_RETURN_IF_ERROR(MakeHostPool(size.bytes, notes));
  HOIST_ASSIGN_OR_RETURN(const uint64_t paged,
                         PageableSize(config, size.bytes, memory));
  if (paged > 0) {
    HOIST_ASSIGN_OR_RETURN(pageable, PageableMemory::Create(paged));
  }
  HOIST_ASSIGN_OR_RETURN(io, CreateIoEngine(IoOptionsOf(config.disk)));
  HOIST_ASSIGN_OR_RETURN(store, OpenStore(config.disk, *io));
  if (store != nullptr) {
    notes.insert(notes.end(), store->notes().begin(), store->notes().end());
  }
  return absl::OkStatus();
}

absl::Status Hoistd::Parts::StartIoHelpers(HelperSpawner& spawner) {
  IoHelperOptions options;
  options.deadline = config.disk.read_deadline;
  // Calls of helpers begin after the engine's start and end before its end.
  options.on_lost = [this](std::string note) {
    engine->AddNote(std::move(note));
  };
  HOIST_ASSIGN_OR_RETURN(io_helpers,
                         IoHelpers::Create(spawner, std::move(options)));
  return absl::OkStatus();
}

absl::Status Hoistd::Parts::StartEngine(std::vector<std::string> notes) {
  EngineParts parts;
  parts.node.host_capacity_bytes = host->bytes();
  if (pageable != nullptr) {
    parts.node.pageable_bytes = pageable->span().size();
    parts.mover.pageable = pageable->span();
    parts.mover.make_pages = [this](std::span<std::byte> part) {
      return pageable->MakePages(part);
    };
  }
  parts.node.slab_bytes = config.device.slab_bytes;
  if (store != nullptr) {
    const SpillUsage disk = store->usage();
    parts.node.spill_capacity_bytes =
        disk.capacity_bytes - std::min(disk.lost_bytes, disk.capacity_bytes);
  }
  parts.node.saves_at_once = config.disk.save == DiskConfig::Save::kAtOnce;
  parts.node.default_readers = config.models.readers;
  // Workers map emulated memory read-only. With CUDA only libhoist's mapping
  // is read-only.
  parts.node.users_share_devices =
      config.device.trust == DeviceConfig::Trust::kEveryone ||
      devices.all[0]->info().kind == DeviceKind::kEmulated;
  std::vector<std::string> served;
  for (const auto& device : devices.all) {
    const uint64_t pool = PoolOf(*device, config.device);
    if (pool == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(device->info().name,
                       " has no memory free for hoist; set device.pool"));
    }
    parts.node.device_capacity_bytes.push_back(pool);
    parts.device_views.push_back(
        {device->info(), pool, std::min(config.device.slab_bytes, pool)});
    served.push_back(absl::StrCat(device->info().name, " ", HumanBytes(pool)));
  }
  parts.node.apart_descriptors = ApartDescriptorLimit();
  parts.idle_after = config.idle.after;
  parts.node.arenas_evict = config.host.arenas == HostConfig::Arenas::kAbove;
  parts.node.quota = QuotasOf(config, parts.node.host_capacity_bytes,
                              parts.node.device_capacity_bytes);
  parts.no_in_place = devices.no_in_place;
  parts.mover.host = host->span();
  parts.mover.in_place = devices.in_place;
  parts.mover.io = io.get();
  parts.mover.io_helpers = io_helpers.get();
  parts.mover.store = store.get();
  parts.mover.trace = &trace;
  for (const auto& link : links) parts.mover.links.push_back(link.get());
  parts.clock = &clock;
  if (config.disk.direct == DiskConfig::Direct::kNever) {
    parts.files.mode = ReadMode::kBuffered;
  }
  parts.keep = keep.has_value() ? &*keep : nullptr;
  parts.left = std::move(left);
  HOIST_ASSIGN_OR_RETURN(parts.new_instance, NewInstanceId());
  parts.version = HOIST_VERSION;
  parts.notes = std::move(notes);
  HOIST_ASSIGN_OR_RETURN(engine, Engine::Create(std::move(parts)));
  summary = absl::StrCat(
      absl::StrJoin(served, ", "), "; host pool ", HumanBytes(host->bytes()),
      "; ", store == nullptr ? "no spill store" : config.disk.spill_dir, "; ",
      io->info().engine);
  relay.Connect(engine.get());
  return absl::OkStatus();
}

absl::Status Hoistd::Parts::StartPoolWatch() {
  std::vector<uint64_t> pools;
  for (const DeviceView& view : engine->facts().devices) {
    pools.push_back(view.pool_bytes);
  }
  pool_watch = std::make_unique<PoolWatch>(devices.all, pools, *engine, clock);
  pool_watch->Set(
      PoolWatch::SettingsOf(config.device, devices.all[0]->info().kind));
  return pool_watch->Start();
}

absl::Status Hoistd::Parts::BringUpHost() {
  const auto demand = [this] {
    double most = 0;
    for (const auto& link : links) {
      // In-place copies are the CPU's, without the driver.
      if (link->device().info().kind == DeviceKind::kInPlace) continue;
      most = std::max(most, link->Demand());
    }
    return most;
  };
  return host->Start([this](uint64_t ready) { relay.Grown(ready); }, demand,
                     [this](std::string note) { relay.Note(std::move(note)); });
}

absl::Status Hoistd::Parts::OpenDoors(hoist::UniqueFd session_fd) {
  DoorOptions options;
  options.session_fd = std::move(session_fd);
  options.io_helpers = io_helpers.get();
  options.control = running;
  options.examine = [this] { return Examine(ReadMachine(""), Knowledge()); };
  options.keeps = keep.has_value();
  options.max_publish_bytes = host->bytes();
  HOIST_ASSIGN_OR_RETURN(doors,
                         Doors::Open(config, std::move(options), *engine));
  HOIST_ASSIGN_OR_RETURN(metrics,
                         ServeMetrics(config,
                                      {.keeps = keep.has_value(),
                                       .stands_in = !devices.note.empty(),
                                       .host = host.get()},
                                      *engine, clock));
  return absl::OkStatus();
}

void Hoistd::Parts::Apply(const Config& now) {
  SetLogLevel(now.log.level);
  // Only if the key changed: `hoistctl share --loads` may have set another.
  if (config.device.load_bytes_per_s != now.device.load_bytes_per_s) {
    config.device.load_bytes_per_s = now.device.load_bytes_per_s;
    engine->SetLoadRate(now.device.load_bytes_per_s);
  }
  std::vector<uint64_t> pools;
  for (const DeviceView& view : engine->facts().devices) {
    pools.push_back(view.pool_bytes);
  }
  engine->SetQuotas(QuotasOf(now, host->bytes(), pools));
  pool_watch->Set(
      PoolWatch::SettingsOf(now.device, devices.all[0]->info().kind));
  doors->SetModelRoots(now.models.roots);
  preloader->Want(now.models.preload);
}

SelfKnowledge Hoistd::Parts::Knowledge() const {
  SelfKnowledge self;
  for (const auto& device : devices.all) self.devices.push_back(device->info());
  self.no_in_place = devices.no_in_place;
  self.gpu_on_board = devices.gpu_on_board;
  self.io = io->info();
  self.keeps = keep.has_value() && !keeper_gone;
  self.host_pool_bytes = host->bytes();
  self.host_pool_pages = host->pages();
  if (pageable != nullptr) {
    self.pageable_bytes = pageable->span().size();
    self.pageable_made_bytes = pageable->made_bytes();
    self.available_bytes = AvailableMemory("");
  }
  self.best_pages = config.host.huge_pages;
  self.huge_pages = ReadHugePages("");
  return self;
}

std::map<std::string, std::string> Hoistd::Parts::ComesTo() const {
  std::vector<std::string> pools;
  uint64_t in_place = 0;
  for (const DeviceView& view : engine->facts().devices) {
    if (view.info.kind == DeviceKind::kInPlace) {
      in_place = view.pool_bytes;
    } else {
      pools.push_back(hoist::SizeText(view.pool_bytes));
    }
  }
  std::map<std::string, std::string> values;
  values["device.backend"] =
      devices.all[0]->info().kind == DeviceKind::kCuda ? "cuda" : "emulated";
  values["device.pool"] = absl::StrJoin(pools, ", ");
  values["host.pool"] = hoist::SizeText(host->bytes());
  values["host.huge_pages"] = ToString(host->pages());
  values["host.in_place"] = hoist::SizeText(in_place);
  values["disk.io"] = io->info().engine;
  if (store != nullptr) {
    values["disk.spill_capacity"] =
        hoist::SizeText(store->usage().capacity_bytes);
  }
  return values;
}

void Hoistd::Parts::WatchDraining() {
  absl::Notification done;
  engine->Ask(SubscribeArgs{[this](const NodeEvent& event) {
                const bool drains = event.kind == EventKind::kDraining;
                if (!drains && event.kind != EventKind::kResumed) return;
                doors->SetServing(!drains);
                on_status(absl::StrCat(
                    drains ? "Draining: takes no new work; " : "", summary));
              }},
              [&](absl::StatusOr<uint64_t> id) {
                subscription = id.value_or(0);
                done.Notify();
              });
  done.WaitForNotification();
}

void Hoistd::Parts::WatchDrainingNoMore() {
  if (subscription == 0) return;
  absl::Notification done;
  engine->Ask(UnsubscribeArgs{subscription},
              [&](absl::Status) { done.Notify(); });
  done.WaitForNotification();
}

Hoistd::Hoistd(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

absl::StatusOr<std::unique_ptr<Hoistd>> Hoistd::Create(
    RunningConfig& config, std::vector<HandedFd> handed, FdStore* store,
    HelperSpawner& spawner, std::function<void(const std::string&)> on_status) {
  std::unique_ptr<Hoistd> hoistd(new Hoistd(std::make_unique<Parts>()));
  Parts& parts = *hoistd->parts_;
  parts.running = &config;
  parts.config = config.at_start();
  std::vector<std::string> notes;
  if (store != nullptr) parts.TakeOver(*store, handed, notes);
  // systemd's socket, if it listens for hoistd.
  hoist::UniqueFd session_fd;
  if (!handed.empty()) session_fd = std::move(handed.front().fd);
  SPDLOG_DEBUG("start: the book of the last hoistd is read");
  HOIST_RETURN_IF_ERROR(parts.OpenTiers(notes));
  HOIST_RETURN_IF_ERROR(CheckAddresses());  // After the pools are mapped.
  SPDLOG_DEBUG("start: devices, host and disk are open");
  for (const std::string& note : notes) SPDLOG_WARN("{}", note);
  for (const std::string& fallback : parts.io->info().fallbacks) {
    SPDLOG_WARN("disk I/O: {}", fallback);
  }
  HOIST_RETURN_IF_ERROR(parts.StartIoHelpers(spawner));
  HOIST_RETURN_IF_ERROR(parts.StartEngine(std::move(notes)));
  SPDLOG_DEBUG("start: the engine has what the last hoistd had");
  HOIST_RETURN_IF_ERROR(parts.OpenDoors(std::move(session_fd)));
  parts.on_status = std::move(on_status);
  parts.WatchDraining();
  parts.preloader = std::make_unique<Preloader>(
      *parts.engine, *parts.io_helpers,
      [&parts](std::string note) { parts.relay.Note(std::move(note)); });
  HOIST_RETURN_IF_ERROR(parts.preloader->Start());
  parts.preloader->Want(parts.config.models.preload);
  HOIST_RETURN_IF_ERROR(parts.StartPoolWatch());
  config.Connect([&parts](const Config& now) { parts.Apply(now); },
                 parts.ComesTo());
  // Last: page faults of its threads delay the start of other threads.
  HOIST_RETURN_IF_ERROR(parts.BringUpHost());
  return hoistd;
}

Hoistd::~Hoistd() {
  parts_->running->Connect(nullptr, {});
  parts_->pool_watch.reset();
  parts_->preloader.reset();
  parts_->WatchDrainingNoMore();
  if (parts_->doors != nullptr) {
    parts_->doors->EndCalls(absl::Seconds(1));
    parts_->doors->EndSessions();
  }
  // Otherwise the engine would wait for their answers.
  if (parts_->io_helpers != nullptr) parts_->io_helpers->Stop();
  parts_->relay.Connect(nullptr);
}

void Hoistd::KeeperGone() {
  parts_->keeper_gone = true;
  parts_->relay.Note(
      "hoist-keeper has ended: if hoistd does too, what it has is lost; start "
      "hoist-keeper again in the same folder");
}

absl::Status Hoistd::StoreAgain() {
  absl::Notification over;
  absl::Status stored;
  parts_->engine->StoreAgain([&](absl::Status status) {
    stored = std::move(status);
    over.Notify();
  });
  over.WaitForNotification();
  if (!stored.ok()) return stored;
  parts_->keeper_gone = false;
  parts_->relay.Note("a new hoist-keeper has taken over");
  return stored;
}

uint64_t Hoistd::SavePublished(absl::FunctionRef<bool(uint64_t left)> go_on) {
  Engine& engine = *parts_->engine;
  // With a keeper the next hoistd answers sessions; otherwise requests are
  // refused.
  if (parts_->keep.has_value()) parts_->doors->EndSessions();
  engine.Ask(SetDrainingArgs{true}, [](absl::Status) {});
  while (true) {
    absl::Notification over;
    uint64_t left = 0;
    engine.SaveAll([&](absl::StatusOr<uint64_t> bytes) {
      left = bytes.value_or(0);
      over.Notify();
    });
    over.WaitForNotification();
    if (left == 0 || parts_->store == nullptr || !go_on(left)) return left;
  }
}

bool Hoistd::Lives() {
  if (!parts_->answered->exchange(false)) return false;
  parts_->engine->Ping(
      [answered = parts_->answered](absl::Status) { *answered = true; });
  return true;
}

std::string Hoistd::Summary() const { return parts_->summary; }

}  // namespace hoistd
