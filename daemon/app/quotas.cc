#include "daemon/app/quotas.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

namespace hoistd {
namespace {

// Per user: headers of some two million tensors.
constexpr uint64_t kHeaderBytes = uint64_t{1} << 30;

// A user's default share of a pool.
uint64_t ButAnEighth(uint64_t pool) { return pool - pool / 8; }

}  // namespace

uint64_t DescriptorLimit() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return std::min<uint64_t>(limit.rlim_cur, 1 << 20);
}

uint64_t ApartDescriptorLimit() {
  // In-place pieces come by the ten thousand, all else by the hundred. Replies
  // under way hold duplicates.
  constexpr uint64_t kElse = 1024;
  const uint64_t limit = DescriptorLimit();
  return std::max(limit / 2,
                  std::min(limit / 4 * 3, limit - std::min(limit, kElse)));
}

QuotaOptions QuotasOf(const Config& all, uint64_t host_pool,
                      const std::vector<uint64_t>& device_pools) {
  // The limit of all plans together: Node::HoldableBytes.
  const uint64_t holdable = host_pool / 5 * 4;
  const auto fill = [&](const QuotaConfig& config, bool trusted) {
    const auto bytes = [&](const std::optional<SizeOrPercent>& set,
                           uint64_t whole, uint64_t shared) {
      if (set.has_value()) return set->Of(whole);
      return trusted ? QuotaLimits::kNone : ButAnEighth(shared);
    };
    QuotaLimits limits;
    limits.sessions = config.sessions;
    limits.plans = config.plans;
    limits.models = config.models;
    limits.descriptors = config.descriptors.value_or(DescriptorLimit() / 4);
    limits.header_bytes = config.header_bytes.value_or(
        trusted ? QuotaLimits::kNone : kHeaderBytes);
    limits.held_bytes = bytes(config.held_bytes, host_pool, holdable);
    limits.published_bytes =
        bytes(config.published_bytes, host_pool, host_pool);
    limits.host_bytes = bytes(config.host_bytes, host_pool, host_pool);
    for (const uint64_t pool : device_pools) {
      limits.device_bytes.push_back(bytes(config.device_bytes, pool, pool));
    }
    return limits;
  };
  QuotaOptions options;
  options.each = fill(all.quota, /*trusted=*/false);
  options.trusted = {User(0), User(geteuid())};
  options.of_trusted = fill(all.quota, /*trusted=*/true);
  for (const TenantConfig& tenant : all.tenants) {
    options.of_tenants[*User::Tenant(tenant.name)] =
        fill(tenant.quota, /*trusted=*/false);
  }
  // The rest serves sessions, calls and opens under way.
  options.descriptors_of_all = DescriptorLimit() / 2;
  return options;
}

}  // namespace hoistd
