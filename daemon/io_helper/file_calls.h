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

// As SourceFile::Open for a parked file. Where its file system is local it is
// taken out and opened as any other; else it comes reopened and parked, for
// `owner`, whose helpers read it.
absl::StatusOr<SourceFile> OpenByHelper(IoHelper& run, User owner,
                                        hoist::UniqueFd parked,
                                        const std::string& name,
                                        const SourceFileOptions& options);

// As SourceFile::ReadPrefix, for a parked file.
absl::StatusOr<std::string> ReadPrefixByHelper(IoHelper& run,
                                               const SourceFile& file,
                                               uint64_t offset, uint64_t bytes);

// Reads all of `requests`, whose `file` is not looked at, from a parked file,
// then looks whether it is as it was when it was opened: DataLoss, if not.
// Bytes go through memory of the helper's, and to their place only while this
// call lasts.
absl::Status ReadByHelper(IoHelper& run, const SourceFile& file,
                          std::vector<ReadRequest> requests);

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_HELPER_FILE_CALLS_H_
