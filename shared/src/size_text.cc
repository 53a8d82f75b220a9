#include "hoist/shared/size_text.h"

#include <charconv>
#include <cstdio>
#include <iterator>
#include <limits>

namespace hoist {
namespace {

struct Unit {
  std::string_view name;
  uint64_t bytes;
};

constexpr Unit kUnits[] = {
    {"TiB", uint64_t{1} << 40},
    {"TB", 1'000'000'000'000},
    {"GiB", uint64_t{1} << 30},
    {"GB", 1'000'000'000},
    {"MiB", uint64_t{1} << 20},
    {"MB", 1'000'000},
    {"KiB", uint64_t{1} << 10},
    {"kB", 1'000},
    {"B", 1},
    {"", 1},
};

constexpr size_t kMostDigits = 9;  // Of a fraction, which fits 32 bits so.

std::string_view Stripped(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

// The digits at its front, which are taken off it. nullopt: there are none, or
// too many.
std::optional<uint64_t> TakeNumber(std::string_view& text) {
  uint64_t number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

// "5GiB" of "1.5GiB": the part of `unit` that its digits say. nullopt: they are
// none.
struct Fraction {
  uint64_t part = 0;
  uint64_t of = 1;
};
std::optional<Fraction> TakeFraction(std::string_view& text) {
  Fraction fraction;
  if (text.empty() || text.front() != '.') return fraction;
  text.remove_prefix(1);
  const size_t before = text.size();
  const std::optional<uint64_t> part = TakeNumber(text);
  const size_t digits = before - text.size();
  if (!part.has_value() || digits > kMostDigits) return std::nullopt;
  fraction.part = *part;
  for (size_t i = 0; i < digits; ++i) fraction.of *= 10;
  return fraction;
}

std::string InUnits(uint64_t bytes) {
  if (bytes == 0) return "0";
  for (const Unit& unit : kUnits) {
    if (bytes % unit.bytes != 0) continue;
    return std::to_string(bytes / unit.bytes).append(unit.name);
  }
  return std::to_string(bytes);
}

}  // namespace

std::optional<uint64_t> ParseSize(std::string_view text) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  text = Stripped(text);
  const std::optional<uint64_t> number = TakeNumber(text);
  if (!number.has_value()) return std::nullopt;
  const std::optional<Fraction> fraction = TakeFraction(text);
  if (!fraction.has_value()) return std::nullopt;
  const std::string_view name = Stripped(text);
  for (const Unit& unit : kUnits) {
    if (name != unit.name) continue;
    if (*number > kMost / unit.bytes) return std::nullopt;
    // A tebibyte is 2^40 and a fraction below 10^9 parts: in two steps, so that
    // nothing overflows.
    const uint64_t more =
        unit.bytes / fraction->of * fraction->part +
        unit.bytes % fraction->of * fraction->part / fraction->of;
    const uint64_t bytes = *number * unit.bytes;
    if (bytes > kMost - more) return std::nullopt;
    return bytes + more;
  }
  return std::nullopt;
}

std::optional<uint64_t> ParseRate(std::string_view text) {
  constexpr std::string_view kPerSecond = "/s";
  text = Stripped(text);
  if (text == "0") return 0;
  if (!text.ends_with(kPerSecond)) return std::nullopt;
  text.remove_suffix(kPerSecond.size());
  return ParseSize(text);
}

std::string SizeText(uint64_t bytes) { return InUnits(bytes); }

std::string RateText(uint64_t bytes_per_second) {
  if (bytes_per_second == 0) return "0";
  return InUnits(bytes_per_second) + "/s";
}

std::string HumanBytes(uint64_t bytes) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  char text[32];
  if (bytes < 1024) {
    std::snprintf(text, sizeof(text), "%d B", static_cast<int>(bytes));
    return text;
  }
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  // What would be written as "1024.0" belongs to the next unit.
  while (value >= 1023.95 && unit + 1 < std::size(kNames)) {
    value /= 1024;
    ++unit;
  }
  std::snprintf(text, sizeof(text), "%.1f %s", value, kNames[unit]);
  return text;
}

}  // namespace hoist
