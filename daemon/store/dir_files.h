// What the store does with files by their names in an open directory. No
// function follows a link.
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

// Makes the directory where there is none.
absl::StatusOr<hoist::UniqueFd> MakeDir(const std::string& path);

// All regular files, by name. A directory that cannot be read to its end is an
// error: what is not listed would be taken for gone.
absl::StatusOr<std::vector<std::string>> FilesOf(int dir_fd);

// The first `bytes`, as far as the file goes.
absl::StatusOr<std::vector<std::byte>> ReadStart(int fd, uint64_t bytes);

// Makes a file of `bytes`, or replaces what one has.
absl::Status WriteFile(int dir_fd, const std::string& name,
                       absl::string_view bytes);
// It is on the disk when this returns, but for its name.
absl::Status WriteSynced(int dir_fd, const std::string& name,
                         absl::string_view bytes);

// OK where there is none.
absl::Status Unlink(int dir_fd, const std::string& name);

// Names that changed are so after a power cut, too.
absl::Status SyncDir(int dir_fd);

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_DIR_FILES_H_
