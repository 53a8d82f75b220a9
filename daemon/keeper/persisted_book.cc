#include "daemon/keeper/persisted_book.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/hash.h"
#include "daemon/base/status.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMagic = 0x314b4f4f42545350;  // "PSTBOOK1", as bytes.
// The valid half. The values differ in every bit, so that no flip of a few
// turns one into the other.
constexpr uint32_t kHalf[] = {0x0f3355a5, 0xf0ccaa5a};
// Memory is reserved in such steps: a shortage is an error, not SIGBUS.
constexpr uint64_t kStep = uint64_t{1} << 20;

constexpr uint32_t kErased = uint32_t{1} << 31;

struct Record {
  std::atomic<uint64_t> length;  // LengthWord; 0: the end of the records.
  uint64_t id;
  uint64_t hash;
  uint32_t kind;  // Perhaps with kErased.
  uint32_t zero;
};
static_assert(sizeof(Record) == 32);

// Never 0, and detects any single flipped bit.
uint64_t LengthWord(uint64_t bytes) {
  const auto n = static_cast<uint32_t>(bytes + 1);
  return (uint64_t{~n} << 32) | n;
}

uint64_t SizeOf(uint64_t value_bytes) {
  return sizeof(Record) + (value_bytes + 7) / 8 * 8;
}

uint64_t HashOf(uint32_t kind, uint64_t id, std::string_view value) {
  const Hash128 all = Hasher()
                          .Number(kind)
                          .Number(id)
                          .String({value.data(), value.size()})
                          .Finish();
  uint64_t some;
  std::memcpy(&some, all.data(), sizeof(some));
  return some;
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the kept book is damaged: ", what));
}

}  // namespace

struct PersistedBook::Header {
  uint64_t magic;
  uint32_t version;
  uint32_t zero;
  uint64_t half_bytes;
  uint64_t hash;               // Of the fields above.
  std::atomic<uint32_t> half;  // One of kHalf.
  std::atomic<uint32_t> attempts;

  uint64_t Hash() const {
    return HashOf(version, half_bytes, std::string_view("kept book"));
  }
};

PersistedBook::PersistedBook(hoist::UniqueFd memfd, hoist::Mapping mapping)
    : memfd_(std::move(memfd)), mapping_(std::move(mapping)) {}

absl::StatusOr<PersistedBook> PersistedBook::Create(uint64_t half_bytes) {
  HOIST_CHECK(half_bytes > 0 && half_bytes % kPage == 0 &&
              half_bytes <= uint64_t{1} << 40);
  const uint64_t bytes = kPage + 2 * half_bytes;
  HOIST_ASSIGN_OR_RETURN(auto memfd,
                         ToAbsl(hoist::CreateMemfd("hoist-book", bytes)));
  HOIST_ASSIGN_OR_RETURN(
      auto mapping,
      ToAbsl(hoist::Mapping::OfFd(memfd.get(), bytes,
                                  hoist::Mapping::Access::kReadWrite)));
  if (fallocate(memfd.get(), 0, 0, kPage) != 0) {
    return ErrnoToStatus(errno, "memory for the kept book");
  }
  PersistedBook book(std::move(memfd), std::move(mapping));
  book.half_bytes_ = half_bytes;
  Header& header = book.header();
  header.version = kVersion;
  header.half_bytes = half_bytes;
  header.hash = header.Hash();
  header.half = kHalf[0];
  header.magic = kMagic;
  return book;
}

absl::StatusOr<PersistedBook> PersistedBook::Adopt(hoist::UniqueFd memfd) {
  struct stat file;
  if (fstat(memfd.get(), &file) != 0) return ErrnoToStatus(errno, "kept book");
  const auto bytes = static_cast<uint64_t>(file.st_size);
  if (!S_ISREG(file.st_mode) || bytes < kPage) return Damaged("its size");
  HOIST_ASSIGN_OR_RETURN(
      auto mapping,
      ToAbsl(hoist::Mapping::OfFd(memfd.get(), bytes,
                                  hoist::Mapping::Access::kReadWrite)));
  PersistedBook book(std::move(memfd), std::move(mapping));
  Header& header = book.header();
  if (header.magic != kMagic) return Damaged("it is no book");
  if (header.version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("its book is of version ", header.version,
                     ", and this hoistd reads version ", kVersion));
  }
  const uint64_t half = header.half_bytes;
  if (header.hash != header.Hash() || half == 0 || half % kPage != 0 ||
      half > uint64_t{1} << 40 || bytes != kPage + 2 * half) {
    return Damaged("its header");
  }
  if (header.attempts >= kMaxAttempts) {
    return absl::FailedPreconditionError(absl::StrCat(
        "as many as ", header.attempts.load(),
        " hoistds ended while they took over what the last one kept"));
  }
  ++header.attempts;
  book.half_bytes_ = half;
  HOIST_RETURN_IF_ERROR(book.Read());
  return book;
}

PersistedBook::Header& PersistedBook::header() const {
  static_assert(sizeof(Header) <= kPage);
  return *reinterpret_cast<Header*>(mapping_.data());
}

std::byte* PersistedBook::Half(uint32_t which) const {
  return mapping_.data() + kPage + which * half_bytes_;
}

absl::Status PersistedBook::Read() {
  const uint32_t half = header().half;
  if (half != kHalf[0] && half != kHalf[1]) return Damaged("its halves");
  std::byte* const from = Half(half == kHalf[0] ? 0 : 1);
  while (end_ + sizeof(Record) <= half_bytes_) {
    const auto& record = *reinterpret_cast<const Record*>(from + end_);
    const uint64_t length = record.length.load(std::memory_order_acquire);
    if (length == 0) break;
    const uint64_t bytes = static_cast<uint32_t>(length) - uint64_t{1};
    if (length != LengthWord(bytes) || bytes > kMaxValueBytes ||
        SizeOf(bytes) > half_bytes_ - end_) {
      return Damaged("a length");
    }
    const auto* value = reinterpret_cast<const char*>(&record + 1);
    if (record.zero != 0 ||
        record.hash != HashOf(record.kind, record.id, {value, bytes})) {
      return Damaged("a record");
    }
    const PersistedKey key = {record.kind & ~kErased, record.id};
    const auto found = places_.find(key);
    if (found != places_.end()) {
      live_bytes_ -= SizeOf(found->second.bytes);
      places_.erase(found);
    }
    if ((record.kind & kErased) == 0) {
      places_[key] = {static_cast<uint64_t>(
                          value - reinterpret_cast<char*>(mapping_.data())),
                      bytes};
      live_bytes_ += SizeOf(bytes);
    }
    end_ += SizeOf(bytes);
  }
  return absl::OkStatus();
}

absl::Status PersistedBook::Put(PersistedKey key, std::string_view value) {
  if (value.size() > kMaxValueBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a value of ", value.size(),
                                                   " bytes; a kept book takes ",
                                                   kMaxValueBytes));
  }
  return Append(key, value, /*erased=*/false);
}

absl::Status PersistedBook::Erase(PersistedKey key) {
  if (!places_.contains(key)) return absl::OkStatus();
  return Append(key, {}, /*erased=*/true);
}

absl::Status PersistedBook::Append(PersistedKey key, std::string_view value,
                                   bool erased) {
  HOIST_CHECK((key.kind & kErased) == 0);
  const uint64_t size = SizeOf(value.size());
  // Moves only if half of the space is free afterwards: otherwise each of the
  // next records would move all again.
  if (size > half_bytes_ - end_ && live_bytes_ + size <= half_bytes_ / 2) {
    HOIST_RETURN_IF_ERROR(MoveToOtherHalf());
  }
  if (size > half_bytes_ - end_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the kept book is full: ", live_bytes_, " bytes of ", half_bytes_));
  }
  std::byte* const to = Half(header().half == kHalf[0] ? 0 : 1) + end_;
  const auto at = static_cast<uint64_t>(to - mapping_.data());
  const uint64_t first = at / kStep * kStep;
  const uint64_t last =
      std::min(mapping_.size(), (at + size + kStep - 1) / kStep * kStep);
  if (first == at || at / kStep != (at + size - 1) / kStep || end_ == 0) {
    if (fallocate(memfd_.get(), 0, static_cast<off_t>(first),
                  static_cast<off_t>(last - first)) != 0) {
      return ErrnoToStatus(errno, "memory for the kept book");
    }
  }
  auto& record = *reinterpret_cast<Record*>(to);
  record.id = key.id;
  record.kind = erased ? key.kind | kErased : key.kind;
  record.hash = HashOf(record.kind, record.id, value);
  record.zero = 0;
  if (!value.empty())
    std::memcpy(to + sizeof(Record), value.data(), value.size());
  record.length.store(LengthWord(value.size()), std::memory_order_release);

  end_ += size;
  const auto found = places_.find(key);
  if (found != places_.end()) {
    live_bytes_ -= SizeOf(found->second.bytes);
    places_.erase(found);
  }
  if (!erased) {
    places_[key] = {at + sizeof(Record), value.size()};
    live_bytes_ += size;
  }
  return absl::OkStatus();
}

absl::Status PersistedBook::MoveToOtherHalf() {
  const uint32_t from = header().half == kHalf[0] ? 0 : 1;
  const uint32_t to = 1 - from;
  // Zeroes the half.
  if (fallocate(memfd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(kPage + to * half_bytes_),
                static_cast<off_t>(half_bytes_)) != 0 ||
      fallocate(memfd_.get(), 0, static_cast<off_t>(kPage + to * half_bytes_),
                static_cast<off_t>(std::max(live_bytes_, kPage))) != 0) {
    return ErrnoToStatus(errno, "memory for the kept book");
  }
  uint64_t end = 0;
  std::map<PersistedKey, Place> places;
  for (const auto& [key, place] : places_) {
    const uint64_t size = SizeOf(place.bytes);
    std::memcpy(Half(to) + end, mapping_.data() + place.offset - sizeof(Record),
                size);
    places[key] = {kPage + to * half_bytes_ + end + sizeof(Record),
                   place.bytes};
    end += size;
  }
  header().half.store(kHalf[to], std::memory_order_release);
  places_ = std::move(places);
  end_ = end;
  // Frees the old half. After a failure the next move zeroes it.
  (void)fallocate(memfd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(kPage + from * half_bytes_),
                  static_cast<off_t>(half_bytes_));
  return absl::OkStatus();
}

void PersistedBook::Abandon() {
  header().half.store(0, std::memory_order_release);
}

void PersistedBook::Adopted() { header().attempts = 0; }

std::optional<std::string> PersistedBook::Get(PersistedKey key) const {
  const auto found = places_.find(key);
  if (found == places_.end()) return std::nullopt;
  const Place& place = found->second;
  return std::string(
      reinterpret_cast<const char*>(mapping_.data()) + place.offset,
      place.bytes);
}

std::map<PersistedKey, std::string_view> PersistedBook::entries() const {
  std::map<PersistedKey, std::string_view> all;
  for (const auto& [key, place] : places_) {
    all[key] = {reinterpret_cast<const char*>(mapping_.data()) + place.offset,
                place.bytes};
  }
  return all;
}

}  // namespace hoistd
