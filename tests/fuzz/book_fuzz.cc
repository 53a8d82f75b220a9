// The parked book: what a memfd of any content is taken for, and that what was
// written is found again, or nothing.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>

#include "daemon/keeper/persisted_book.h"
#include "hoist/shared/packet_socket.h"
#include "tests/fuzz/fuzz.h"

namespace hoistd {
namespace {

constexpr uint64_t kHalf = 4096;
constexpr uint64_t kBookBytes = 4096 + 2 * kHalf;

using Values = std::map<PersistedKey, std::string>;

hoist::UniqueFd Dup(int fd) {
  return hoist::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

Values ValuesOf(const PersistedBook& book) {
  Values values;
  for (const auto& [key, value] : book.entries()) values[key] = value;
  return values;
}

std::string BytesOf(int fd) {
  std::string bytes(kBookBytes, '\0');
  FUZZ_REQUIRE(pread(fd, bytes.data(), bytes.size(), 0) ==
               static_cast<ssize_t>(bytes.size()));
  return bytes;
}

// Puts and erases as the input says; gives what counts after each, and where
// the book itself says it is full, that nothing changed.
Values Write(PersistedBook& book, fuzz::Input& input) {
  Values want = ValuesOf(book);
  for (int steps = input.Take() % 64; steps > 0 && !input.empty(); --steps) {
    const PersistedKey key = {input.Take() % 3u, input.Take() % 8u};
    const uint8_t what = input.Take();
    if (what < 0x40) {
      if (book.Erase(key).ok()) want.erase(key);
    } else {
      const std::string value(input.Bytes(input.Take<uint16_t>() % 600));
      const absl::Status status = book.Put(key, value);
      FUZZ_REQUIRE(status.ok() || absl::IsResourceExhausted(status));
      if (status.ok()) want[key] = value;
    }
    FUZZ_REQUIRE(ValuesOf(book) == want);
  }
  return want;
}

// A successor finds `want`, also the one after it.
void RequireFound(const PersistedBook& book, const Values& want) {
  for (int i = 0; i < 2; ++i) {
    absl::StatusOr<PersistedBook> next = PersistedBook::Adopt(Dup(book.fd()));
    FUZZ_REQUIRE(next.ok() && ValuesOf(*next) == want);
    next->Adopted();
  }
}

// Of a damaged book nothing is found that was not written: each value is one
// that its key had at some time.
void RequireWritten(
    const Values& found,
    const std::map<PersistedKey, std::vector<std::string>>& ever) {
  for (const auto& [key, value] : found) {
    const auto at = ever.find(key);
    FUZZ_REQUIRE(at != ever.end());
    FUZZ_REQUIRE(std::find(at->second.begin(), at->second.end(), value) !=
                 at->second.end());
  }
}

void Damage(fuzz::Input& input) {
  PersistedBook book = *PersistedBook::Create(kHalf);
  std::map<PersistedKey, std::vector<std::string>> ever;
  for (uint64_t i = 0; i < 24; ++i) {
    const PersistedKey key = {static_cast<uint32_t>(1 + i % 2), i % 5};
    const std::string value(i * 17 % 200, static_cast<char>('a' + i));
    FUZZ_REQUIRE(book.Put(key, value).ok());
    ever[key].push_back(value);
  }
  // One place: with more, a fuzzer finds a value and the checksum that fits.
  const auto at = input.Take<uint16_t>() % (kBookBytes - 8);
  const std::string_view bytes = input.Bytes(8);
  FUZZ_REQUIRE(
      pwrite(book.fd(), bytes.data(), bytes.size(), static_cast<off_t>(at)) ==
      static_cast<ssize_t>(bytes.size()));
  absl::StatusOr<PersistedBook> next = PersistedBook::Adopt(Dup(book.fd()));
  if (!next.ok()) {
    FUZZ_REQUIRE(absl::IsDataLoss(next.status()) ||
                 absl::IsFailedPrecondition(next.status()));
    return;
  }
  RequireWritten(ValuesOf(*next), ever);
}

// Any bytes: refused, or a book that can be used and handed on.
void AdoptAny(fuzz::Input& input) {
  const std::string_view bytes = input.Rest();
  auto memfd = hoist::CreateMemfd("fuzz", kBookBytes);
  FUZZ_REQUIRE(memfd.ok());
  const std::string_view some = bytes.substr(0, kBookBytes);
  FUZZ_REQUIRE(pwrite(memfd->get(), some.data(), some.size(), 0) ==
               static_cast<ssize_t>(some.size()));
  absl::StatusOr<PersistedBook> book = PersistedBook::Adopt(Dup(memfd->get()));
  if (!book.ok()) return;
  book->Adopted();
  Values want = ValuesOf(*book);
  const std::string value(100, 'v');
  const absl::Status put = book->Put({7, 7}, value);
  FUZZ_REQUIRE(put.ok() || absl::IsResourceExhausted(put));
  if (put.ok()) want[{7, 7}] = value;
  RequireFound(*book, want);
}

std::string Script() {
  fuzz::Output out;
  out.Put(uint8_t{0}).Put(uint8_t{40});
  for (uint8_t i = 0; i < 40; ++i) {
    out.Put(uint8_t(i % 3)).Put(uint8_t(i % 7));
    if (i % 5 == 4) {
      out.Put(uint8_t{0});
    } else {
      out.Put(uint8_t{0x80}).Put(uint16_t{30}).Bytes(std::string(30, 'a'));
    }
  }
  return out.str();
}

std::string ABook() {
  PersistedBook book = *PersistedBook::Create(kHalf);
  FUZZ_REQUIRE(book.Put({1, 1}, "one").ok());
  FUZZ_REQUIRE(book.Put({1, 2}, "two").ok());
  FUZZ_REQUIRE(book.Erase({1, 1}).ok());
  std::string bytes = BytesOf(book.fd());
  bytes.resize(bytes.find_last_not_of('\0') + 1);
  return fuzz::Output().Put(uint8_t{2}).Bytes(bytes).str();
}

}  // namespace

namespace fuzz {

Seeds MakeSeeds() {
  return {
      {"script", Script()},
      {"damage",
       Output().Put(uint8_t{1}).Put(uint16_t{4096 + 32}).Bytes("xyz").str()},
      {"book", ABook()}};
}

}  // namespace fuzz
}  // namespace hoistd

// u8 what is tried: 0 what is written is found again; 1 a book with up to
// 8 bytes changed (u16 place, they); 2 a book of these bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hoistd;
  fuzz::Input input(data, size);
  switch (input.Take() % 3) {
    case 0: {
      PersistedBook book = *PersistedBook::Create(kHalf);
      const Values want = Write(book, input);
      RequireFound(book, want);
      break;
    }
    case 1:
      Damage(input);
      break;
    default:
      AdoptAny(input);
  }
  return 0;
}
