"""hoist's options in SGLang's own configuration."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Mapping, Union

from .._errors import InvalidArgument


@dataclasses.dataclass(frozen=True)
class Options:
    """Keys of `--model-loader-extra-config`, all optional."""

    # hoistd's; None: $HOIST_SOCKET, else the user's hoistd, else the node's.
    socket: str | None = None
    # Seconds to wait for hoistd, and for space of each group.
    deadline: float = 60.0

    @classmethod
    def of(cls, given: Union[str, Mapping[str, Any], None]) -> Options:
        """Takes JSON, or its value. InvalidArgument: an unknown key, or an
        invalid value."""
        said = json.loads(given) if isinstance(given, str) and given else given
        options = dict(said or {})
        known = {one.name for one in dataclasses.fields(cls)}
        for key in options.keys() - known:
            raise InvalidArgument(
                f'--model-loader-extra-config: hoist has no "{key}"; it has '
                + ", ".join(sorted(known)))
        made = cls(**options)
        if not (made.socket is None or isinstance(made.socket, str)):
            raise InvalidArgument('--model-loader-extra-config: "socket" is a '
                                  f"text, not {made.socket!r}")
        if isinstance(made.deadline, bool) or not isinstance(
                made.deadline, (int, float)) or made.deadline < 0:
            raise InvalidArgument('--model-loader-extra-config: "deadline" is '
                                  f"a number of seconds, not {made.deadline!r}")
        return made
