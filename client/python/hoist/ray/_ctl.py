"""Runs hoistctl, for facts that only the Admin service has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from .._errors import FailedPrecondition, HoistError, Unavailable

_REFUSED, _NO_DAEMON = 1, 3  # Exit codes of client/ctl.
_TIERS = {"TIER_DEVICE": "device", "TIER_HOST": "host", "TIER_DISK": "disk",
          "TIER_PAGEABLE": "pageable"}


class Ctl:
    """One node's hoistctl. It needs an admin's rights: those of root, hoistd's
    own user, or the group hoist-admin."""

    def __init__(self, program: str | None, socket: str | None) -> None:
        self._program = program or os.environ.get("HOIST_CTL")
        self._socket = socket

    def run(self, *words: str) -> Any:
        """Its output, parsed from JSON. Unavailable: no hoistd answers.
        FailedPrecondition: it refuses, or hoistctl is missing."""
        program = self._program or shutil.which("hoistctl")
        if program is None:
            raise FailedPrecondition(
                "there is no hoistctl on this node's PATH; set HOIST_CTL to "
                "its path where Ray is started")
        where = ["--socket", self._socket] if self._socket else []
        try:
            done = subprocess.run([program, *where, *words, "--json"],
                                  capture_output=True, text=True, check=False)
        except OSError as error:
            raise FailedPrecondition(f"{program} cannot be run: {error}; set "
                                     "HOIST_CTL to hoistctl's path") from None
        if done.returncode == 0:
            return json.loads(done.stdout) if done.stdout.strip() else {}
        kind: type[HoistError] = (Unavailable if done.returncode == _NO_DAEMON
                                  else FailedPrecondition)
        raise kind(done.stderr.strip()[-1000:])

    def models(self) -> list[dict[str, Any]]:
        """All of hoistd's models, of any user."""
        return [{"name": row["name"], "published": row["published"],
                 **{key: int(row[key]) for key in (
                     "groups", "image_bytes", "device_bytes", "host_bytes",
                     "disk_bytes")}}
                for row in self.run("models")["models"]]

    def where(self, model: str) -> list[dict[str, Any]]:
        """A row for each copy of a group."""
        told = self.run("explain", model)
        return [{"group": group["name"],
                 "tier": _TIERS.get(copy["tier"], copy["tier"]),
                 "device": copy["device"],
                 "bytes": int(group["image_bytes"]),
                 "pinned": any(keeper["by"] == "BY_PIN"
                               for keeper in copy["keepers"]),
                 "leased": any(keeper["by"] == "BY_LEASE"
                               for keeper in copy["keepers"]),
                 "idle_seconds": int(copy["idle_ms"]) / 1000}
                for group in told["groups"] for copy in group["copies"]
                if copy["residency"] == "RESIDENCY_PRESENT"]

    def status(self) -> dict[str, Any]:
        """The tiers' free space, and bytes moved and evicted."""
        told = self.run("status")
        return {"pid": told["pid"], "version": told["version"],
                "tiers": [{"tier": _TIERS.get(tier["tier"], tier["tier"]),
                           "device": tier["device"],
                           "capacity_bytes": int(tier["capacity_bytes"]),
                           "used_bytes": int(tier["used_bytes"]),
                           "leased_bytes": int(tier["leased_bytes"])}
                          for tier in told["tiers"]],
                "evictions": sum(int(told["counters"][key]) for key in (
                    "device_evictions", "host_evictions"))}
