#include "daemon/store/description.h"

#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "daemon/base/status.h"
#include "hoist/shared/dtype.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

static_assert(std::endian::native == std::endian::little);

class ByteCounter {
 public:
  void Put(const void*, size_t size) { bytes_ += size; }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_ = 0;
};

class ByteWriter {
 public:
  void Put(const void* data, size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

template <typename Sink>
void PutNumber(Sink& sink, uint64_t number) {
  sink.Put(&number, sizeof number);
}

template <typename Sink>
void PutString(Sink& sink, absl::string_view text) {
  PutNumber(sink, text.size());
  sink.Put(text.data(), text.size());
}

template <typename Sink>
void PutNumbers(Sink& sink, const std::vector<int64_t>& numbers) {
  PutNumber(sink, numbers.size());
  sink.Put(numbers.data(), numbers.size() * sizeof(int64_t));
}

template <typename Sink>
void PutAll(Sink& sink, SpillId id, const SpillMeta& meta) {
  PutNumber(sink, id.number());
  PutString(sink, meta.model);
  PutNumber(sink, meta.owner.number());
  PutString(sink, meta.owner.tenant());
  PutNumber(sink, meta.readers == Readers::kOwner ? 0 : 1);
  sink.Put(meta.group_content.data(), meta.group_content.size());
  PutNumber(sink, meta.group_index.number());
  PutString(sink, meta.group.name);
  PutNumber(sink, meta.group.image_bytes);
  PutNumber(sink, meta.group.tensors.size());
  for (const Tensor& tensor : meta.group.tensors) {
    PutString(sink, tensor.name);
    PutNumber(sink, static_cast<uint64_t>(tensor.dtype));
    PutNumbers(sink, tensor.shape);
    PutNumbers(sink, tensor.strides);
    PutNumber(sink, tensor.offset);
    PutNumber(sink, tensor.bytes);
  }
}

// Takes fields from the front. After a truncated field all others are empty,
// and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && bytes_.empty(); }

  uint64_t Number() {
    uint64_t number = 0;
    Get(&number, sizeof number);
    return number;
  }
  std::string String() {
    std::string text(Count(1), '\0');
    Get(text.data(), text.size());
    return text;
  }
  std::vector<int64_t> Numbers() {
    std::vector<int64_t> numbers(Count(sizeof(int64_t)));
    Get(numbers.data(), numbers.size() * sizeof(int64_t));
    return numbers;
  }
  // The count of items of at least `size` bytes each, at most as many as the
  // remaining bytes can hold.
  size_t Count(size_t size) {
    const uint64_t count = Number();
    if (count > bytes_.size() / size) ok_ = false;
    return ok_ ? count : 0;
  }
  void Get(void* to, size_t size) {
    if (size > bytes_.size()) ok_ = false;
    if (!ok_ || size == 0) return;
    std::memcpy(to, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
  }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

absl::Status Bad(const char* what) {
  return absl::DataLossError(std::string("its description has a bad ") + what);
}

absl::StatusOr<Tensor> TakeTensor(ByteReader& from) {
  Tensor tensor;
  tensor.name = from.String();
  const uint64_t dtype = from.Number();
  tensor.shape = from.Numbers();
  tensor.strides = from.Numbers();
  tensor.offset = from.Number();
  tensor.bytes = from.Number();
  if (!from.ok()) return Bad("length");
  if (dtype > std::numeric_limits<uint8_t>::max()) return Bad("element type");
  const auto known = hoist::DTypeFromNumber(static_cast<int64_t>(dtype));
  if (!known.has_value()) return Bad("element type");
  tensor.dtype = *known;
  return tensor;
}

}  // namespace

uint64_t DescriptionBytes(const SpillMeta& meta) {
  ByteCounter counter;
  PutAll(counter, SpillId(), meta);
  return counter.bytes();
}

std::vector<std::byte> EncodeDescription(SpillId id, const SpillMeta& meta) {
  ByteWriter writer;
  PutAll(writer, id, meta);
  return writer.Take();
}

absl::StatusOr<SpillDescription> DecodeDescription(
    std::span<const std::byte> bytes) {
  constexpr uint64_t kMaxU32 = std::numeric_limits<uint32_t>::max();
  ByteReader from(bytes);
  SpillDescription described;
  SpillMeta& meta = described.meta;
  described.id = SpillId(from.Number());
  meta.model = from.String();
  const uint64_t uid = from.Number();
  const std::string tenant = from.String();
  const uint64_t readers = from.Number();
  from.Get(meta.group_content.data(), meta.group_content.size());
  const uint64_t index = from.Number();
  meta.group.name = from.String();
  meta.group.image_bytes = from.Number();
  const uint64_t tensors = from.Count(6 * sizeof(uint64_t));
  for (uint64_t i = 0; i < tensors && from.ok(); ++i) {
    HOIST_ASSIGN_OR_RETURN(Tensor tensor, TakeTensor(from));
    meta.group.tensors.push_back(std::move(tensor));
  }
  if (!from.at_end()) return Bad("length");
  if (uid > kMaxU32) return Bad("owner");
  const std::optional<User> owner =
      tenant.empty() ? User(static_cast<uint32_t>(uid)) : User::Tenant(tenant);
  if (!owner.has_value() || owner->number() != uid) return Bad("owner");
  if (readers > 1) return Bad("right to read");
  if (index > kMaxU32) return Bad("group index");
  meta.owner = *owner;
  meta.readers = readers == 0 ? Readers::kOwner : Readers::kEveryone;
  meta.group_index = GroupIndex(static_cast<uint32_t>(index));
  HOIST_RETURN_IF_ERROR(CheckLayout(meta));
  return described;
}

absl::Status CheckLayout(const SpillMeta& meta) {
  const uint64_t bytes = meta.group.image_bytes;
  if (bytes > hoist::kMaxImageBytes || bytes % hoist::kImageAlignment != 0) {
    return absl::DataLossError("bad size");
  }
  for (const Tensor& tensor : meta.group.tensors) {
    if (tensor.offset > bytes || tensor.bytes > bytes - tensor.offset) {
      return absl::DataLossError("bad tensor's place");
    }
  }
  return absl::OkStatus();
}

}  // namespace hoistd
