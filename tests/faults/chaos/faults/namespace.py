"""A network namespace, tied to this host by a pair of virtual interfaces."""

from __future__ import annotations

import os
import secrets
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.faults import programs

_NOWHERE = "02:00:00:00:00:01"
# 198.18.0.0/15 is for tests of networks (RFC 2544): nothing real stands there.
_NETS = 1 << 15
_PREFIX = "chaos-"
_PLACE = Path("/run/netns")


class Namespace:
    """Made with its link up. ``outer`` is this host's address, as seen from within.

    Packets are dropped by nftables where it is installed. Elsewhere the outer
    interface goes down, or the frames of one side are sent to a neighbour that
    there is not; in both cases nobody is told.
    """

    def __init__(self) -> None:
        _sweep()
        self.name = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(3)}"
        self.link = f"ch{secrets.token_hex(4)}"
        net = secrets.randbelow(_NETS)
        base = f"198.{18 + (net >> 14)}.{(net >> 6) & 255}"
        self.outer = f"{base}.{(net & 63) * 4 + 1}"
        self.inner = f"{base}.{(net & 63) * 4 + 2}"
        self.prefix = (_ip(), "netns", "exec", self.name)
        _run("netns", "add", self.name)
        try:
            self._tie()
        except BaseException:
            self.remove()
            raise

    @classmethod
    def refused(cls) -> str | None:
        """What stands in the way of making one on this machine."""
        try:
            cls().remove()
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            return f"a network namespace cannot be made: {said.strip()}"
        return None

    def ways(self) -> list[str]:
        """How packets can be dropped here."""
        both = ["nft"] if programs.find("nft") else []
        return [*both, "link down", "to the server", "to the worker"]

    def drop(self, how: str) -> None:
        match how:
            case "nft":
                self._nft("add table inet chaos")
                for hook in ("input", "output"):
                    self._nft(
                        f"add chain inet chaos {hook}"
                        f" {{ type filter hook {hook} priority 0; policy drop; }}"
                    )
            case "link down":
                _run("link", "set", self.link, "down")
            case "to the server":
                self._inside("neigh", "replace", self.outer, *_lost(f"{self.link}i"))
            case "to the worker":
                _run("neigh", "replace", self.inner, *_lost(self.link))

    def heal(self) -> None:
        if programs.find("nft"):
            with suppress(subprocess.CalledProcessError):  # there is no table to delete
                self._nft("delete table inet chaos")
        _run("link", "set", self.link, "up")
        self._inside("neigh", "flush", "dev", f"{self.link}i", "nud", "all")
        _run("neigh", "flush", "dev", self.link, "nud", "all")

    def retransmitted(self) -> int:
        """TCP segments sent again, in the namespace, since it was made."""
        asked = [*self.prefix, "cat", "/proc/net/snmp"]
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
        names, values = (
            line.split() for line in done.stdout.splitlines() if line.startswith("Tcp:")
        )
        return int(dict(zip(names, values, strict=True))["RetransSegs"])

    def remove(self) -> None:
        """The interfaces go with the namespace, unless a process still lives in it."""
        with suppress(subprocess.CalledProcessError):  # it may be gone, or never made
            _run("link", "delete", self.link)
        if (_PLACE / self.name).exists():
            _run("netns", "delete", self.name)

    def _tie(self) -> None:
        inner = f"{self.link}i"
        _run("link", "add", self.link, "type", "veth", "peer", "name", inner)
        _run("link", "set", inner, "netns", self.name)
        _run("addr", "add", f"{self.outer}/30", "dev", self.link)
        _run("link", "set", self.link, "up")
        self._inside("addr", "add", f"{self.inner}/30", "dev", inner)
        self._inside("link", "set", inner, "up")
        self._inside("link", "set", "lo", "up")

    def _inside(self, *words: str) -> None:
        _run("-n", self.name, *words)

    def _nft(self, line: str) -> None:
        nft = programs.find("nft")
        assert nft is not None
        subprocess.run(
            [*self.prefix, nft, line], capture_output=True, text=True, check=True
        )


def _lost(device: str) -> tuple[str, ...]:
    return ("lladdr", _NOWHERE, "nud", "permanent", "dev", device)


def _ip() -> str:
    found = programs.find("ip")
    if found is None:
        raise FileNotFoundError("there is no program ip")
    return found


def _run(*words: str) -> None:
    subprocess.run([_ip(), *words], capture_output=True, text=True, check=True)


def _sweep() -> None:
    """Remove those of runs that were killed."""
    for left in _PLACE.glob(f"{_PREFIX}*-*"):
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            with suppress(subprocess.CalledProcessError):  # another run sweeps, too
                _run("netns", "delete", left.name)
