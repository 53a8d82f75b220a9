#include "client/ctl/values.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "hoist/shared/size_text.h"

namespace hoist::ctl {

CLI::Validator AsRate() {
  return CLI::Validator(
      [](std::string& text) {
        std::optional<uint64_t> rate = ParseRate(text);
        if (!rate.has_value()) rate = ParseSize(text);
        if (!rate.has_value()) {
          return text + " is no rate; write \"10GB/s\", \"1.5GiB/s\" or 0";
        }
        text = std::to_string(*rate);
        return std::string();
      },
      "RATE");
}

CLI::Validator AsSeconds() {
  return CLI::Validator(
      [](std::string& text) {
        static const std::map<std::string, double> kUnits = {
            {"", 1}, {"s", 1}, {"ms", 0.001}, {"min", 60}, {"m", 60}};
        char* end = nullptr;
        const double number = std::strtod(text.c_str(), &end);
        const auto unit = kUnits.find(end);
        if (end == text.c_str() || unit == kUnits.end() ||
            !std::isfinite(number)) {
          return text + " is no time; write \"10\", \"500ms\" or \"2min\"";
        }
        text = std::to_string(number * unit->second);
        return std::string();
      },
      "TIME");
}

}  // namespace hoist::ctl
