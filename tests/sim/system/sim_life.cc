#include "tests/sim/system/sim_life.h"

#include <map>
#include <utility>

#include "daemon/successor/persisted_host.h"
#include "daemon/successor/persisted_node.h"

namespace hoistd::sim {

Life::Life(LifeParts with)
    : parts(std::move(with)),
      threads(*parts.clock, parts.pump),
      io(parts.on_host_write) {}

void Life::TakeOver(EngineParts& engine_parts) {
  if (parts.store == nullptr) return;
  std::vector<HandedFd> handed = parts.store->Hand();
  Keep::Found left;
  std::map<PersistedKey, hoist::UniqueFd> descriptors;
  keep = Keep::Create(*parts.store, handed, left,
                      [&](PersistedKey key, hoist::UniqueFd fd) {
                        descriptors[key] = std::move(fd);
                      })
             .value();
  refused = left.notes;
  engine_parts.keep = &*keep;
  engine_parts.left =
      ReadLeft(std::move(left.records), std::move(descriptors), refused);
  HOIST_CHECK(
      CheckParts(parts.host, *keep, engine_parts.left.host.parts, refused)
          .ok());
}

void Life::Begin() {
  EngineParts of;
  of.node = parts.node;
  for (SimDevice* device : parts.devices) {
    const DeviceInfo& info = device->info();
    device->Begin();
    of.node.device_capacity_bytes.push_back(info.total_bytes);
    of.device_views.push_back({info, info.total_bytes, of.node.slab_bytes});
    auto link = Link::Create(*device, *parts.clock, {.threads = &threads});
    links.push_back(std::move(link).value());
    if (info.kind == DeviceKind::kInPlace) of.mover.in_place = device->span();
    of.mover.links.push_back(links.back().get());
  }
  of.mover.host = parts.host;
  of.mover.io = &io;
  of.mover.copy_threads = 2;
  of.clock = parts.clock;
  of.files.mode = ReadMode::kBuffered;
  of.version = "simulation";
  of.threads = &threads;
  TakeOver(of);
  engine = Engine::Create(std::move(of)).value();
  engine->Resize(OnHost(), {parts.host.size()});
}

}  // namespace hoistd::sim
