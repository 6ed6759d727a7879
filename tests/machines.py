"""Machines under test: namespaces with a network, a name and a boot of their own, joined by a switch.

Their processes see each other's files, as on a shared disk, and the same process ids; but no machine takes another for
itself. All of it lives as long as processes that end with the test, however the test ends; nothing is left on this
machine's own network.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from jobs import HOLDFAST, Job, start, until

TOOLS = "ip", "mount", "nsenter", "unshare"
TUNNELS = Path("/dev/net/tun")
SWITCH = Path(__file__).with_name("switch.py")
NAMESPACES = "--net", "--uts", "--mount"
SETUP_S = 30.0
MAX_MACHINES = 16
ADDRESSES = tuple(f"10.77.0.{number}" for number in range(1, MAX_MACHINES + 1))
BOOT_ID = "/proc/sys/kernel/random/boot_id"


@cache
def obstacle() -> str:
    """Why machines cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)}"
    if not TUNNELS.exists():
        return f"there is no {TUNNELS}"
    tried = subprocess.run(["unshare", *NAMESPACES, "true"], capture_output=True, text=True, timeout=30, check=False)
    return f"namespaces cannot be made: {tried.stderr.strip()}" if tried.returncode else ""


class Wires:
    """The process that passes packets between the machines."""

    def __init__(self, machines: list[Machine], stack: contextlib.ExitStack) -> None:
        ends = [f"{machine.pid}={machine.address}" for machine in machines]
        self._process = subprocess.Popen(
            [sys.executable, str(SWITCH), *ends], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        stack.callback(self._destroy)
        self._await_answer()

    def order(self, address: str, *, mute: bool, deaf: bool, delay_s: float) -> None:
        assert self._process.stdin is not None, "asked for a pipe"
        order = {"address": address, "mute": mute, "deaf": deaf, "delay_s": delay_s}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        self._await_answer()

    def _await_answer(self) -> None:
        assert self._process.stdout is not None, "asked for a pipe"
        assert self._process.stdout.readline(), "the switch has ended"

    def _destroy(self) -> None:
        self._process.kill()
        self._process.communicate()


class Machine:
    """Gone, with all that was started on it, when `stack` is left."""

    def __init__(self, name: str, address: str, directory: Path, stack: contextlib.ExitStack) -> None:
        self.name, self.address, self.directory = name, address, directory
        self.started: list[Job] = []
        self.wires: Wires | None = None
        directory.mkdir(parents=True)
        self._holder = subprocess.Popen(
            ["unshare", *NAMESPACES, "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        stack.callback(self._destroy)
        until(self._is_apart, within_s=SETUP_S, what="namespaces of its own")
        self._call("ip", "link", "set", "lo", "up")
        self._call("hostname", name)
        self._own(BOOT_ID, f"{uuid.uuid4()}\n")
        names = [f"{each} machine{number}\n" for number, each in enumerate(ADDRESSES)]
        self._own("/etc/hosts", "127.0.0.1 localhost\n" + "".join(names))

    def _is_apart(self) -> bool:
        # The last of the namespaces to be made is the mount namespace.
        return os.readlink("/proc/self/ns/mnt") != os.readlink(f"/proc/{self.pid}/ns/mnt")

    def _own(self, path: str, text: str) -> None:
        """A file of this machine's own in the place of one that it would share."""
        own = self.directory / Path(path).name
        own.write_text(text)
        self._call("mount", "--bind", str(own), path)

    @property
    def pid(self) -> int:
        """A process on it, which stands for its namespaces."""
        return self._holder.pid

    def start(self, command: list[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Job:
        place = self.directory / f"process{len(self.started)}"
        # Who enters a mount namespace is at its root.
        job = start([*self.enter, "env", f"--chdir={cwd or place}", *command], directory=place, env=env)
        self.started.append(job)
        return job

    def run(self, *args: object, env: Mapping[str, str] | None = None) -> Job:
        """`holdfast run` with some arguments."""
        events = self.directory / f"process{len(self.started)}" / "events.jsonl"
        return self.start([HOLDFAST, "run", "--events", str(events), *map(str, args)], env=env)

    # --- faults: nobody is told, and what was on its way is lost ------------------------------------------------

    def cut_off(self) -> None:
        self._order(mute=True, deaf=True)

    def mute(self) -> None:
        """It hears the others, and none of them hears it."""
        self._order(mute=True)

    def deafen(self) -> None:
        """The others hear it, and it hears none of them."""
        self._order(deaf=True)

    def slow_down(self, delay_s: float) -> None:
        """Whatever it sends and whatever it is sent takes so much longer."""
        self._order(delay_s=delay_s)

    def heal(self) -> None:
        self._order()

    def _order(self, *, mute: bool = False, deaf: bool = False, delay_s: float = 0.0) -> None:
        assert self.wires is not None, "it is plugged in"
        self.wires.order(self.address, mute=mute, deaf=deaf, delay_s=delay_s)

    def _call(self, *command: str) -> None:
        subprocess.run([*self.enter, *command], check=True, timeout=SETUP_S)

    @property
    def enter(self) -> list[str]:
        """What in front of a command has it run here."""
        return ["nsenter", "--target", str(self.pid), *NAMESPACES, "--"]

    def _destroy(self) -> None:
        for job in self.started:
            job.destroy()
        self._holder.kill()
        self._holder.communicate()


@contextlib.contextmanager
def joined(number: int, directory: Path) -> Iterator[list[Machine]]:
    """So many machines on one switch; `machine0` has the first of `ADDRESSES`."""
    with contextlib.ExitStack() as stack:
        made = [
            Machine(f"machine{index}", address, directory / f"machine{index}", stack)
            for index, address in enumerate(ADDRESSES[:number])
        ]
        wires = Wires(made, stack)
        for machine in made:
            machine.wires = wires
        yield made


MakeMachines = Callable[[int], list[Machine]]
"""The fixture that makes so many machines."""
