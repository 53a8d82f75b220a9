"""What loaders of inference engines share: hoist.vllm and hoist.sglang.

An engine's module has fused and sharded parameters, which only its own code
knows how to fill. So that code is asked, with tensors that have no bytes:

    _meta      a module whose parameters have no memory
    _trace     what its own loading code copies where, element by element
    _recipes   the same as tensors that hoistd joins of ranges of the files
    _ranges    the arithmetic of both: which elements lie where
    _files     files and recipes on their way to hoistd
    _published weights that one engine has processed, for others to take
    _weights   a model's tensors on a device: bound, given up, had again
    _planned   the same, of layers that come just before they are needed
    _binding   parameters and buffers of a module, shown over them
    _guard     what engines would write to it afterwards
    _compared  two modules, tensor by tensor

Nothing here knows an engine by name. It is no interface for callers.
"""

from .._surroundings import require

require("torch", __name__)
