// Descriptors that a predecessor kept: a bundle of messages of any content.
#include <fcntl.h>
#include <sys/socket.h>

#include <set>

#include "daemon/keeper/descriptor_bundle.h"
#include "tests/fuzz/fuzz.h"

namespace hoistd {
namespace {

constexpr size_t kMessageBytes = 24;
constexpr std::string_view kMagic = "KSTBUND1";

hoist::UniqueFd Dup(int fd) {
  return hoist::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

void SendRaw(int socket, std::string_view bytes, int fds) {
  std::vector<int> all(static_cast<size_t>(fds), 0);
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!all.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(all.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(all.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), all.data(), all.size() * sizeof(int));
  }
  (void)!sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
}

using Keys = std::set<PersistedKey>;

// Each key once, and its descriptor valid.
absl::StatusOr<DescriptorBundle> Adopt(int in, int out, Keys& found) {
  return DescriptorBundle::Adopt(
      Dup(in), Dup(out), [&](PersistedKey key, hoist::UniqueFd fd) {
        FUZZ_REQUIRE(fd.valid() && found.insert(key).second);
      });
}

void Use(DescriptorBundle& bundle, Keys keys) {
  for (const PersistedKey& key : keys) FUZZ_REQUIRE(bundle.Has(key));
  if (!keys.empty()) {
    const PersistedKey gone = *keys.begin();
    FUZZ_REQUIRE(bundle.Remove(gone).ok() && !bundle.Has(gone));
    keys.erase(gone);
  }
  const PersistedKey fresh = {9, 9};
  if (!bundle.Has(fresh) && !bundle.full()) {
    FUZZ_REQUIRE(bundle.Add(fresh, 0).ok());
    keys.insert(fresh);
  }
  // The next one finds exactly those.
  Keys found;
  FUZZ_REQUIRE(Adopt(bundle.in(), bundle.out(), found).ok() && found == keys);
}

// Of a process without other threads: its open descriptors fill 0 to this.
int LowestFree() { return Dup(0).get(); }

std::string MessageOf(uint64_t id, uint32_t kind, uint32_t end) {
  return fuzz::Output().Bytes(kMagic).Put(id).Put(kind).Put(end).str();
}

std::string Step(uint8_t how, std::string_view bytes) {
  return fuzz::Output().Put(how).Bytes(bytes).str();
}

// Messages: u8 with descriptors in the lowest two bits and, in the others, by
// how much the message is too short; then its 24 bytes.
void Try(const uint8_t* data, size_t size) {
  int ends[2];
  FUZZ_REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) ==
               0);
  const hoist::UniqueFd in(ends[0]), out(ends[1]);
  fuzz::Input input(data, size);
  for (int sent = 0; !input.empty() && sent < 24; ++sent) {
    const uint8_t how = input.Take();
    const std::string_view bytes = input.Bytes(kMessageBytes);
    SendRaw(in.get(),
            bytes.substr(
                0, bytes.size() - std::min<size_t>(bytes.size(), how >> 4)),
            how & 3);
  }
  Keys found;
  absl::StatusOr<DescriptorBundle> bundle = Adopt(in.get(), out.get(), found);
  if (bundle.ok()) {
    Use(*bundle, found);
  } else {
    FUZZ_REQUIRE(absl::IsDataLoss(bundle.status()));
  }
}

}  // namespace

namespace fuzz {

Seeds MakeSeeds() {
  const std::string one = Step(0x01, MessageOf(1, 1, 0));
  const std::string two = Step(0x01, MessageOf(2, 1, 0));
  const std::string end = Step(0x00, MessageOf(77, 0, 1));
  return {{"two", one + two},
          {"twice", one + two + one},
          {"turned", one + end + two + end + one},
          {"no_fd", one + Step(0x00, MessageOf(3, 1, 0))},
          {"short", Step(0x11, MessageOf(3, 1, 0)) + one},
          {"two_fds", one + Step(0x02, MessageOf(3, 1, 0))},
          {"three_fds", Step(0x03, MessageOf(3, 1, 0)) + one}};
}

}  // namespace fuzz
}  // namespace hoistd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int lowest = hoistd::LowestFree();
  hoistd::Try(data, size);
  FUZZ_REQUIRE(hoistd::LowestFree() == lowest);  // None was left open.
  return 0;
}
