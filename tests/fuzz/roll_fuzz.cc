// A file of the model roll, as it lies on a disk.
#include "daemon/base/hash.h"
#include "daemon/store/model_roll.h"
#include "tests/fuzz/fuzz.h"

namespace hoistd {
namespace {

// What is read is written again to the letter: so nothing of it was misread.
void RequireCanonical(absl::string_view bytes) {
  const std::optional<RollEntry> entry = DecodeRollFile(bytes);
  if (!entry.has_value()) return;
  FUZZ_REQUIRE(entry->second > 0);
  FUZZ_REQUIRE(EncodeRollFile(*entry) == bytes);
}

// With a checksum that is right whatever the fuzzer makes of the rest.
std::string WithChecksum(std::string_view body) {
  const Hash128 hash = Xxh3(std::as_bytes(std::span(body)));
  return std::string(reinterpret_cast<const char*>(hash.data()), hash.size())
      .append(body);
}

}  // namespace

namespace fuzz {

Seeds MakeSeeds() {
  const auto with = [](uint8_t what, std::string_view bytes) {
    return Output().Put(what).Bytes(bytes).str();
  };
  const std::string of_user = EncodeRollFile({{User(7), "llama"}, 3});
  const std::string of_tenant =
      EncodeRollFile({{*User::Tenant("blue"), "llama"}, 30});
  return {{"user", with(0, of_user.substr(sizeof(Hash128)))},
          {"tenant", with(0, of_tenant.substr(sizeof(Hash128)))},
          {"file", with(1, of_user)}};
}

}  // namespace fuzz
}  // namespace hoistd

// u8 what it is: 0 what follows a checksum, 1 a whole file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hoistd;
  fuzz::Input input(data, size);
  const bool whole = (input.Take() & 1) != 0;
  const std::string_view bytes = input.Rest();
  RequireCanonical(whole ? std::string(bytes) : WithChecksum(bytes));
  return 0;
}
