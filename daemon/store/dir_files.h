// The store's file operations, by name in an open directory. No function
// follows a link.
#ifndef HOIST_DAEMON_STORE_DIR_FILES_H_
#define HOIST_DAEMON_STORE_DIR_FILES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Makes the directory if it does not exist.
absl::StatusOr<hoist::UniqueFd> MakeDir(const std::string& path);

// All regular files, by name. An incomplete read of the directory is an error:
// unlisted files would be considered gone.
absl::StatusOr<std::vector<std::string>> FilesOf(int dir_fd);

// The first `bytes`, or all of a shorter file.
absl::StatusOr<std::vector<std::byte>> ReadStart(int fd, uint64_t bytes);

// Makes a file of `bytes`, or replaces the contents of an existing one.
absl::Status WriteFile(int dir_fd, const std::string& name,
                       absl::string_view bytes);
// Its contents are on the disk when this returns; its name may not be.
absl::Status WriteSynced(int dir_fd, const std::string& name,
                         absl::string_view bytes);

// OK if there is none.
absl::Status Unlink(int dir_fd, const std::string& name);

// Makes changes of names survive a power cut.
absl::Status SyncDir(int dir_fd);

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_DIR_FILES_H_
