// What hoistd does with a model's files, where their file system may hang.
#ifndef HOIST_DAEMON_ERRAND_FILE_ERRANDS_H_
#define HOIST_DAEMON_ERRAND_FILE_ERRANDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/errand/errand_run.h"
#include "daemon/io/source_file.h"
#include "daemon/terms/ids.h"
#include "daemon/terms/io_engine.h"

namespace hoistd {

// As SourceFile::Open for a parked file. Where its file system is local it is
// taken out and opened as any other; else it comes reopened and parked, for
// `owner`, on whose errands it is read.
absl::StatusOr<SourceFile> OpenByErrand(ErrandRun& run, User owner,
                                        hoist::UniqueFd parked,
                                        const std::string& name,
                                        const SourceFileOptions& options);

// As SourceFile::ReadPrefix, for a parked file.
absl::StatusOr<std::string> ReadPrefixByErrand(ErrandRun& run,
                                               const SourceFile& file,
                                               uint64_t offset, uint64_t bytes);

// Reads all of `requests`, whose `file` is not looked at, from a parked file,
// then looks whether it is as it was when it was opened: DataLoss, if not.
// Bytes go through memory of the errand's, and to their place only while this
// call lasts.
absl::Status ReadByErrand(ErrandRun& run, const SourceFile& file,
                          std::vector<ReadRequest> requests);

}  // namespace hoistd

#endif  // HOIST_DAEMON_ERRAND_FILE_ERRANDS_H_
