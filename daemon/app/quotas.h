// What users may hold, as hoistd.toml says and this machine has.
#ifndef HOIST_DAEMON_APP_QUOTAS_H_
#define HOIST_DAEMON_APP_QUOTAS_H_

#include <cstdint>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/core/quota.h"

namespace hoistd {

// Descriptors that hoistd may have open.
uint64_t DescriptorLimit();
// Of those, what pieces that are read in place may keep.
uint64_t ApartDescriptorLimit();

// Root and hoistd's own user run most nodes' workers, and as admins could take
// all there is anyway: only what is set in hoistd.toml bounds their bytes.
QuotaOptions QuotasOf(const Config& all, uint64_t host_pool,
                      const std::vector<uint64_t>& device_pools);

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_QUOTAS_H_
