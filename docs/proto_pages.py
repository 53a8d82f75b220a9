"""The gRPC services as a page for Sphinx, of descriptors with their comments.

proto_pages.py DESCRIPTOR_SET    (protoc --include_source_info)
"""

import pathlib
import re
import sys

from google.protobuf import descriptor_pb2

# Field numbers within descriptor.proto, of which locations' paths are made.
OF_FILE = {"message_type": 4, "enum_type": 5, "service": 6}
OF_MESSAGE = {"field": 2, "nested_type": 3, "enum_type": 4}
METHOD, VALUE = 2, 2
Field = descriptor_pb2.FieldDescriptorProto


def text(said):
    """Prose as reStructuredText: what is in backticks is code."""
    return re.sub(r"`([^`]+)`|([\\*|_])",
                  lambda found: (f"``{found[1]}``\\ " if found[1] else
                                 "\\" + found[2]), " ".join(said.split()))


class Page:
    def __init__(self, file):
        self.file = file
        self.lines = []
        self.said = {tuple(place.path): (place.leading_comments +
                                         place.trailing_comments)
                     for place in file.source_code_info.location}

    def put(self, *lines):
        self.lines += [*lines, ""]

    def about(self, path):
        """The comment of what is at this path."""
        for one in re.split(r"\n\s*\n", self.said.get(path, "")):
            if one.strip():
                self.put(text(one))

    def item(self, term, path):
        said = text(self.said.get(path, ""))
        self.put(term, *(["   " + said] if said else []))

    def heading(self, name, line):
        self.put(f".. _{name}:", "", name, line * len(name))

    def services(self):
        for at, service in enumerate(self.file.service):
            path = (OF_FILE["service"], at)
            self.heading(f"{self.file.package}.{service.name}", "-")
            self.about(path)
            for index, method in enumerate(service.method):
                answer = kind_link(method.output_type)
                if method.server_streaming:
                    answer = "stream of " + answer
                self.item(f"**{method.name}** ({kind_link(method.input_type)}) "
                          f"returns {answer}", path + (METHOD, index))

    def message(self, message, name, path):
        self.heading(name, "~")
        self.about(path)
        for at, field in enumerate(message.field):
            of = ""
            if field.HasField("oneof_index"):
                of = f"; one of {text(message.oneof_decl[field.oneof_index].name)}"
            self.item(f"**{text(field.name)}** = {field.number}: "
                      f"{kind_of(field)}{of}", path + (OF_MESSAGE["field"], at))
        for at, enum in enumerate(message.enum_type):
            self.enum(enum, f"{name}.{enum.name}",
                      path + (OF_MESSAGE["enum_type"], at))
        for at, nested in enumerate(message.nested_type):
            self.message(nested, f"{name}.{nested.name}",
                         path + (OF_MESSAGE["nested_type"], at))

    def enum(self, enum, name, path):
        self.heading(name, "~")
        self.about(path)
        for at, value in enumerate(enum.value):
            self.item(f"**{text(value.name)}** = {value.number}",
                      path + (VALUE, at))

    def types(self):
        for at, message in enumerate(self.file.message_type):
            self.message(message, f"{self.file.package}.{message.name}",
                         (OF_FILE["message_type"], at))
        for at, enum in enumerate(self.file.enum_type):
            self.enum(enum, f"{self.file.package}.{enum.name}",
                      (OF_FILE["enum_type"], at))


def kind_link(name):
    name = name.lstrip(".")
    return f":ref:`{name.removeprefix('hoist.v1.')} <{name}>`"


def kind_of(field):
    kind = (kind_link(field.type_name) if field.type_name else
            Field.Type.Name(field.type).removeprefix("TYPE_").lower())
    return ("repeated " if field.label == Field.LABEL_REPEATED else "") + kind


def page(files):
    made = ["gRPC", "====", "",
            "What hoistctl and workers in other languages speak. The files are "
            "``proto/hoist/v1/*.proto``; hoistctl's ``--json`` prints the "
            "messages with these names.", ""]
    for file in files:
        one = Page(file)
        one.services()
        made += one.lines
    for file in files:
        one = Page(file)
        title = f"Messages of {pathlib.PurePath(file.name).name}"
        one.put(title, "-" * len(title))
        one.types()
        made += one.lines
    return "\n".join(made)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = descriptor_pb2.FileDescriptorSet.FromString(
        pathlib.Path(sys.argv[1]).read_bytes())
    print(page(found.file))
