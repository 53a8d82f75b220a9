// hoistd's operations on model files whose file system may hang.
#ifndef HOIST_DAEMON_IO_HELPER_FILE_CALLS_H_
#define HOIST_DAEMON_IO_HELPER_FILE_CALLS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/io/source_file.h"
#include "daemon/io_helper/io_helper.h"
#include "daemon/types/ids.h"
#include "daemon/types/io_engine.h"

namespace hoistd {

// SourceFile::Open for a parked file. On a local file system it is taken out
// and opened like any other; otherwise it is reopened and parked for `owner`,
// whose helpers read it.
absl::StatusOr<SourceFile> OpenByHelper(IoHelper& run, User owner,
                                        hoist::UniqueFd parked,
                                        const std::string& name,
                                        const SourceFileOptions& options);

// SourceFile::ReadPrefix for a parked file.
absl::StatusOr<std::string> ReadPrefixByHelper(IoHelper& run,
                                               const SourceFile& file,
                                               uint64_t offset, uint64_t bytes);

// Reads all `requests` from a parked file; ignores their `file`. DataLoss: the
// file changed since its open. Bytes pass through the helper's memory, and
// reach their target only during this call.
absl::Status ReadByHelper(IoHelper& run, const SourceFile& file,
                          std::vector<ReadRequest> requests);

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_HELPER_FILE_CALLS_H_
