#include "client/ctl/model_name.h"

#include "client/ctl/text.h"

namespace hoist::ctl {

std::string NameFor(uid_t asker, const v1::ModelSummary& model) {
  const uid_t owner = model.owner_uid();
  if (model.owner_tenant().empty() && (owner == asker || owner == 0)) {
    return model.name();
  }
  return UserName(model.owner_tenant(), owner) + ":" + model.name();
}

}  // namespace hoist::ctl
