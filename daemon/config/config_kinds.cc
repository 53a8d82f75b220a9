#include "daemon/config/config_kinds.h"

#include <sys/un.h>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/base/loopback_address.h"

namespace hoistd {
namespace {

std::optional<uint64_t> SizeOf(const toml::node& value) {
  if (value.is_integer()) {
    const int64_t number = value.as_integer()->get();
    if (number < 0) return std::nullopt;
    return static_cast<uint64_t>(number);
  }
  const std::optional<std::string> text = TextOf(value);
  return text.has_value() ? hoist::ParseSize(*text) : std::nullopt;
}

bool SetDuration(const toml::node& value, absl::Duration least,
                 absl::Duration most, absl::Duration* to) {
  const std::optional<std::string> text = TextOf(value);
  absl::Duration duration;
  if (!text.has_value() || !absl::ParseDuration(*text, &duration)) return false;
  if (duration < least || duration > most) return false;
  *to = duration;
  return true;
}

bool SetFlag(const toml::node& value, bool* to) {
  if (!value.is_boolean()) return false;
  *to = value.as_boolean()->get();
  return true;
}

}  // namespace

std::optional<LogConfig::Level> LogLevelByName(absl::string_view name) {
  return Choice<LogConfig::Level>::ByName(name);
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::optional<std::string> TextOf(const toml::node& value) {
  if (!value.is_string()) return std::nullopt;
  std::string text = value.as_string()->get();
  if (text.find('\0') != std::string::npos) return std::nullopt;
  return text;
}

bool Text::Set(const toml::node& value, std::string* to) {
  std::optional<std::string> text = TextOf(value);
  if (text.has_value()) *to = *std::move(text);
  return text.has_value();
}

bool SocketPath::Set(const toml::node& value, std::string* to) {
  const std::optional<std::string> text = TextOf(value);
  if (!text.has_value() || text->empty() || text->front() != '/') return false;
  if (text->size() >= sizeof(sockaddr_un::sun_path)) return false;
  *to = *text;
  return true;
}

bool SocketPathOrNone::Set(const toml::node& value, std::string* to) {
  if (TextOf(value) != "") return SocketPath::Set(value, to);
  to->clear();
  return true;
}

bool Loopback::Set(const toml::node& value, std::string* to) {
  const std::optional<std::string> text = TextOf(value);
  if (!text.has_value()) return false;
  if (!text->empty() && !ParseLoopback(*text).ok()) return false;
  *to = *text;
  return true;
}

bool Folder::Set(const toml::node& value, std::string* to) {
  const std::optional<std::string> text = TextOf(value);
  if (!text.has_value() || (!text->empty() && text->front() != '/')) {
    return false;
  }
  *to = *text;
  return true;
}

bool Folders::Set(const toml::node& value, std::vector<std::string>* to) {
  if (!value.is_array()) return false;
  std::vector<std::string> folders;
  for (const toml::node& element : *value.as_array()) {
    std::string folder;
    if (!Folder::Set(element, &folder) || folder.empty()) return false;
    folders.push_back(std::move(folder));
  }
  *to = std::move(folders);
  return true;
}

std::string Folders::Show(const std::vector<std::string>& value) {
  return absl::StrCat("[",
                      absl::StrJoin(value, ", ",
                                    [](std::string* out, const auto& folder) {
                                      absl::StrAppend(out, Quoted(folder));
                                    }),
                      "]");
}

bool Preloads::Set(const toml::node& value, std::vector<PreloadConfig>* to) {
  if (!value.is_array()) return false;
  std::vector<PreloadConfig> models;
  for (const toml::node& element : *value.as_array()) {
    if (!element.is_table()) return false;
    PreloadConfig model;
    for (const auto& [key, node] : *element.as_table()) {
      const bool right =
          key == "path"   ? Folder::Set(node, &model.path)
          : key == "name" ? Text::Set(node, &model.name)
          : key == "tier" ? Choice<PreloadConfig::Tier>::Set(node, &model.tier)
          : key == "device" ? Count<0, 63>::Set(node, &model.device)
          : key == "pin"    ? SetFlag(node, &model.pin)
                            : false;
      if (!right) return false;
    }
    if (model.path.empty()) return false;
    models.push_back(std::move(model));
  }
  *to = std::move(models);
  return true;
}

std::string Preloads::Show(const std::vector<PreloadConfig>& value) {
  const auto show = [](std::string* out, const PreloadConfig& model) {
    absl::StrAppend(out, "{path = ", Quoted(model.path));
    if (!model.name.empty()) {
      absl::StrAppend(out, ", name = ", Quoted(model.name));
    }
    absl::StrAppend(out,
                    ", tier = ", Choice<PreloadConfig::Tier>::Show(model.tier));
    if (model.tier == PreloadConfig::Tier::kDevice) {
      absl::StrAppend(out, ", device = ", model.device);
    }
    absl::StrAppend(out, ", pin = ", model.pin ? "true" : "false", "}");
  };
  return absl::StrCat("[", absl::StrJoin(value, ", ", show), "]");
}

bool Mode::Set(const toml::node& value, uint32_t* to) {
  const std::optional<std::string> text = TextOf(value);
  if (!text.has_value() || text->empty() || text->size() > 4) return false;
  uint32_t mode = 0;
  for (char digit : *text) {
    if (digit < '0' || digit > '7') return false;
    mode = mode * 8 + static_cast<uint32_t>(digit - '0');
  }
  if (mode > 0777) return false;
  *to = mode;
  return true;
}

std::string Mode::Show(uint32_t value) {
  return Quoted(absl::StrFormat("%04o", value));
}

bool Slab::Set(const toml::node& value, uint64_t* to) {
  constexpr uint64_t kGranularity = uint64_t{2} << 20;
  const std::optional<uint64_t> size = SizeOf(value);
  if (!size.has_value() || *size == 0 || *size % kGranularity != 0) {
    return false;
  }
  *to = *size;
  return true;
}

bool Size::Set(const toml::node& value, uint64_t* to) {
  const std::optional<uint64_t> size = SizeOf(value);
  if (!size.has_value()) return false;
  *to = *size;
  return true;
}

template <uint64_t kLeast>
bool SizeOrAuto<kLeast>::Set(const toml::node& value,
                             std::optional<uint64_t>* to) {
  if (TextOf(value) == "auto") {
    to->reset();
    return true;
  }
  const std::optional<uint64_t> size = SizeOf(value);
  if (!size.has_value() || *size < kLeast) return false;
  *to = size;
  return true;
}
template struct SizeOrAuto<0>;
template struct SizeOrAuto<1>;

bool Amount::Set(const toml::node& value, std::optional<SizeOrPercent>* to) {
  if (TextOf(value) == "auto") {
    to->reset();
    return true;
  }
  std::optional<SizeOrPercent> amount;
  if (const auto text = TextOf(value)) {
    amount = ParseSizeOrPercent(*text);
  } else if (const auto bytes = SizeOf(value)) {
    amount = SizeOrPercent{.bytes = *bytes};
  }
  if (!amount.has_value() || *amount == SizeOrPercent()) return false;
  *to = amount;
  return true;
}

std::string Amount::Show(const std::optional<SizeOrPercent>& value) {
  if (!value.has_value()) return Quoted("auto");
  return Quoted(value->percent > 0 ? absl::StrCat(value->percent, "%")
                                   : hoist::SizeText(value->bytes));
}

bool Rate::Set(const toml::node& value, uint64_t* to) {
  std::optional<uint64_t> rate;
  if (value.is_integer()) {
    rate = SizeOf(value);
  } else if (const auto text = TextOf(value)) {
    rate = hoist::ParseRate(*text);
  }
  if (rate.has_value()) *to = *rate;
  return rate.has_value();
}

bool Latency::Set(const toml::node& value, absl::Duration* to) {
  return SetDuration(value, absl::ZeroDuration(), absl::Minutes(1), to);
}

bool Deadline::Set(const toml::node& value, absl::Duration* to) {
  return SetDuration(value, absl::Seconds(1), absl::Hours(1), to);
}

constexpr char kNever[] = "never";

bool DeadlineOrNever::Set(const toml::node& value, absl::Duration* to) {
  if (TextOf(value) != kNever) return Deadline::Set(value, to);
  *to = absl::InfiniteDuration();
  return true;
}

std::string DeadlineOrNever::Show(absl::Duration value) {
  return value == absl::InfiniteDuration() ? Quoted(kNever)
                                           : Deadline::Show(value);
}

std::optional<uint32_t> CountOf(const toml::node& value, uint32_t least,
                                uint32_t most) {
  if (!value.is_integer()) return std::nullopt;
  const int64_t number = value.as_integer()->get();
  if (number < least || number > most) return std::nullopt;
  return static_cast<uint32_t>(number);
}

bool CountOrAuto::Set(const toml::node& value, std::optional<uint32_t>* to) {
  if (TextOf(value) == "auto") {
    to->reset();
    return true;
  }
  const std::optional<uint32_t> count = CountOf(value, 1, 1'000'000);
  if (count.has_value()) *to = count;
  return count.has_value();
}

}  // namespace hoistd
