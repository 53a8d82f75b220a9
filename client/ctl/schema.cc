// JSON Schemas, made of the messages that --json prints.
#include "client/ctl/schema.h"

#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "hoist/shared/status.h"
#include "hoist/v1/admin.pb.h"

namespace hoist::ctl {
namespace {

using Json = nlohmann::ordered_json;
using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

// What each command prints: one message, or one a line.
struct Printed {
  const char* command;
  const char* message;
  bool stream = false;
};
constexpr Printed kPrinted[] = {
    {"check", "CheckProgress", true},
    {"config", "GetConfigResponse"},
    {"doctor", "ExamineResponse"},
    {"drain", "DrainProgress", true},
    {"end", "EndSessionResponse"},
    {"evict", "EvictResponse"},
    {"explain", "ExplainResponse"},
    {"groups", "ListGroupsResponse"},
    {"load", "LoadProgress", true},
    {"log-level", "SetLogLevelResponse"},
    {"models", "ListModelsResponse"},
    {"pin", "PinResponse"},
    {"plans", "ListPlansResponse"},
    {"reload", "ReloadResponse"},
    {"sessions", "ListSessionsResponse"},
    {"share", "SetShareResponse"},
    {"sleep", "SleepResponse"},
    {"status", "NodeStatus"},
    {"top", "NodeStatus", true},
    {"unpin", "UnpinResponse"},
    {"wake", "WakeResponse"},
    {"watch", "Event", true},
};
constexpr char kError[] = "error";
constexpr char kFeatures[] = "features";
constexpr char kTrace[] = "trace";
constexpr char kVersion[] = "version";

// proto/hoist/v1, with its comments, which compiled messages lack.
constexpr unsigned char kDescribed[] = {
#include "client/ctl/admin_descriptor.inc"
};

// A comment's words, on one line.
std::string WordsOf(const std::string& comment) {
  std::istringstream words(comment);
  std::string all;
  for (std::string word; words >> word;) {
    all += (all.empty() ? "" : " ") + word;
  }
  return all;
}

template <typename Described>
void Describe(const Described& what, Json* schema) {
  google::protobuf::SourceLocation place;
  if (!what.GetSourceLocation(&place)) return;
  const std::string said =
      WordsOf(place.leading_comments + " " + place.trailing_comments);
  if (!said.empty()) (*schema)["description"] = said;
}

class Schema {
 public:
  Schema() {
    google::protobuf::FileDescriptorSet files;
    files.ParseFromArray(kDescribed, std::size(kDescribed));
    for (const auto& file : files.file()) pool_.BuildFile(file);
  }

  Json Of(const Printed& printed) {
    Json schema = Message(*pool_.FindMessageTypeByName(
        std::string("hoist.v1.") + printed.message));
    schema["$defs"] = definitions_;
    return schema;
  }

 private:
  // Protobuf's JSON mapping, as PrintJson has it: fields are there whether they
  // are zero or not, but for messages and alternatives that are not set.
  Json Message(const Descriptor& message) {
    Json schema = {{"type", "object"}};
    Describe(message, &schema);
    Json properties = Json::object();
    Json required = Json::array();
    for (int at = 0; at < message.field_count(); ++at) {
      const FieldDescriptor& field = *message.field(at);
      properties[field.name()] = Field(field);
      if (field.is_repeated() || !field.has_presence()) {
        required.push_back(field.name());
      }
    }
    schema["properties"] = std::move(properties);
    schema["required"] = std::move(required);
    return schema;
  }

  Json Field(const FieldDescriptor& field) {
    Json schema = field.is_repeated()
                      ? Json{{"type", "array"}, {"items", Value(field)}}
                      : Value(field);
    Describe(field, &schema);
    return schema;
  }

  static Json Integer(int64_t least, int64_t most) {
    return {{"type", "integer"}, {"minimum", least}, {"maximum", most}};
  }

  Json Value(const FieldDescriptor& field) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        return {{"type", "boolean"}};
      case FieldDescriptor::CPPTYPE_INT32:
        return Integer(std::numeric_limits<int32_t>::min(),
                       std::numeric_limits<int32_t>::max());
      case FieldDescriptor::CPPTYPE_UINT32:
        return Integer(0, std::numeric_limits<uint32_t>::max());
      // JSON's readers lose digits of such numbers.
      case FieldDescriptor::CPPTYPE_INT64:
        return {{"type", "string"}, {"pattern", "^-?[0-9]+$"}};
      case FieldDescriptor::CPPTYPE_UINT64:
        return {{"type", "string"}, {"pattern", "^[0-9]+$"}};
      case FieldDescriptor::CPPTYPE_FLOAT:
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return {{"anyOf",
                 {{{"type", "number"}},
                  {{"enum", {"NaN", "Infinity", "-Infinity"}}}}}};
      case FieldDescriptor::CPPTYPE_STRING:
        if (field.type() == FieldDescriptor::TYPE_BYTES) {
          return {{"type", "string"}, {"contentEncoding", "base64"}};
        }
        return {{"type", "string"}};
      case FieldDescriptor::CPPTYPE_ENUM:
        return Defined(*field.enum_type());
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Defined(*field.message_type());
    }
    return true;
  }

  // A newer hoistd may have values whose names hoistctl does not know.
  static Json Make(const EnumDescriptor& names) {
    Json all = Json::array();
    for (int at = 0; at < names.value_count(); ++at) {
      all.push_back(names.value(at)->name());
    }
    Json schema = {{"anyOf", {{{"enum", all}}, {{"type", "integer"}}}}};
    Describe(names, &schema);
    return schema;
  }

  template <typename Type>
  Json Defined(const Type& type) {
    const std::string& name = type.full_name();
    if (!definitions_.contains(name)) {
      definitions_[name] = nullptr;  // It may have itself in it.
      if constexpr (std::is_same_v<Type, EnumDescriptor>) {
        definitions_[name] = Make(type);
      } else {
        definitions_[name] = Message(type);
      }
    }
    return {{"$ref", "#/$defs/" + name}};
  }

  DescriptorPool pool_;
  Json definitions_ = Json::object();
};

Json Object(const Json& properties) {
  Json required = Json::array();
  for (const auto& [name, schema] : properties.items()) {
    required.push_back(name);
  }
  return {{"type", "object"},
          {"properties", properties},
          {"required", std::move(required)}};
}

Json TraceFields() {
  const Json text = {{"type", "string"}}, number = {{"type", "number"}};
  const auto list = [](Json items) {
    return Json{{"type", "array"}, {"items", std::move(items)}};
  };
  Json whys = Json::array();
  for (int i = 0; i < v1::TraceEvent::Why_descriptor()->value_count(); ++i) {
    whys.push_back(v1::TraceEvent::Why_descriptor()->value(i)->name());
  }
  const Json gap = Object({{"why", {{"enum", std::move(whys)}}},
                           {"count", number},
                           {"seconds", number},
                           {"longest_seconds", number}});
  const Json link = Object(
      {{"device", number}, {"copied_seconds", number}, {"gaps", list(gap)}});
  return {{"path", text},
          {"recorded_seconds", number},
          {"slices", number},
          {"dropped_events", number},
          {"links", list(link)}};
}

Json ErrorSchema() {
  Json codes = Json::array();
  for (int code = static_cast<int>(Code::kCancelled);
       code <= static_cast<int>(Code::kUnauthenticated); ++code) {
    codes.push_back(CodeName(static_cast<Code>(code)));
  }
  return Object({{"error", Object({{"code", {{"enum", std::move(codes)}}},
                                   {"message", {{"type", "string"}}}})}});
}

Json Titled(const std::string& title, Json schema) {
  Json all = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
              {"title", title}};
  all.update(schema);
  return all;
}

}  // namespace

std::vector<std::string> SchemaNames() {
  std::vector<std::string> names;
  for (const Printed& printed : kPrinted) names.push_back(printed.command);
  names.insert(names.end(), {kFeatures, kTrace, kVersion, kError});
  return names;
}

std::string SchemaOf(const std::string& name) {
  if (name == kError) {
    return Titled("an error of hoistctl --json: one line, on stderr",
                  ErrorSchema())
        .dump(2);
  }
  const std::string title = "hoistctl " + name + " --json: ";
  for (const Printed& printed : kPrinted) {
    if (printed.command != name) continue;
    return Titled(title + (printed.stream ? "each line" : "one object"),
                  Schema().Of(printed))
        .dump(2);
  }
  const Json text = {{"type", "string"}}, number = {{"type", "number"}};
  if (name == kFeatures) {
    const Json labels = {
        {"type", "object"},
        {"additionalProperties", text},
        {"description", "the features, by name; written to --out as well"}};
    return Titled(title + "each line, one a time that it is written",
                  Object({{"labels", labels},
                          {"models", number},
                          {"models_left_out", number}}))
        .dump(2);
  }
  const Json fields = name == kTrace ? TraceFields() : Json{{kVersion, text}};
  return Titled(title + "one object", Object(fields)).dump(2);
}

}  // namespace hoist::ctl
