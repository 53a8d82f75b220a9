#include "daemon/rpc/open_path.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/io_helper/helper_call.h"
#include "daemon/io_helper/parked_file.h"

namespace hoistd {
namespace {

// One answer per file. The last one has no file, but the model's name.
enum class What : uint8_t { kShard, kIndex, kEnd };

void PackText(const std::string& text, std::string& to) {
  Pack(uint64_t{text.size()}, to);
  to.append(text);
}

bool UnpackText(std::string_view& from, std::string& text) {
  uint64_t size = 0;
  if (!Unpack(from, size) || size > from.size()) return false;
  text = std::string(from.substr(0, size));
  from.remove_prefix(size);
  return true;
}

// ---- In the helper's process.

absl::Status TellFile(int line, What what, const OpenFile& file) {
  std::string body;
  Pack(what, body);
  body.append(file.name);
  int fd = file.fd.get();
  hoist::UniqueFd parked;
  if (!IsLocal(fd)) {
    HOIST_ASSIGN_OR_RETURN(parked, Park(fd));
    fd = parked.get();
  }
  Tell(line, absl::OkStatus(), body, {&fd, 1});
  return absl::OkStatus();
}

absl::Status TellFiles(int line, const ModelFiles& files) {
  for (const OpenFile& shard : files.shards) {
    HOIST_RETURN_IF_ERROR(TellFile(line, What::kShard, shard));
  }
  if (files.index.has_value()) {
    HOIST_RETURN_IF_ERROR(TellFile(line, What::kIndex, *files.index));
  }
  std::string body;
  Pack(What::kEnd, body);
  body.append(files.name);
  Tell(line, absl::OkStatus(), body);
  return absl::OkStatus();
}

void OpenFiles(hoist::Packet request, int line) {
  std::string_view rest = request.body;
  uint64_t count = 0;
  Unpack(rest, count);
  std::vector<std::string> roots(count);
  for (std::string& root : roots) UnpackText(rest, root);
  const absl::StatusOr<ModelFiles> files =
      OpenModelPath(roots, std::string(rest));
  const absl::Status told =
      files.ok() ? TellFiles(line, *files) : files.status();
  if (!told.ok()) Tell(line, told);
}

// ---- In hoistd.

absl::StatusOr<ModelFiles> OpenByHelper(IoHelper& run,
                                        const std::vector<std::string>& roots,
                                        const std::string& path) {
  std::string request;
  Pack(uint64_t{roots.size()}, request);
  for (const std::string& root : roots) PackText(root, request);
  request.append(path);
  ModelFiles files;
  absl::StatusOr<hoist::Packet> answer =
      run.Call(&OpenFiles, absl::StrCat("open ", path), request, {});
  for (;; answer = run.Next()) {
    if (!answer.ok()) return answer.status();
    std::string_view body = answer->body;
    What what = What::kEnd;
    if (!Unpack(body, what) || (what != What::kEnd && answer->fds.empty())) {
      return absl::InternalError("the helper's answer is malformed");
    }
    if (what == What::kEnd) {
      files.name = std::string(body);
      return files;
    }
    OpenFile file;
    file.name = std::string(body);
    file.fd = std::move(answer->fds[0]);
    if (what == What::kIndex) {
      files.index = std::move(file);
    } else {
      files.shards.push_back(std::move(file));
    }
  }
}

}  // namespace

void OpenPath(PathEnv env, User user, std::string path, Done<ModelFiles> done) {
  if (env.io_helpers == nullptr) {
    env.queue->Post([roots = std::move(env.roots), path = std::move(path),
                     done = std::move(done)]() mutable {
      done(OpenModelPath(roots, path));
    });
    return;
  }
  env.io_helpers->Post(
      user, HelperCallKind::kOpen,
      [roots = std::move(env.roots), path = std::move(path),
       done = std::move(done)](absl::StatusOr<IoHelper*> run) mutable {
        if (!run.ok()) return done(run.status());
        done(OpenByHelper(**run, roots, path));
      });
}

}  // namespace hoistd
