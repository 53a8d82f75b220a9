"""python -m hoist.vllm verify MODEL [options of vllm serve]

Starts an engine over hoistd's weights, loads the files as vLLM does too, and
compares both in each worker: names, ties, shapes, strides, types, bytes. Exits
with 0 if all are equal, with 1 if something differs. It needs the memory of a
second copy, and serves nothing.
"""

from __future__ import annotations

import sys
from typing import Any, Sequence


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; see the module."""
    if len(arguments) < 2 or arguments[0] != "verify":
        print(__doc__, file=sys.stderr)
        return 2
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    given = parser.parse_args(["--model", *arguments[1:]])
    options: dict[str, Any] = {
        name: value for name, value in vars(given).items()
        if value != parser.get_default(name)}
    engine = LLM(**{
        "skip_tokenizer_init": True, "enforce_eager": True,
        "max_num_seqs": 1, "kv_cache_memory_bytes": 64 << 20, **options,
        "load_format": "hoist",
        "worker_extension_cls": "hoist.vllm._verify.Verifier"})
    return report(engine.collective_rpc("hoist_verify"))


def report(workers: Sequence[dict[str, Any]]) -> int:
    """Prints each worker's differences; returns 1 if there are any."""
    for rank, found in enumerate(workers):
        for difference in found["differences"]:
            print(f"worker {rank}: {difference}")
        print(f"worker {rank}: {found['tensors']} tensors, "
              f"{found['nbytes']} bytes, "
              + (f"{len(found['differences'])} differences"
                 if found["differences"] else "all equal"))
    return int(any(found["differences"] for found in workers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
