#include "daemon/doctor/doctor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/types/tier.h"

namespace hoistd {
namespace {

constexpr uint64_t kEnoughDescriptors = 65536;

Finding Good(std::string what, std::string found) {
  return {std::move(what), Finding::State::kGood, std::move(found), ""};
}

Finding Degraded(std::string what, std::string found, std::string cure) {
  return {std::move(what), Finding::State::kDegraded, std::move(found),
          std::move(cure)};
}

bool OnGpus(const SelfKnowledge& self) {
  return !self.devices.empty() &&
         self.devices.front().kind == DeviceKind::kCuda;
}

Finding Driver(const Machine& machine, const SelfKnowledge& self) {
  if (OnGpus(self)) {
    return Good("driver", absl::StrCat("NVIDIA ", machine.driver));
  }
  if (self.gpu_on_board.empty()) {
    return Good("driver", "no GPU here; devices are emulated, in host memory");
  }
  return Degraded(
      "driver",
      absl::StrCat("a GPU (", self.gpu_on_board,
                   ") that hoistd does not use; devices are emulated"),
      "repair the driver, or let hoistd's user open /dev/nvidia*; then restart "
      "hoistd with device.backend = \"auto\"");
}

Finding Sharing(const SelfKnowledge& self) {
  if (!OnGpus(self)) return Good("sharing", "descriptors of host memory");
  if (self.devices.front().backing == Backing::kVmm) {
    return Good("sharing", "VMM descriptors, mapped read-only by workers");
  }
  return Degraded("sharing",
                  "legacy IPC handles: workers can write to weights, and what "
                  "they have does not outlive hoistd",
                  "set device.share = \"vmm\", with a driver and a container "
                  "runtime that export VMM memory");
}

Finding StreamWords(const SelfKnowledge& self) {
  std::vector<std::string> without;
  for (const DeviceInfo& device : self.devices) {
    if (device.kind == DeviceKind::kCuda && !device.stream_words) {
      without.push_back(device.name);
    }
  }
  if (without.empty()) return Good("stream memory operations", "there");
  return Degraded("stream memory operations",
                  absl::StrCat("none on ", absl::StrJoin(without, ", "),
                               ": host functions stand in, at some 20 us each"),
                  "update the driver; virtual GPUs may not have them at all");
}

Finding InPlace(const SelfKnowledge& self) {
  if (self.no_in_place.empty()) {
    return Good("read in place", "host memory that devices map");
  }
  return Degraded("read in place",
                  absl::StrCat("not to be had: ", self.no_in_place,
                               "; such weights are staged"),
                  "give it host.in_place, device.share = \"vmm\", and a driver "
                  "with VMM host memory (CUDA 12.2 and later)");
}

Finding DiskIo(const SelfKnowledge& self) {
  if (self.io.fallbacks.empty()) return Good("disk I/O", self.io.engine);
  return Degraded("disk I/O",
                  absl::StrCat(self.io.engine, "; not to be had: ",
                               absl::StrJoin(self.io.fallbacks, "; ")),
                  "allow io_uring (kernel.io_uring_disabled = 0, the "
                  "container's seccomp profile), and LimitMEMLOCK=infinity");
}

Finding Memlock(const Machine& machine, const SelfKnowledge& self) {
  const bool unlimited = machine.memlock_bytes == Machine::kUnlimited;
  const std::string found =
      unlimited ? "unlimited" : HumanBytes(machine.memlock_bytes);
  // The driver pins without memlock; io_uring's buffers need it.
  constexpr uint64_t kBuffers = uint64_t{64} << 20;
  if (unlimited ||
      machine.memlock_bytes >= std::min(self.host_pool_bytes, kBuffers)) {
    return Good("locked memory", found);
  }
  return Degraded("locked memory", found, "set LimitMEMLOCK=infinity");
}

Finding Descriptors(const Machine& machine) {
  const std::string found = machine.descriptors == Machine::kUnlimited
                                ? "unlimited"
                                : absl::StrCat(machine.descriptors);
  if (machine.descriptors >= kEnoughDescriptors) {
    return Good("descriptors", found);
  }
  return Degraded("descriptors",
                  absl::StrCat(found, "; sessions, files and pieces take some"),
                  "set LimitNOFILE=262144");
}

Finding HugePages(const Machine& machine) {
  const std::string& choice = machine.shmem_huge_pages;
  if (choice.empty() || choice == "never" || choice == "deny") {
    return Degraded(
        "huge pages",
        choice.empty() ? "this kernel has none for shared memory"
                       : absl::StrCat("shared memory may not have them (",
                                      choice, "): the pool comes up slower"),
        "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, in "
        "a unit that runs before hoistd");
  }
  return Good("huge pages", absl::StrCat("shared memory: ", choice));
}

Finding Nodes(const Machine& machine) {
  return Good("NUMA", machine.memory_nodes == 1
                          ? std::string("one node")
                          : absl::StrCat("the pool lies over ",
                                         machine.memory_nodes, " nodes"));
}

Finding PciLinks(const Machine& machine) {
  std::vector<std::string> narrow;
  for (const PciLink& gpu : machine.gpus) {
    if (gpu.width > 0 && gpu.width < gpu.most_width) {
      narrow.push_back(absl::StrCat(gpu.address, " has ", gpu.width, " of ",
                                    gpu.most_width, " lanes"));
    }
  }
  if (narrow.empty()) {
    return Good("PCI links",
                machine.gpus.empty() ? "no GPU" : "all lanes are in use");
  }
  return Degraded("PCI links", absl::StrJoin(narrow, ", "),
                  "look at the slot, the riser and the firmware: copies take "
                  "so much longer");
}

Finding Keeping(const SelfKnowledge& self) {
  if (self.keeps) {
    return Good("outliving", "what it has goes on with the next hoistd");
  }
  return Degraded("outliving",
                  "nobody holds what hoistd has: if it ends, that is lost",
                  "start it by systemd (deploy/hoistd.service), or under "
                  "hoist-keeper");
}

}  // namespace

std::vector<Finding> Examine(const Machine& machine,
                             const SelfKnowledge& self) {
  return {Driver(machine, self),  Sharing(self),        StreamWords(self),
          InPlace(self),          PciLinks(machine),    DiskIo(self),
          Memlock(machine, self), Descriptors(machine), HugePages(machine),
          Nodes(machine),         Keeping(self)};
}

}  // namespace hoistd
