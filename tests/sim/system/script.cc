#include "tests/sim/system/script.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace hoistd::sim {
namespace {

constexpr std::array<const char*, kOps> kNames = {
    "world",       "engine",       "link",          "device",
    "read",        "read-fails",   "task",          "stream",
    "wait",        "long-wait",    "kill",          "begin",
    "resume",      "open",         "die",           "register",
    "describe",    "publish",      "stage",         "compute",
    "release",     "prefetch",     "forget",        "answer-ask",
    "set-plan",    "replace-plan", "clear-plan",    "use",
    "done",        "capture",      "replay",        "open-arena",
    "close-arena", "write-arena",  "open-in-place", "close-in-place",
    "pass",        "choose-hot",   "place",         "load",
    "evict",       "forget-any",   "pin",           "unpin",
    "share"};

}  // namespace

std::string ToText(const Script& script) {
  std::string text;
  for (const Step& step : script) {
    absl::StrAppend(&text, kNames[static_cast<uint32_t>(step.op)], " ",
                    step.with[0], " ", step.with[1], " ", step.with[2], "\n");
  }
  return text;
}

absl::StatusOr<Script> FromText(const std::string& text) {
  Script script;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    const auto named = std::ranges::find(kNames, words[0]);
    Step step;
    bool good = words.size() == 4 && named != kNames.end();
    for (size_t i = 0; good && i < 3; ++i) {
      good = absl::SimpleAtoi(words[i + 1], &step.with[i]);
    }
    if (!good) {
      return absl::InvalidArgumentError(absl::StrCat("no step: ", line));
    }
    step.op = static_cast<Op>(named - kNames.begin());
    script.push_back(step);
  }
  return script;
}

}  // namespace hoistd::sim
