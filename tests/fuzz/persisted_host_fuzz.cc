// What a successor believes of what lies on the host: records of any content
// beside memory of any content.
#include <fcntl.h>

#include <algorithm>
#include <map>
#include <optional>

#include "daemon/keeper/keep.h"
#include "daemon/store/description.h"
#include "daemon/successor/persisted_host.h"
#include "daemon/successor/persisted_keys.h"
#include "tests/fuzz/fuzz.h"

namespace hoistd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHostBytes = 24 * kPage;  // A part's 64 KiB, from page 3.

// Holds what is stored, as systemd does.
class HoldingStore final : public FdStore {
 public:
  absl::Status Store(const std::string& name,
                     const std::vector<int>& fds) override {
    for (const int fd : fds) {
      held[name] = hoist::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    }
    return absl::OkStatus();
  }
  absl::Status Remove(const std::string& name) override {
    held.erase(name);
    return absl::OkStatus();
  }

  std::map<std::string, hoist::UniqueFd> held;
};

using Records = std::map<PersistedKey, std::string>;

// One hoistd's Keep, and its successor's view of it.
struct World {
  World() : host(kHostBytes) {
    for (size_t i = 0; i < host.size(); ++i) {
      host[i] = static_cast<std::byte>(i * 31 + i / kPage);
    }
    std::vector<HandedFd> none;
    Keep::Found found;
    auto made =
        Keep::Create(store, none, found, [](PersistedKey, hoist::UniqueFd) {});
    FUZZ_REQUIRE(made.ok());
    keep.emplace(*std::move(made));
  }
  Records Kept() const {
    const int fd = store.held.begin()->second.get();
    auto book =
        PersistedBook::Adopt(hoist::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)));
    FUZZ_REQUIRE(book.ok());
    book->Adopted();
    Records records;
    for (const auto& [key, value] : book->entries()) records[key] = value;
    return records;
  }

  HoldingStore store;
  std::vector<std::byte> host;
  std::optional<Keep> keep;
};

World& TheWorld() {
  static World* const world = new World;
  return *world;
}

SpillMeta AMeta() {
  SpillMeta meta;
  meta.model = "m";
  meta.owner = User(1000);
  meta.group.name = "g";
  meta.group.image_bytes = kPage;
  meta.group.tensors = {{"t", hoist::DType::kF32, {4, 8}, {1, 4}, 256, 128}};
  return meta;
}

PersistedPart TakePart(fuzz::Input& input) {
  PersistedPart part;
  const uint8_t owner = input.Take();
  if (owner % 3 == 1) part.owner = User(input.Take<uint32_t>());
  if (owner % 3 == 2) {
    const std::string_view name = input.Bytes(input.Take() % 32);
    part.owner = User::Tenant({name.data(), name.size()});
  }
  part.from = input.Take<uint64_t>();
  part.bytes = 1 + input.Take<uint16_t>();
  part.file = {input.Take<uint64_t>(), input.Take<uint64_t>(),
               input.Take<uint64_t>(), input.Take<int64_t>(),
               input.Take<int64_t>(),  {input.Take()}};
  return part;
}

void RequireSound(const FoundOnHost& found) {
  for (const FoundImage& image : found.images) {
    FUZZ_REQUIRE(image.host_offset % kPage == 0);
    FUZZ_REQUIRE(CheckLayout(image.meta).ok());
  }
  for (const FoundPart& part : found.parts) {
    FUZZ_REQUIRE(part.host_offset % kPage == 0);
  }
}

// Records of any content: left out and said, or sound and within the memory.
void Find(fuzz::Input& input) {
  World& world = TheWorld();
  Records records;
  while (!input.empty() && records.size() < 32) {
    const uint32_t kind = input.Take() % 4;
    const auto id = input.Take<uint64_t>();
    const auto size = input.Take<uint16_t>();
    records[{kind, id}] = input.Bytes(size);
  }
  size_t ours = 0;
  for (const auto& [key, value] : records) {
    ours += key.kind == static_cast<uint32_t>(PersistedKind::kHostImage) ||
            key.kind == static_cast<uint32_t>(PersistedKind::kHostPart);
  }
  std::vector<std::string> notes;
  FoundOnHost found = FindOnHost(records, notes);
  RequireSound(found);
  FUZZ_REQUIRE(found.parts.size() + found.images.size() + notes.size() == ours);
  FUZZ_REQUIRE(CheckParts(world.host, *world.keep, found.parts, notes).ok());
  for (const FoundPart& part : found.parts) {
    FUZZ_REQUIRE(part.host_offset <= kHostBytes);
    FUZZ_REQUIRE(part.part.bytes <= kHostBytes - part.host_offset);
  }
}

// What is written down is found as it was; where the bytes are not as they
// were, it is dropped, and nobody meets it again.
void WriteAndFind(fuzz::Input& input) {
  World& world = TheWorld();
  const uint64_t at = input.Take() % 4 * kPage;
  const uint8_t flip = input.Take();
  const PersistedPart part = TakePart(input);
  FUZZ_REQUIRE(WriteOnHost({at, part}, world.host, *world.keep).ok());
  std::vector<std::string> notes;
  FoundOnHost found = FindOnHost(world.Kept(), notes);
  FUZZ_REQUIRE(notes.empty() && found.images.empty());
  FUZZ_REQUIRE(found.parts.size() == 1);
  const FoundPart& one = found.parts[0];
  FUZZ_REQUIRE(one.host_offset == at && one.part.file == part.file);
  FUZZ_REQUIRE(one.part.owner == part.owner);
  FUZZ_REQUIRE(one.part.from == part.from && one.part.bytes == part.bytes);
  std::byte& changed = world.host[at + flip % std::min(part.bytes, kPage)];
  if (flip != 0) changed ^= std::byte{1};
  FUZZ_REQUIRE(CheckParts(world.host, *world.keep, found.parts, notes).ok());
  if (flip != 0) changed ^= std::byte{1};
  FUZZ_REQUIRE(found.parts.size() == (flip == 0 ? 1 : 0));
  FUZZ_REQUIRE(world.Kept().size() == found.parts.size());
  FUZZ_REQUIRE(EraseOnHost(at, *world.keep).ok());
  FUZZ_REQUIRE(world.Kept().empty());
}

}  // namespace

namespace fuzz {

Seeds MakeSeeds() {
  Seeds seeds;
  Output all;
  all.Put(uint8_t{0});
  const auto add = [&](const PersistedKey& key, std::string_view value) {
    all.Put(static_cast<uint8_t>(key.kind))
        .Put(key.id)
        .Put(static_cast<uint16_t>(value.size()))
        .Bytes(value);
  };
  const std::vector<std::byte> image = EncodeDescription(SpillId(), AMeta());
  add({static_cast<uint32_t>(PersistedKind::kHostImage), 3},
      {reinterpret_cast<const char*>(image.data()), image.size()});
  World& world = TheWorld();
  const std::string from = std::string(8, '\1') + std::string(2, '\2');
  const std::vector<std::string> owners = {std::string(1, '\0'),
                                           "\1" + from.substr(0, 4), "\2\3a-b"};
  for (const std::string& owner : owners) {
    const std::string fields = owner + from;
    const std::string script = std::string("\1\2", 2) + std::string(1, '\0');
    seeds.emplace_back("write" + std::to_string(seeds.size()), script + fields);
    Input input(reinterpret_cast<const uint8_t*>(fields.data()), fields.size());
    FUZZ_REQUIRE(
        WriteOnHost({kPage, TakePart(input)}, world.host, *world.keep).ok());
    for (const auto& [key, value] : world.Kept()) {
      add({key.kind, key.id + seeds.size() - 1}, value);
    }
    FUZZ_REQUIRE(EraseOnHost(kPage, *world.keep).ok());
  }
  seeds.emplace_back("records", all.str());
  return seeds;
}

}  // namespace fuzz
}  // namespace hoistd

// u8 what is tried: 0 records (u8 kind, u64 id, u16 bytes of a value, it);
// 1 a part (TakePart) that is written and found.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hoistd;
  fuzz::Input input(data, size);
  if (input.Take() % 2 == 0) {
    Find(input);
  } else {
    WriteAndFind(input);
  }
  return 0;
}
