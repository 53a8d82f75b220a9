// The spill store's catalogue: a file of any content, and rows that were
// written and damaged.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "daemon/store/catalogue.h"
#include "daemon/store/description.h"
#include "daemon/store/segment_header.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/temp_dir.h"

namespace hoistd {
namespace {

CatalogueRow ARow(uint64_t id) {
  SpillMeta meta;
  meta.model = "model " + std::to_string(id);
  meta.owner = id % 2 == 0 ? User(1000) : *User::Tenant("a");
  meta.group_index = GroupIndex(static_cast<uint32_t>(id));
  meta.group.name = "g";
  meta.group.image_bytes = 4096 * id;
  meta.group.tensors = {{"t", hoist::DType::kF32, {4, 8}, {1, 4}, 256, 128},
                        {"empty", hoist::DType::kI8, {0}, {}, 0, 0}};
  CatalogueRow row = {.id = SpillId(id),
                      .header_bytes = SegmentHeaderBytes(
                          meta.group.image_bytes, DescriptionBytes(meta)),
                      .header_hash = {7},
                      .quarantined = id == 3 ? "why" : ""};
  row.meta = std::make_shared<const SpillMeta>(std::move(meta));
  return row;
}

std::vector<CatalogueRow> Rows() { return {ARow(1), ARow(2), ARow(3)}; }

// Two rows say the same if their checksums do.
std::set<Fingerprint> SumsOf(const std::vector<CatalogueRow>& rows) {
  std::set<Fingerprint> sums;
  for (const CatalogueRow& row : rows) sums.insert(RowChecksum(row));
  return sums;
}

std::string FileOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A whole catalogue of Rows(), in a folder that is in memory where there is
// one, which is used again and again.
struct World {
  testing::TempDir dir;  // TEST_TMPDIR is set by now.
  std::string path = dir / "catalogue.db";
  std::string sound;

  World() {
    FUZZ_REQUIRE(Catalogue::Write(path, Rows()).ok());
    sound = FileOf(path);
  }
  void Put(const std::string& bytes) {
    for (const char* more : {"-wal", "-journal", "-shm"}) {
      std::filesystem::remove(path + more);
    }
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << bytes;
  }
};

void RequireSound(const std::vector<CatalogueRow>& rows) {
  std::set<SpillId> ids;
  for (const CatalogueRow& row : rows) {
    FUZZ_REQUIRE(row.id.number() > 0 && ids.insert(row.id).second);
    FUZZ_REQUIRE(CheckLayout(*row.meta).ok());
    // So that the sizes of all files can be added.
    FUZZ_REQUIRE(FileBytes(row) < uint64_t{1} << 48);
  }
}

// `among`: what the file may say, if it is one that was damaged.
void Open(World& world, const std::set<Fingerprint>* among) {
  {
    absl::StatusOr<Catalogue> catalogue = Catalogue::Open(world.path);
    if (catalogue.ok()) {
      const auto rows = catalogue->Load();
      if (rows.ok()) {
        RequireSound(*rows);
        if (among != nullptr) {
          for (const Fingerprint& sum : SumsOf(*rows)) {
            FUZZ_REQUIRE(among->contains(sum));
          }
        }
        (void)catalogue->Add(ARow(77));
      } else {
        FUZZ_REQUIRE(absl::IsDataLoss(rows.status()));
      }
      return;
    }
  }
  const FoundRows found = Catalogue::Salvage(world.path);
  RequireSound(found.rows);
  if (among == nullptr) return;
  for (const Fingerprint& sum : SumsOf(found.rows)) {
    FUZZ_REQUIRE(among->contains(sum));
  }
}

}  // namespace

namespace fuzz {

Seeds MakeSeeds() {
  const auto damage = [](uint16_t at, std::string_view bytes) {
    return Output().Put(uint8_t{0}).Put(at).Bytes(bytes).str();
  };
  return {{"sound", damage(0, "")},
          {"header", damage(60, std::string(4, '\x07'))},
          {"page", damage(4096, std::string(8, '\x0d'))},
          {"file", Output()
                       .Put(uint8_t{1})
                       .Bytes(std::string("SQLite format 3\0", 16))
                       .str()}};
}

}  // namespace fuzz
}  // namespace hoistd

// u8 what it is: 0 a catalogue of three rows with up to 8 bytes changed (u16
// place, they); 1 a file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hoistd;
  static World* const world = [] {
    // Nothing here is to survive, and each change is synced.
    if (std::filesystem::is_directory("/dev/shm")) {
      setenv("TEST_TMPDIR", "/dev/shm", 0);
    }
    static World made;
    return &made;
  }();
  static const auto* const sums = new std::set<Fingerprint>(SumsOf(Rows()));
  fuzz::Input input(data, size);
  if (input.Take() % 2 == 0) {
    std::string bytes = world->sound;
    const size_t at = input.Take<uint16_t>() % bytes.size();
    const std::string_view changed =
        input.Bytes(std::min<size_t>(8, bytes.size() - at));
    bytes.replace(at, changed.size(), changed);
    world->Put(bytes);
    Open(*world, sums);
  } else {
    world->Put(std::string(input.Rest()));
    Open(*world, nullptr);
  }
  return 0;
}
