#include "hoist/shared/printable.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace hoist {
namespace {

struct Range {
  uint32_t first, last;
};

// Of Unicode 15 the categories Cc, Cf, Zl, Zp, Cs and Co, and noncharacters, in
// order.
constexpr Range kNotShown[] = {
    {0x0, 0x1F},         {0x7F, 0x9F},       {0xAD, 0xAD},
    {0x600, 0x605},      {0x61C, 0x61C},     {0x6DD, 0x6DD},
    {0x70F, 0x70F},      {0x890, 0x891},     {0x8E2, 0x8E2},
    {0x180E, 0x180E},    {0x200B, 0x200F},   {0x2028, 0x202E},
    {0x2060, 0x2064},    {0x2066, 0x206F},   {0xD800, 0xF8FF},
    {0xFDD0, 0xFDEF},    {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFB},
    {0xFFFE, 0xFFFF},    {0x110BD, 0x110BD}, {0x110CD, 0x110CD},
    {0x13430, 0x1343F},  {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
    {0x1FFFE, 0x1FFFF},  {0x2FFFE, 0x2FFFF}, {0x3FFFE, 0x3FFFF},
    {0x4FFFE, 0x4FFFF},  {0x5FFFE, 0x5FFFF}, {0x6FFFE, 0x6FFFF},
    {0x7FFFE, 0x7FFFF},  {0x8FFFE, 0x8FFFF}, {0x9FFFE, 0x9FFFF},
    {0xAFFFE, 0xAFFFF},  {0xBFFFE, 0xBFFFF}, {0xCFFFE, 0xCFFFF},
    {0xDFFFE, 0xDFFFF},  {0xE0001, 0xE0001}, {0xE0020, 0xE007F},
    {0xEFFFE, 0x10FFFF},
};

bool IsShown(uint32_t code_point) {
  const auto range = std::lower_bound(
      std::begin(kNotShown), std::end(kNotShown), code_point,
      [](const Range& of, uint32_t value) { return of.last < value; });
  return range == std::end(kNotShown) || code_point < range->first;
}

}  // namespace

CodePoint FirstCodePoint(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t length = (lead >> 5) == 0x06   ? 2
                        : (lead >> 4) == 0x0e ? 3
                        : (lead >> 3) == 0x1e ? 4
                                              : 0;
  if (length == 0 || length > text.size()) return {};
  uint32_t point = lead & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return {};
    point = point << 6 | (next & 0x3f);
  }
  // The shortest form alone: another could hide a character that is refused.
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = point >= 0xd800 && point <= 0xdfff;
  if (point < kLeast[length] || point > 0x10ffff || surrogate) return {};
  return {point, length};
}

size_t PrintableLength(std::string_view text) {
  const CodePoint first = FirstCodePoint(text);
  return IsShown(first.value) ? first.bytes : 0;
}

}  // namespace hoist
