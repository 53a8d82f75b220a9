// A segment file's header and its description, as they lie on a disk.
#include "daemon/base/hash.h"
#include "daemon/store/description.h"
#include "daemon/store/segment_header.h"
#include "hoist/shared/image_layout.h"
#include "tests/fuzz/fuzz.h"

namespace hoistd {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text));
}

SpillMeta AMeta() {
  SpillMeta meta;
  meta.model = "a \"model\"";
  meta.owner = *User::Tenant("tenant-a");
  meta.readers = Readers::kEveryone;
  meta.group_content[3] = 7;
  meta.group_index = GroupIndex(3);
  meta.group.name = "layers.3";
  meta.group.image_bytes = 8192;
  meta.group.tensors = {{"w", hoist::DType::kBF16, {8, 64}, {1, 8}, 0, 1024},
                        {"empty", hoist::DType::kF4, {0, 7}, {}, 0, 0}};
  return meta;
}

// What is read is written again to the letter: so nothing of it was misread.
void RequireCanonical(std::span<const std::byte> bytes) {
  const absl::StatusOr<SpillDescription> found = DecodeDescription(bytes);
  if (!found.ok()) {
    FUZZ_REQUIRE(absl::IsDataLoss(found.status()));
    return;
  }
  const std::vector<std::byte> again =
      EncodeDescription(found->id, found->meta);
  FUZZ_REQUIRE(
      std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  FUZZ_REQUIRE(DescriptionBytes(found->meta) == again.size());
  FUZZ_REQUIRE(CheckLayout(found->meta).ok());
}

void RequireHeader(std::string_view bytes) {
  const auto all = BytesOf(bytes);
  const absl::StatusOr<FoundSegment> found = FindSegmentHeader(all);
  if (!found.ok()) {
    uint32_t version = 0;
    if (bytes.size() >= 12) std::memcpy(&version, bytes.data() + 8, 4);
    FUZZ_REQUIRE(absl::IsDataLoss(found.status()) ||
                 (absl::IsFailedPrecondition(found.status()) && version > 2));
    return;
  }
  const SegmentHeader& header = found->header;
  FUZZ_REQUIRE(header.image_bytes <= hoist::kMaxImageBytes);
  FUZZ_REQUIRE(header.blocks.size() == BlockCount(header.image_bytes));
  FUZZ_REQUIRE(bytes.size() == SegmentHeaderBytes(header.image_bytes,
                                                  header.description.size()));
  const auto length = FindSegmentHeaderBytes(all.first(kSegmentHeaderStart),
                                             bytes.size() + header.image_bytes);
  FUZZ_REQUIRE(length.ok() && *length == bytes.size());
  FUZZ_REQUIRE(DecodeSegmentHeader(all, found->header_hash).ok());
  Fingerprint other = found->header_hash;
  other[0] ^= 1;
  FUZZ_REQUIRE(absl::IsDataLoss(DecodeSegmentHeader(all, other).status()));
  RequireCanonical(header.description);
}

// The length of a header, before anything but its start was read: never more
// than the file, nor than a header can have.
void RequireLength(std::string_view start, uint64_t file_bytes) {
  const auto length = FindSegmentHeaderBytes(BytesOf(start), file_bytes);
  if (!length.ok()) {
    FUZZ_REQUIRE(absl::IsDataLoss(length.status()));
    return;
  }
  FUZZ_REQUIRE(*length >= kSegmentHeaderStart && *length <= file_bytes);
  FUZZ_REQUIRE(*length <=
               SegmentHeaderBytes(hoist::kMaxImageBytes, kMaxDescriptionBytes));
}

// With a checksum that is right whatever the fuzzer makes of the rest.
std::string WithChecksum(std::string_view bytes) {
  std::string header(bytes.substr(0, 16384));
  if (header.size() < kSegmentHeaderStart) return header;
  std::fill_n(header.begin() + 48, 16, '\0');
  const Hash128 hash = Xxh3(BytesOf(header));
  std::memcpy(header.data() + 48, hash.data(), hash.size());
  return header;
}

std::string AHeader() {
  SegmentHeader header;
  header.image_bytes = 8192;
  header.blocks.resize(1);
  header.description = EncodeDescription(SpillId(5), AMeta());
  std::string bytes(
      SegmentHeaderBytes(header.image_bytes, header.description.size()), '\0');
  EncodeSegmentHeader(header, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace

namespace fuzz {

Seeds MakeSeeds() {
  const std::vector<std::byte> described =
      EncodeDescription(SpillId(5), AMeta());
  const std::string text(reinterpret_cast<const char*>(described.data()),
                         described.size());
  const auto with = [](uint8_t what, const std::string& bytes) {
    return Output().Put(what).Bytes(bytes).str();
  };
  std::string newer = AHeader();
  newer[8] = 3;
  return {{"header", with(0, AHeader())},
          {"newer_header", with(0, newer)},
          {"length", Output()
                         .Put(uint8_t{1})
                         .Put(uint64_t{4096 + 8192})
                         .Bytes(AHeader().substr(0, 64))
                         .str()},
          {"description", with(2, text)}};
}

}  // namespace fuzz
}  // namespace hoistd

// u8 what it is: 0 a header, whose checksum is made right unless bit 7 is set;
// 1 u64 bytes of the file, then its start; 2 a description.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hoistd;
  fuzz::Input input(data, size);
  const uint8_t what = input.Take();
  if ((what & 3) == 0) {
    const std::string_view bytes = input.Rest();
    RequireHeader((what & 0x80) != 0 ? std::string(bytes)
                                     : WithChecksum(bytes));
  } else if ((what & 3) == 1) {
    const auto file_bytes = input.Take<uint64_t>();
    RequireLength(input.Rest(), file_bytes);
  } else {
    RequireCanonical(BytesOf(input.Rest()));
  }
  return 0;
}
