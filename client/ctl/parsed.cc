#include "client/ctl/parsed.h"

#include <filesystem>
#include <system_error>

namespace hoist::ctl {
namespace {

v1::Tier TierOf(const std::string& tier) {
  if (tier == "device") return v1::TIER_DEVICE;
  if (tier == "host") return v1::TIER_HOST;
  return v1::TIER_UNSPECIFIED;
}

// hoistd's working folder is not ours.
std::string AbsolutePath(const std::string& given) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(given, error);
  if (error) return given;
  std::string path = absolute.lexically_normal().string();
  if (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

uint64_t Milliseconds(double seconds) {
  return static_cast<uint64_t>(seconds * 1000);
}

v1::CopySelector CopiesOf(const Parsed& parsed) {
  v1::CopySelector copies;
  copies.set_model(parsed.model);
  copies.set_group(parsed.group);
  copies.set_tier(TierOf(parsed.tier));
  copies.set_device(parsed.device);
  return copies;
}

v1::LoadRequest LoadOf(const Parsed& parsed) {
  v1::LoadRequest request;
  request.set_path(AbsolutePath(parsed.path));
  request.set_name(parsed.name);
  request.set_tier(TierOf(parsed.tier));
  request.set_device(parsed.device);
  request.mutable_grouping()->set_rule(
      parsed.grouping == "module"  ? v1::Grouping::RULE_MODULE
      : parsed.grouping == "whole" ? v1::Grouping::RULE_WHOLE
                                   : v1::Grouping::RULE_BLOCK);
  if (parsed.readers == "owner") request.set_readers(v1::READERS_OWNER);
  if (parsed.readers == "everyone") request.set_readers(v1::READERS_EVERYONE);
  return request;
}

}  // namespace hoist::ctl
