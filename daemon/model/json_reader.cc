#include "daemon/model/json_reader.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace hoistd {
namespace {

// nlohmann's SAX interface, with statuses instead of booleans.
class Sax final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Sax(JsonEvents& events) : events_(events) {}
  const absl::Status& status() const { return status_; }

  bool null() override { return Take(events_.OnOther("null")); }
  bool boolean(bool) override { return Take(events_.OnOther("a boolean")); }
  bool number_integer(number_integer_t value) override {
    if (value >= 0) return number_unsigned(static_cast<uint64_t>(value));
    return Take(events_.OnOther("a negative number"));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return Take(events_.OnUnsigned(value));
  }
  bool number_float(number_float_t, const string_t&) override {
    return Take(events_.OnOther("a fraction, or a number beyond 64 bits"));
  }
  bool string(string_t& value) override {
    return Take(events_.OnString(std::move(value)));
  }
  bool binary(binary_t&) override { return Take(events_.OnOther("binary")); }
  bool start_object(std::size_t) override {
    return Take(events_.OnBeginObject());
  }
  bool key(string_t& value) override {
    return Take(events_.OnKey(std::move(value)));
  }
  bool end_object() override { return Take(events_.OnEndObject()); }
  bool start_array(std::size_t) override {
    return Take(events_.OnBeginArray());
  }
  bool end_array() override { return Take(events_.OnEndArray()); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    status_ = absl::InvalidArgumentError(
        absl::StrCat("not valid JSON at byte ", position));
    return false;
  }

 private:
  bool Take(absl::Status status) {
    status_ = std::move(status);
    return status_.ok();
  }

  JsonEvents& events_;
  absl::Status status_;
};

}  // namespace

absl::Status ReadJson(absl::string_view json, JsonEvents& events) {
  // nlohmann's lexer takes a NUL byte for the end and skips a byte order mark;
  // JSON has neither.
  if (const size_t at = json.find('\0'); at != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("not valid JSON: a NUL byte at byte ", at));
  }
  if (absl::StartsWith(json, "\xEF\xBB\xBF")) {
    return absl::InvalidArgumentError(
        "not valid JSON: it begins with a byte order mark");
  }
  Sax sax(events);
  const bool read = nlohmann::json::sax_parse(json.begin(), json.end(), &sax);
  if (!read && sax.status().ok()) {
    return absl::InvalidArgumentError("not valid JSON");
  }
  return sax.status();
}

}  // namespace hoistd
