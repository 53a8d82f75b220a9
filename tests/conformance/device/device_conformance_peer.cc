// The other process of the device conformance suite; not run by hand.
//
// Takes commands over the SOCK_SEQPACKET socket that its argument names, and
// answers each with "ok ..." or "error <code> <message>".
//   as a worker                          as a daemon
//   map emulated|cuda SPAN UUID          device emulated|cuda [in-place]
//   import SLAB (see share_text.h)       slab ID OFFSET BYTES BACKING
//   drop ID                              fill OFFSET BYTES SEED
//   address OFFSET                       share ID, keep ID
//   read OFFSET BYTES
//   write|writable OFFSET BYTES
//   range BYTES (of which address, read, write and writable are from then on)
//   place AT OFFSET (of a slab apart)
//   arena SLAB (of which address, read and write are from then on)
//   put OFFSET BYTES SEED (by the CPU)
//   misuse (with a descriptor)
//   words BYTES (with a descriptor)
//   await INDEX VALUE futex|poll OFFSET BYTES SEED
//   reopen (with a descriptor)
//   rounds COUNT SLAB
//   resources
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/src/device/arena_memory.h"
#include "client/src/device/device_map.h"
#include "client/src/device/piece_range.h"
#include "daemon/base/status.h"
#include "daemon/device/cuda_device.h"
#include "daemon/device/emulated_device.h"
#include "daemon/device/in_place_device.h"
#include "hoist/shared/cuda_driver.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/packet_socket.h"
#include "tests/conformance/device/resources.h"
#include "tests/conformance/device/share_text.h"
#include "tests/support/pattern.h"

namespace hoistd::testing {
namespace {

struct Answer {
  std::string body;
  int fd = -1;
};

class PeerProcess {
 public:
  absl::StatusOr<Answer> Do(hoist::Packet packet);

 private:
  absl::Status Map(std::istream& in);
  absl::StatusOr<hoist::SlabImport> ReadSlab(std::istream& in,
                                             hoist::Packet& packet);
  absl::Status Import(std::istream& in, hoist::Packet& packet);
  absl::Status Rounds(std::istream& in, hoist::Packet& packet);
  absl::Status MakeRange(std::istream& in);
  absl::Status Place(std::istream& in, bool lays);
  absl::Status MapArena(std::istream& in, hoist::Packet& packet);
  absl::Status Put(std::istream& in);
  absl::Status Misuse(const hoist::Packet& packet);
  // In the arena or the range, if there is one, else in the map.
  const void* Address(uint64_t offset) const;
  absl::StatusOr<Answer> Read(std::istream& in);
  absl::Status Write(std::istream& in);
  absl::Status Writable(std::istream& in);
  absl::Status MapWords(std::istream& in, const hoist::Packet& packet);
  absl::Status Await(std::istream& in);
  absl::Status Reopen(const hoist::Packet& packet);
  absl::StatusOr<Answer> Count();

  absl::Status MakeDevice(std::istream& in);
  absl::Status MakeSlab(std::istream& in);
  absl::Status Fill(std::istream& in);
  absl::StatusOr<Answer> Share(std::istream& in);
  absl::StatusOr<Answer> Keep(std::istream& in);

  absl::Status Cuda(int error, absl::string_view what) const {
    return ToAbsl(driver_->Check(error, {what.data(), what.size()}));
  }

  std::unique_ptr<hoist::DeviceMap> map_;
  std::array<uint8_t, 16> uuid_ = {};  // Of the map's, if it is CUDA's.
  std::unique_ptr<hoist::PieceRange> range_;
  std::unique_ptr<hoist::ArenaMemory> arena_;
  hoist::Mapping words_;
  std::optional<hoist::cuda::Driver> driver_;  // If the map is CUDA's.
  hoist::cuda::Context context_ = nullptr;
  std::unique_ptr<Device> device_;
  std::vector<SlabSpec> slabs_;
};

absl::StatusOr<Answer> PeerProcess::Do(hoist::Packet packet) {
  std::istringstream in(packet.body);
  std::string verb;
  in >> verb;
  uint64_t number = 0;
  absl::Status done;
  if (verb == "map") {
    done = Map(in);
  } else if (verb == "import") {
    done = Import(in, packet);
  } else if (verb == "rounds") {
    done = Rounds(in, packet);
  } else if (verb == "drop") {
    in >> number;
    done = ToAbsl(map_->Drop(number));
  } else if (verb == "address") {
    in >> number;
    return Answer{absl::StrCat(reinterpret_cast<uintptr_t>(Address(number)))};
  } else if (verb == "read") {
    return Read(in);
  } else if (verb == "write") {
    done = Write(in);
  } else if (verb == "writable") {
    done = Writable(in);
  } else if (verb == "range") {
    done = MakeRange(in);
  } else if (verb == "place" || verb == "lay") {
    done = Place(in, verb == "lay");
  } else if (verb == "open") {
    done = ToAbsl(range_->Open());
  } else if (verb == "arena") {
    done = MapArena(in, packet);
  } else if (verb == "put") {
    done = Put(in);
  } else if (verb == "misuse") {
    done = Misuse(packet);
  } else if (verb == "words") {
    done = MapWords(in, packet);
  } else if (verb == "await") {
    done = Await(in);
  } else if (verb == "reopen") {
    done = Reopen(packet);
  } else if (verb == "resources") {
    return Count();
  } else if (verb == "device") {
    done = MakeDevice(in);
  } else if (verb == "slab") {
    done = MakeSlab(in);
  } else if (verb == "fill") {
    done = Fill(in);
  } else if (verb == "share") {
    return Share(in);
  } else if (verb == "keep") {
    return Keep(in);
  } else {
    done = absl::InternalError(absl::StrCat("what is ", verb));
  }
  if (!done.ok()) return done;
  return Answer{};
}

absl::Status PeerProcess::Map(std::istream& in) {
  std::string kind, hex;
  uint64_t span = 0;
  in >> kind >> span >> hex;
  if (kind == "emulated") {
    HOIST_ASSIGN_OR_RETURN(map_, ToAbsl(hoist::CreateEmulatedDeviceMap(span)));
    return absl::OkStatus();
  }
  std::ranges::copy(FromHex(hex), uuid_.begin());
  HOIST_ASSIGN_OR_RETURN(map_, ToAbsl(hoist::CreateCudaDeviceMap(uuid_, span)));
  // A worker's own use of CUDA, beside the map.
  HOIST_ASSIGN_OR_RETURN(driver_, ToAbsl(hoist::cuda::Driver::Load()));
  int count = 0;
  HOIST_RETURN_IF_ERROR(Cuda(driver_->device_count(&count), "count"));
  for (int i = 0; i < count; ++i) {
    hoist::cuda::DeviceId device = 0;
    hoist::cuda::Uuid found = {};
    HOIST_RETURN_IF_ERROR(Cuda(driver_->device_get(&device, i), "get"));
    HOIST_RETURN_IF_ERROR(Cuda(driver_->device_uuid(&found, device), "uuid"));
    if (found.bytes != uuid_) continue;
    HOIST_RETURN_IF_ERROR(
        Cuda(driver_->primary_retain(&context_, device), "retain"));
    return Cuda(driver_->push_context(context_), "push");
  }
  return absl::InternalError("the map found a GPU that is not there");
}

absl::StatusOr<hoist::SlabImport> PeerProcess::ReadSlab(std::istream& in,
                                                        hoist::Packet& packet) {
  hoist::SlabImport slab;
  int backing = 0;
  std::string hex;
  in >> slab.id >> slab.offset >> slab.bytes >> backing >> hex >> slab.apart >>
      slab.numa_node;
  switch (static_cast<Backing>(backing)) {
    case Backing::kMemfd:
      slab.backing = hoist::SlabBacking::kMemfd;
      break;
    case Backing::kVmm:
      slab.backing = hoist::SlabBacking::kVmm;
      break;
    case Backing::kIpc:
      slab.backing = hoist::SlabBacking::kIpc;
      break;
  }
  std::ranges::copy(FromHex(hex), slab.ipc_handle.begin());
  if (!packet.fds.empty()) slab.fd = std::move(packet.fds[0]);
  return slab;
}

absl::Status PeerProcess::Import(std::istream& in, hoist::Packet& packet) {
  HOIST_ASSIGN_OR_RETURN(hoist::SlabImport slab, ReadSlab(in, packet));
  return ToAbsl(map_->Import(std::move(slab)));
}

absl::Status PeerProcess::Rounds(std::istream& in, hoist::Packet& packet) {
  int count = 0;
  in >> count;
  HOIST_ASSIGN_OR_RETURN(const hoist::SlabImport slab, ReadSlab(in, packet));
  for (int i = 0; i < count; ++i) {
    hoist::SlabImport one = {.id = slab.id,
                             .offset = slab.offset,
                             .bytes = slab.bytes,
                             .backing = slab.backing,
                             .ipc_handle = slab.ipc_handle};
    if (slab.fd.valid()) {
      one.fd = hoist::UniqueFd(fcntl(slab.fd.get(), F_DUPFD_CLOEXEC, 0));
    }
    HOIST_RETURN_IF_ERROR(ToAbsl(map_->Import(std::move(one))));
    HOIST_RETURN_IF_ERROR(ToAbsl(map_->Drop(slab.id)));
  }
  return absl::OkStatus();
}

absl::Status PeerProcess::MakeRange(std::istream& in) {
  uint64_t bytes = 0;
  in >> bytes;
  HOIST_ASSIGN_OR_RETURN(range_,
                         ToAbsl(driver_ ? hoist::CreateCudaRange(uuid_, bytes)
                                        : hoist::CreateEmulatedRange(bytes)));
  return absl::OkStatus();
}

absl::Status PeerProcess::Place(std::istream& in, bool lays) {
  uint64_t at = 0, offset = 0;
  in >> at >> offset;
  HOIST_ASSIGN_OR_RETURN(const hoist::SlabHandle slab,
                         ToAbsl(map_->Handle(offset)));
  return ToAbsl(lays ? range_->Lay(at, slab) : range_->Place(at, slab));
}

absl::Status PeerProcess::MapArena(std::istream& in, hoist::Packet& packet) {
  HOIST_ASSIGN_OR_RETURN(hoist::SlabImport slab, ReadSlab(in, packet));
  std::vector<hoist::SlabImport> slabs;
  slabs.push_back(std::move(slab));
  arena_.reset();
  HOIST_ASSIGN_OR_RETURN(
      arena_,
      ToAbsl(driver_ ? hoist::CreateCudaArenaMemory(uuid_, std::move(slabs))
                     : hoist::CreateEmulatedArenaMemory(std::move(slabs))));
  return absl::OkStatus();
}

absl::Status PeerProcess::Put(std::istream& in) {
  uint64_t offset = 0, bytes = 0, seed = 0;
  in >> offset >> bytes >> seed;
  const std::vector<std::byte> pattern = Pattern(bytes, seed);
  std::memcpy(arena_->base() + offset, pattern.data(), bytes);
  return absl::OkStatus();
}

// What a worker with a writable slab could do to hoistd; must not return ok.
absl::Status PeerProcess::Misuse(const hoist::Packet& packet) {
  const int fd = packet.fds.at(0).get();
  if (ftruncate(fd, 0) == 0 || ftruncate(fd, off_t{1} << 30) == 0) {
    return absl::OkStatus();
  }
  for (const int seal : {F_SEAL_FUTURE_WRITE, F_SEAL_WRITE}) {
    if (fcntl(fd, F_ADD_SEALS, seal) == 0) return absl::OkStatus();
  }
  return absl::PermissionDeniedError("it is sealed");
}

const void* PeerProcess::Address(uint64_t offset) const {
  if (arena_ != nullptr) return arena_->base() + offset;
  if (range_ == nullptr) return map_->Address(offset);
  return static_cast<const std::byte*>(range_->address()) + offset;
}

absl::StatusOr<Answer> PeerProcess::Read(std::istream& in) {
  uint64_t offset = 0, bytes = 0;
  in >> offset >> bytes;
  const void* from = Address(offset);
  if (from == nullptr) return absl::NotFoundError("nothing is mapped there");
  Answer answer;
  answer.body.resize(bytes);
  if (!driver_) {
    std::memcpy(answer.body.data(), from, bytes);
    return answer;
  }
  HOIST_RETURN_IF_ERROR(
      Cuda(driver_->copy_out(answer.body.data(),
                             reinterpret_cast<uintptr_t>(from), bytes),
           "read"));
  return answer;
}

// Writes as a worker with a bug would; must not return ok.
absl::Status PeerProcess::Write(std::istream& in) {
  uint64_t offset = 0, bytes = 0;
  in >> offset >> bytes;
  const void* at = Address(offset);
  if (!driver_) {
    std::memset(const_cast<void*>(at), 0xee, bytes);
    return absl::OkStatus();
  }
  const auto address = reinterpret_cast<uintptr_t>(at);
  const std::string bad(bytes, '\xee');
  const int set = driver_->set_bytes(address, 0xee, bytes);
  const int copied = driver_->copy_in(address, bad.data(), bytes);
  HOIST_RETURN_IF_ERROR(Cuda(set, "set"));
  return Cuda(copied, "copy");
}

absl::Status PeerProcess::Writable(std::istream& in) {
  uint64_t offset = 0, bytes = 0;
  in >> offset >> bytes;
  if (mprotect(const_cast<void*>(Address(offset)), bytes,
               PROT_READ | PROT_WRITE) != 0) {
    return ErrnoToStatus(errno, "mprotect");
  }
  return absl::OkStatus();
}

absl::Status PeerProcess::MapWords(std::istream& in,
                                   const hoist::Packet& packet) {
  size_t bytes = 0;
  in >> bytes;
  HOIST_ASSIGN_OR_RETURN(
      words_, ToAbsl(hoist::Mapping::OfFd(packet.fds.at(0).get(), bytes,
                                          hoist::Mapping::Access::kReadWrite)));
  return absl::OkStatus();
}

// Waits until the word reaches the value, and compares the bytes at once.
absl::Status PeerProcess::Await(std::istream& in) {
  size_t index = 0;
  uint32_t value = 0;
  uint64_t offset = 0, bytes = 0, seed = 0;
  std::string how;
  in >> index >> value >> how >> offset >> bytes >> seed;
  const std::vector<std::byte> expected = Pattern(bytes, seed);
  std::vector<std::byte> seen(bytes);
  const auto* from = static_cast<const std::byte*>(map_->Address(offset));
  auto* const word =
      reinterpret_cast<std::atomic<uint32_t>*>(words_.span().data()) + index;
  while (true) {
    const uint32_t now = word->load(std::memory_order_acquire);
    if (static_cast<int32_t>(now - value) >= 0) break;
    if (how == "poll") {
      sched_yield();
      continue;
    }
    const timespec limit = {20, 0};  // A wake-up that never comes is an error.
    if (syscall(SYS_futex, word, FUTEX_WAIT, now, &limit, nullptr, 0) != 0 &&
        errno == ETIMEDOUT) {
      return absl::DeadlineExceededError("nobody woke the word's waiter");
    }
  }
  if (driver_) {
    HOIST_RETURN_IF_ERROR(
        Cuda(driver_->copy_out(seen.data(), reinterpret_cast<uintptr_t>(from),
                               bytes),
             "read"));
  } else {
    std::memcpy(seen.data(), from, bytes);
  }
  if (seen != expected) return absl::DataLossError("the word came too early");
  return absl::OkStatus();
}

// Opens the descriptor's file anew for writing, as a worker of another uid.
absl::Status PeerProcess::Reopen(const hoist::Packet& packet) {
  const std::string path =
      absl::StrCat("/proc/self/fd/", packet.fds.at(0).get());
  constexpr uid_t kNobody = 65534;
  if (geteuid() != 0 || seteuid(kNobody) != 0) {
    return absl::FailedPreconditionError("only root can become another uid");
  }
  const hoist::UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  const int error = errno;
  // An ordinary memfd can be opened so, else the refusal would prove nothing.
  const hoist::UniqueFd plain(memfd_create("test-plain", MFD_CLOEXEC));
  const hoist::UniqueFd again(open(
      absl::StrCat("/proc/self/fd/", plain.get()).c_str(), O_RDWR | O_CLOEXEC));
  if (seteuid(0) != 0) return ErrnoToStatus(errno, "seteuid back");
  if (!again.valid()) {
    return absl::FailedPreconditionError("another uid can open nothing here");
  }
  if (!fd.valid()) return ErrnoToStatus(error, "open for writing");
  return absl::OkStatus();
}

absl::StatusOr<Answer> PeerProcess::Count() {
  const Resources now = CountResources();
  return Answer{absl::StrCat(now.fds, " ", now.mappings)};
}

absl::Status PeerProcess::MakeDevice(std::istream& in) {
  std::string kind, in_place;
  in >> kind >> in_place;
  if (!in_place.empty()) {
    InPlaceOptions options;
    options.total_bytes = uint64_t{64} << 20;
    options.span_bytes = options.total_bytes;
    options.gpus = kind == "emulated" ? 0 : 1;
    HOIST_ASSIGN_OR_RETURN(device_, InPlaceDevice::Create(options));
    return absl::OkStatus();
  }
  if (kind == "emulated") {
    HOIST_ASSIGN_OR_RETURN(
        device_, EmulatedDevice::Create({.total_bytes = uint64_t{64} << 20}));
    return absl::OkStatus();
  }
  HOIST_ASSIGN_OR_RETURN(auto devices, FindCudaDevices({}));
  if (devices.empty()) return absl::UnavailableError("no GPU");
  device_ = std::move(devices[0]);
  return absl::OkStatus();
}

absl::Status PeerProcess::MakeSlab(std::istream& in) {
  uint64_t id = 0;
  int backing = 0;
  SlabSpec spec;
  in >> id >> spec.offset >> spec.bytes >> backing;
  spec.id = SlabId(id);
  spec.backing = static_cast<Backing>(backing);
  slabs_.push_back(spec);
  return device_->CreateSlab(spec);
}

absl::Status PeerProcess::Fill(std::istream& in) {
  uint64_t offset = 0, bytes = 0, seed = 0;
  in >> offset >> bytes >> seed;
  const std::vector<std::byte> from = Pattern(bytes, seed);
  HOIST_ASSIGN_OR_RETURN(auto stream, device_->CreateStream());
  HOIST_RETURN_IF_ERROR(stream->CopyIn(offset, from));
  std::promise<absl::Status> done;
  stream->Then([&](absl::Status s) { done.set_value(std::move(s)); });
  return done.get_future().get();
}

// What is to be kept of it.
absl::StatusOr<Answer> PeerProcess::Keep(std::istream& in) {
  uint64_t id = 0;
  in >> id;
  HOIST_ASSIGN_OR_RETURN(const SlabShare share, device_->Share(SlabId(id)));
  return Answer{"", share.keep_fd};
}

absl::StatusOr<Answer> PeerProcess::Share(std::istream& in) {
  uint64_t id = 0;
  in >> id;
  for (const SlabSpec& spec : slabs_) {
    if (spec.id != SlabId(id)) continue;
    HOIST_ASSIGN_OR_RETURN(const SlabShare share, device_->Share(spec.id));
    return Answer{SlabText(spec, share), share.fd};
  }
  return absl::NotFoundError("no such slab");
}

int Serve(int socket) {
  // The kernel's own end, also where a sanitizer has put a handler.
  std::signal(SIGSEGV, SIG_DFL);
  std::signal(SIGBUS, SIG_DFL);
  PeerProcess peer;
  while (true) {
    auto packet = hoist::ReceivePacket(socket);
    if (!packet.ok()) return 2;
    if (!*packet) return 0;
    absl::StatusOr<Answer> answer = peer.Do(std::move(**packet));
    std::vector<int> fds;
    std::string body;
    if (answer.ok()) {
      body = "ok " + answer->body;
      if (answer->fd >= 0) fds.push_back(answer->fd);
    } else {
      body = absl::StrCat("error ", static_cast<int>(answer.status().code()),
                          " ", answer.status().message());
    }
    if (!hoist::SendPacket(socket, body, fds).ok()) return 3;
  }
}

}  // namespace
}  // namespace hoistd::testing

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  return hoistd::testing::Serve(std::atoi(argv[1]));
}
