"""The common parts of inference engines' loaders: hoist.vllm and hoist.sglang.

An engine's module has fused and sharded parameters, which only its own code can
fill. So that code runs over tensors without bytes:

    _meta      a module whose parameters have no memory
    _trace     the copies of its own loading code, element by element
    _recipes   the same as tensors that hoistd joins from ranges of the files
    _ranges    the arithmetic of both: the places of elements
    _files     files and recipes, handed to hoistd
    _published weights that one engine has processed, for the others
    _weights   a model's tensors on a device: bound, suspended, resumed
    _planned   the same, with layers that come just before they are needed
    _in_place  the same, with tensors that are read in place
    _binding   parameters and buffers of a module, shown over them
    _guard     engines' later writes to it
    _compared  two modules, tensor by tensor

Nothing here knows an engine by name. It is no public interface.
"""

from .._surroundings import require

require("torch", __name__)
