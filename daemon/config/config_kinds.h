// The kinds of hoistd.toml's values: how each is read from TOML and written
// back, so that a written value reads as the same value.
#ifndef HOIST_DAEMON_CONFIG_CONFIG_KINDS_H_
#define HOIST_DAEMON_CONFIG_CONFIG_KINDS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/config/config.h"
#include "daemon/config/size.h"
#include "daemon/config/toml.h"
#include "hoist/shared/size_text.h"

namespace hoistd {

// `text` as a TOML string.
std::string Quoted(const std::string& text);
// nullopt: not a string, or with a NUL in it.
std::optional<std::string> TextOf(const toml::node& value);

// Each has Show, and Set: false, without effect, if `value` is not allowed.
struct Text {
  static bool Set(const toml::node& value, std::string* to);
  static std::string Show(const std::string& value) { return Quoted(value); }
};

struct SocketPath : Text {
  static bool Set(const toml::node& value, std::string* to);
};

struct SocketPathOrNone : Text {
  static bool Set(const toml::node& value, std::string* to);
};

// An address and a port, or "".
struct Loopback : Text {
  static bool Set(const toml::node& value, std::string* to);
};

struct Folder : Text {
  static bool Set(const toml::node& value, std::string* to);
};

struct Folders {
  static bool Set(const toml::node& value, std::vector<std::string>* to);
  static std::string Show(const std::vector<std::string>& value);
};

struct Preloads {
  static bool Set(const toml::node& value, std::vector<PreloadConfig>* to);
  static std::string Show(const std::vector<PreloadConfig>& value);
};

struct Mode {
  static bool Set(const toml::node& value, uint32_t* to);
  static std::string Show(uint32_t value);
};

// A multiple of 2 MiB.
struct Slab {
  static bool Set(const toml::node& value, uint64_t* to);
  static std::string Show(uint64_t value) {
    return Quoted(hoist::SizeText(value));
  }
};

struct Size {
  static bool Set(const toml::node& value, uint64_t* to);
  static std::string Show(uint64_t value) {
    return Quoted(hoist::SizeText(value));
  }
};

template <uint64_t kLeast>
struct SizeOrAuto {
  static bool Set(const toml::node& value, std::optional<uint64_t>* to);
  static std::string Show(const std::optional<uint64_t>& value) {
    return Quoted(value.has_value() ? hoist::SizeText(*value) : "auto");
  }
};

struct Amount {
  static bool Set(const toml::node& value, std::optional<SizeOrPercent>* to);
  static std::string Show(const std::optional<SizeOrPercent>& value);
};

struct Rate {
  static bool Set(const toml::node& value, uint64_t* to);
  static std::string Show(uint64_t value) {
    return Quoted(hoist::RateText(value));
  }
};

struct Latency {
  static bool Set(const toml::node& value, absl::Duration* to);
  static std::string Show(absl::Duration value) {
    return Quoted(absl::FormatDuration(value));
  }
};

struct Deadline : Latency {
  static bool Set(const toml::node& value, absl::Duration* to);
};

struct DeadlineOrNever {
  static bool Set(const toml::node& value, absl::Duration* to);
  static std::string Show(absl::Duration value);
};

// nullopt: not a whole number in this range.
std::optional<uint32_t> CountOf(const toml::node& value, uint32_t least,
                                uint32_t most);

template <uint32_t kLeast, uint32_t kMost>
struct Count {
  static bool Set(const toml::node& value, uint32_t* to) {
    const std::optional<uint32_t> count = CountOf(value, kLeast, kMost);
    if (count.has_value()) *to = *count;
    return count.has_value();
  }
  static std::string Show(uint32_t value) { return absl::StrCat(value); }
};

struct CountOrAuto {
  static bool Set(const toml::node& value, std::optional<uint32_t>* to);
  static std::string Show(const std::optional<uint32_t>& value) {
    return value.has_value() ? absl::StrCat(*value) : Quoted("auto");
  }
};

template <typename Enum>
using Named = std::pair<absl::string_view, Enum>;

// The names of an enum's values.
constexpr auto NamesOf(DeviceConfig::Backend) {
  using B = DeviceConfig::Backend;
  return std::array<Named<B>, 3>{
      {{"auto", B::kAuto}, {"cuda", B::kCuda}, {"emulated", B::kEmulated}}};
}
constexpr auto NamesOf(DeviceConfig::Share) {
  using S = DeviceConfig::Share;
  return std::array<Named<S>, 2>{{{"vmm", S::kVmm}, {"ipc", S::kIpc}}};
}
constexpr auto NamesOf(DeviceConfig::Trust) {
  using T = DeviceConfig::Trust;
  return std::array<Named<T>, 2>{
      {{"user", T::kUser}, {"everyone", T::kEveryone}}};
}
constexpr auto NamesOf(HostConfig::Arenas) {
  using A = HostConfig::Arenas;
  return std::array<Named<A>, 2>{{{"below", A::kBelow}, {"above", A::kAbove}}};
}
constexpr auto NamesOf(PageKind) {
  using P = PageKind;
  return std::array<Named<P>, 3>{{{"auto", P::kHugetlb},
                                  {"transparent", P::kTransparent},
                                  {"never", P::kSmall}}};
}
constexpr auto NamesOf(DiskConfig::Io) {
  using I = DiskConfig::Io;
  return std::array<Named<I>, 3>{{{"auto", I::kAuto},
                                  {"io_uring", I::kIoUring},
                                  {"threads", I::kThreads}}};
}
constexpr auto NamesOf(DiskConfig::Direct) {
  using D = DiskConfig::Direct;
  return std::array<Named<D>, 2>{{{"auto", D::kAuto}, {"never", D::kNever}}};
}
constexpr auto NamesOf(DiskConfig::Save) {
  using S = DiskConfig::Save;
  return std::array<Named<S>, 2>{
      {{"at_once", S::kAtOnce}, {"under_pressure", S::kUnderPressure}}};
}
constexpr auto NamesOf(Readers) {
  return std::array<Named<Readers>, 2>{
      {{"owner", Readers::kOwner}, {"everyone", Readers::kEveryone}}};
}
constexpr auto NamesOf(PreloadConfig::Tier) {
  using T = PreloadConfig::Tier;
  return std::array<Named<T>, 2>{{{"host", T::kHost}, {"device", T::kDevice}}};
}
constexpr auto NamesOf(LogConfig::Level) {
  using L = LogConfig::Level;
  return std::array<Named<L>, 4>{{{"debug", L::kDebug},
                                  {"info", L::kInfo},
                                  {"warning", L::kWarning},
                                  {"error", L::kError}}};
}
constexpr auto NamesOf(LogConfig::Sink) {
  using S = LogConfig::Sink;
  return std::array<Named<S>, 3>{
      {{"auto", S::kAuto}, {"journal", S::kJournal}, {"stderr", S::kStderr}}};
}

// An enum's value, by name.
template <typename Enum>
struct Choice {
  static bool Set(const toml::node& value, Enum* to) {
    const std::optional<std::string> text = TextOf(value);
    if (!text.has_value()) return false;
    const std::optional<Enum> choice = ByName(*text);
    if (choice.has_value()) *to = *choice;
    return choice.has_value();
  }
  static std::optional<Enum> ByName(absl::string_view text) {
    for (const auto& [name, choice] : NamesOf(Enum())) {
      if (text == name) return choice;
    }
    return std::nullopt;
  }
  static std::string Show(Enum value) {
    for (const auto& [name, choice] : NamesOf(value)) {
      if (choice == value) return Quoted(std::string(name));
    }
    return "";
  }
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CONFIG_CONFIG_KINDS_H_
