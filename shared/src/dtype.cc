#include "hoist/shared/dtype.h"

#include <array>

namespace hoist {
namespace {

struct Row {
  std::string_view name;
  int bits;
};

// Indexed by the enum's number.
constexpr std::array<Row, kDTypeCount> kRows = {{
    {"?", 0},           {"BOOL", 8},    {"U8", 8},      {"I8", 8},
    {"U16", 16},        {"I16", 16},    {"U32", 32},    {"I32", 32},
    {"U64", 64},        {"I64", 64},    {"F16", 16},    {"BF16", 16},
    {"F32", 32},        {"F64", 64},    {"C64", 64},    {"C128", 128},
    {"F8_E4M3", 8},     {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
}};

}  // namespace

int BitsOf(DType dtype) { return kRows[static_cast<size_t>(dtype)].bits; }

std::string_view NameOf(DType dtype) {
  return kRows[static_cast<size_t>(dtype)].name;
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (int i = 1; i < kDTypeCount; ++i) {
    if (kRows[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromNumber(int64_t number) {
  if (number < 1 || number >= kDTypeCount) return std::nullopt;
  return static_cast<DType>(number);
}

}  // namespace hoist
