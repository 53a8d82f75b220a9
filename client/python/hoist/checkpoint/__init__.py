"""Checkpoints: which of the files' tensors each weight of a module is, or is
made of.

What enters: a file, a folder or several of them, of which headers are read and
no weight; a module, whose weights need no memory; and what the caller renames.

What leaves, for a weight by its names in the module: a Source, runs of the files'
tensors end to end, which hoistd can read straight to their place; or a Computed,
what the module's library makes of the files' tensors with its own converters; or
None, or why not.

    _safetensors   names, types and shapes, from headers; bytes, if need be
    _pieces        how it is said that a tensor is made of others' runs
    _transformers  what transformers makes of a checkpoint, asked of itself
    _finding       a weight's source, of all these

Nothing here knows hoistd, groups or attached modules: hoist.nn puts weights into
groups, and has hoistd read them. It is no interface for callers.
"""

from .._surroundings import require

require("torch", __name__)

from ._finding import Finder, Rename
from ._pieces import Source
from ._safetensors import (Bytes, FileTensor, Paths, find_files, identity, one_path,
                           read_headers)
from ._transformers import Computed

__all__ = ["Bytes", "Computed", "FileTensor", "Finder", "Paths", "Rename", "Source",
           "find_files", "identity", "one_path", "read_headers"]
