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

// Why a pool has small pages.
std::string WhySmall(const SelfKnowledge& self) {
  const HugePages& offered = self.huge_pages;
  std::string why;
  if (offered.shared_memory.empty()) {
    why = "this kernel has none for shared memory";
  } else if (offered.allows_transparent()) {
    why = absl::StrCat("it is older than shmem_enabled = ",
                       offered.shared_memory);
  } else {
    why = absl::StrCat("shared memory may not have them (",
                       offered.shared_memory, ")");
  }
  if (self.best_pages != PageKind::kHugetlb) return why;
  if (offered.reserved_bytes == 0) {
    return absl::StrCat(why, ", and none are reserved");
  }
  return absl::StrCat(why, ", and ", HumanBytes(offered.free_bytes), " of ",
                      HumanBytes(offered.reserved_bytes),
                      " of reserved ones are free");
}

Finding PoolPages(const SelfKnowledge& self) {
  constexpr char kWhat[] = "huge pages";
  constexpr uint64_t kHugePage = uint64_t{2} << 20;
  const HugePages& offered = self.huge_pages;
  switch (self.host_pool_pages) {
    case PageKind::kHugetlb:
      return Good(kWhat, "the pool has reserved ones (hugetlb)");
    case PageKind::kTransparent:
      return Good(kWhat, absl::StrCat("the pool has transparent ones (",
                                      offered.shared_memory, ")"));
    case PageKind::kSmall:
      break;
  }
  if (self.best_pages == PageKind::kSmall) {
    return Good(kWhat, "none, as host.huge_pages has it");
  }
  std::vector<std::string> cures;
  if (!offered.shared_memory.empty() && !offered.allows_transparent()) {
    cures.emplace_back(
        "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
  }
  if (self.best_pages == PageKind::kHugetlb && !offered.allows_transparent()) {
    cures.push_back(absl::StrCat("sysctl vm.nr_hugepages=",
                                 self.host_pool_bytes / kHugePage));
  }
  const std::string restart =
      "stop hoistd and start it (GUIDE.md, \"Huge pages\")";
  return Degraded(
      kWhat,
      absl::StrCat("the pool has none, and comes up slower: ", WhySmall(self)),
      cures.empty()
          ? restart
          : absl::StrCat(absl::StrJoin(cures, " or "), "; then ", restart));
}

Finding Pageable(const SelfKnowledge& self) {
  constexpr char kWhat[] = "pageable memory";
  if (self.pageable_bytes == 0) return Good(kWhat, "none (host.pageable)");
  const uint64_t to_come = self.pageable_bytes - self.pageable_made_bytes;
  const std::string found =
      absl::StrCat(HumanBytes(self.pageable_made_bytes), " of ",
                   HumanBytes(self.pageable_bytes), " taken");
  if (to_come <= self.available_bytes.value_or(to_come)) {
    return Good(kWhat, found);
  }
  return Degraded(
      kWhat,
      absl::StrCat(found, ", and ", HumanBytes(*self.available_bytes),
                   " of memory are free: images that find none "
                   "are read from the disk"),
      absl::StrCat("lower host.pageable to ",
                   HumanBytes(self.pageable_made_bytes + *self.available_bytes),
                   ", or free memory"));
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
          Memlock(machine, self), Descriptors(machine), PoolPages(self),
          Pageable(self),         Nodes(machine),       Keeping(self)};
}

}  // namespace hoistd
