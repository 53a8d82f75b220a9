#ifndef HOIST_CLIENT_CTL_SCHEMA_H_
#define HOIST_CLIENT_CTL_SCHEMA_H_

#include <string>
#include <vector>

namespace hoist::ctl {

// What there is a schema of: commands that print JSON, and "error".
std::vector<std::string> SchemaNames();

// Of what the command prints with --json, or of errors: a JSON Schema
// (2020-12), on many lines. `name` is one of those above.
std::string SchemaOf(const std::string& name);

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_SCHEMA_H_
