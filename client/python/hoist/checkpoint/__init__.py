"""Checkpoints: the files' tensors that make up each weight of a module.

Input: files or folders, of which only headers are read; a module, whose weights
need no memory; the caller's renames.

Output, for a weight by its names in the module: a Source, runs of the files'
tensors end to end, which hoistd can read directly into place; or a Computed,
the result of the library's own converters on the files' tensors; or None, or a
reason.

    _safetensors   names, types and shapes, from headers; bytes, if needed
    _pieces        tensors made of others' runs
    _transformers  transformers' own conversions of a checkpoint
    _finding       a weight's source, from all these
    _quantised     modules that a library's quantiser makes
    _diffusers     the same of diffusers' quantisers
    _recipes       what one of its weights is made of
    _single_file   diffusers' modules over a file with the original's names
    _gguf          the same over a GGUF file
    _gguf_unpacked transformers' modules over one, of plain weights
    _scaled        the same over weights of 8-bit floats with scales
    _unscaled      transformers' modules over those, of plain weights
    _meaning       the files' other facts about weights: refused, if unused

Nothing here knows hoistd, groups or attached modules: hoist.nn puts weights
into groups, and has hoistd read them. It is no public interface.
"""

from .._surroundings import require

require("torch", __name__)

from ._diffusers import pack_diffusers
from ._finding import RENAME, Finder, Rename
from ._gguf import pack_gguf
from ._meaning import Use, refuse_declared, refuse_losses
from ._pieces import Source
from ._quantised import MAX_OWN_BYTES, Packed, pack, quantise
from ._safetensors import (Bytes, FileTensor, Paths, find_files, identity,
                           is_gguf, one_path, read_headers)
from ._scaled import pack_scaled
from ._single_file import single_file_sources
from ._transformers import Computed
from ._unscaled import unscale

__all__ = ["Bytes", "Computed", "FileTensor", "Finder", "MAX_OWN_BYTES",
           "Packed", "Paths", "RENAME", "Rename", "Source", "Use", "find_files",
           "identity", "is_gguf", "one_path", "pack", "pack_diffusers",
           "pack_gguf", "pack_scaled", "quantise", "read_headers",
           "refuse_declared", "refuse_losses", "single_file_sources", "unscale"]
