// Users' quotas, from hoistd.toml and this machine's limits.
#ifndef HOIST_DAEMON_APP_QUOTAS_H_
#define HOIST_DAEMON_APP_QUOTAS_H_

#include <cstdint>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/core/quota.h"

namespace hoistd {

// Descriptors that hoistd may have open.
uint64_t DescriptorLimit();
// The part of them for in-place pieces.
uint64_t ApartDescriptorLimit();

// Root and hoistd's own user run most nodes' workers and are admins: only
// explicit keys of hoistd.toml bound their bytes.
QuotaOptions QuotasOf(const Config& all, uint64_t host_pool,
                      const std::vector<uint64_t>& device_pools);

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_QUOTAS_H_
