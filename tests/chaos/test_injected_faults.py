"""Each fault does what it says, and is taken back whole: in order, when the injector is killed, when its warden is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from injector import agent_target
from jobs import MARK, cmdline, is_stopped, kill, marked, until
from victims import Victim, echo, reaches

from holdfast.chaos.api import Values
from holdfast.chaos.faults import FAULTS
from holdfast.chaos.injection import inject
from holdfast.chaos.network import delaying_queue, losing_queue
from holdfast.chaos.packets import is_possible
from holdfast.chaos.pids import variables_of
from holdfast.chaos.targets import target_of
from holdfast.chaos.vdso import obstacle as no_clocks

MIB = 1 << 20
INJECTOR = Path(__file__).with_name("injector.py")


def burdens(kind: str) -> list[int]:
    return [pid for pid in marked(os.environ[MARK]) if kind in cmdline(pid) and "burden.py" in " ".join(cmdline(pid))]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def written_bytes(pid: int) -> int:
    lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(lines["write_bytes"])


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_slow(victim: Victim) -> bool:
    """A child of it goes on, and stands still: now, so that it stays so if nobody takes that back."""
    child = victim.ask("globals().setdefault('child', __import__('subprocess').Popen(['cat'], stdin=-1)).pid")
    until(lambda: not is_stopped(child), within_s=30, what="it to go on")
    deadline = time.monotonic() + 0.3
    while not is_stopped(child):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.001)
    return True


def is_loaded(victim: Victim) -> bool:
    found = burdens("burn")
    same = [os.sched_getaffinity(pid) == os.sched_getaffinity(victim.pid) for pid in found]
    return len(found) == 2 and all(same) and all(cpu_s(pid) > 0.1 for pid in found)


def is_hogged(_: Victim) -> bool:
    return any(resident_bytes(pid) >= 64 * MIB for pid in burdens("hog"))


def is_limited(victim: Victim) -> bool:
    path = str(victim.directory / "large")
    assert victim.ask(f"write({path!r}, 1)") == ""
    return victim.ask(f"write({path!r}, 100)") == "File too large"


def is_late(victim: Victim) -> bool:
    """By its own clock, and by that of its fork, in every way to ask."""
    ways = ("time.time()", "time.clock_gettime(5)", "in_fork(time.time)", "time.time_ns() / 1e9")
    gaps = [round((victim.ask(way) - time.time()) / 60) for way in ways]
    assert len(set(gaps)) == 1, gaps
    assert abs(victim.ask("time.monotonic()") - time.monotonic()) < 30, "no other clock jumps"
    return gaps[0] == -60


def is_full(victim: Victim) -> bool:
    old, new = victim.directory / "old", victim.directory / "new"
    if not old.exists():
        old.write_text("old")
    answers = {
        victim.ask(f"write({str(new)!r}, 1)"),
        victim.ask(f"write({str(old)!r}, 5000)") if new.exists() else victim.ask(f"rename({str(old)!r}, {str(new)!r})"),
    }
    assert victim.ask(f"open({str(old)!r}).read()") in ("old", "\0" * 5000)
    return answers == {"No space left on device"}


def is_throttled(victim: Victim) -> bool:
    """A mebibyte, of which it may write one a second."""
    began = time.monotonic()
    assert victim.ask(f"write({str(victim.directory / 'slow')!r}, {MIB}, sync=True)") == ""
    held = time.monotonic() - began > 0.5
    return held and ":blkio:/holdfast-" in Path(f"/proc/{victim.pid}/cgroup").read_text()


def is_stormy(victim: Victim) -> bool:
    assert not list(victim.directory.iterdir()), "its files have no names"
    found = burdens("storm")
    return len(found) == 2 and all(written_bytes(pid) > MIB for pid in found)


def is_delayed(victim: Victim) -> bool:
    """The best of several words, since a busy machine is late too; and whole, if they are many."""
    times = []
    for _ in range(3):
        began = time.monotonic()
        echo(victim, 1)
        times.append(time.monotonic() - began)
    echo(victim, 4 * MIB)
    interfaces = victim.ask("[name for _, name in socket.if_nameindex()]")
    return ("chaos0" in interfaces) and min(times) > 0.05


def is_held_up(victim: Victim) -> bool:
    """A mebibyte, of which it may send one a second."""
    began = time.monotonic()
    echo(victim, MIB)
    return time.monotonic() - began > 0.5


def is_cut_off(victim: Victim) -> bool:
    return not reaches(victim)


def is_down(victim: Victim) -> bool:
    command = ["nsenter", "-t", str(victim.pid), "-n", "ip", "route"]
    routes = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    assert routes == "" or len(routes.splitlines()) == 2, "one that it has by its address, and one that it was given"
    return routes == "" and not reaches(victim)


def is_without_probes(victim: Victim) -> bool:
    """One that it starts does not live long."""
    words = ["sh", "-c", "read _", "-m", "holdfast.agent.probe"]
    victim.ask(f"globals().update(probe=__import__('subprocess').Popen({words}, stdin=-1))")
    deadline = time.monotonic() + 0.3
    while victim.ask("probe.poll()") is None:
        if time.monotonic() >= deadline:
            victim.ask("(probe.kill(), probe.wait())[0]")
            return False
    return True


def is_ordered(victim: Victim) -> bool:
    """An order lies beside the beacon that it has mapped."""
    beacon = victim.directory / "beacon_0"
    if not beacon.exists():
        beacon.write_bytes(bytes(4096))
        opened = f"os.open({str(beacon)!r}, os.O_RDWR)"
        victim.ask(f"globals().update(page=__import__('mmap').mmap({opened}, 4096))")
    return beacon.with_name("beacon_0.fault").exists()


CASES: dict[str, tuple[Callable[[Victim], bool], dict[str, str]]] = {
    "stop": (lambda victim: is_stopped(victim.pid), {}),
    "slow": (is_slow, {"percent": "80"}),
    "cpu-load": (is_loaded, {"processes": "2", "percent": "50"}),
    "memory-hog": (is_hogged, {"bytes": "64Mi"}),
    "file-limit": (is_limited, {}),
    "clock-jump": (is_late, {"seconds": "-3600"}),
    "disk-full": (is_full, {}),
    "slow-disk": (is_throttled, {}),
    "disk-storm": (is_stormy, {"writers": "2"}),
    "network-loss": (is_cut_off, {}),
    "network-delay": (is_delayed, {"ms": "60", "jitter": "10"}),
    "network-rate": (is_held_up, {}),
    "network-partition": (is_down, {}),
    "kill-probes": (is_without_probes, {}),
    "exception": (is_ordered, {"step": "1000000"}),
    "damaged-tensor": (is_ordered, {"step": "1000000"}),
}
ELSEWHERE = {"kill"}


def test_every_fault_is_tested() -> None:
    assert CASES.keys() | ELSEWHERE == FAULTS.keys()


@pytest.fixture(params=CASES)
def struck(request: pytest.FixtureRequest) -> tuple[str, Victim]:
    name = request.param
    if FAULTS[name].needs_root and os.geteuid() != 0:
        pytest.skip("it needs root")
    if name == "clock-jump" and no_clocks():
        pytest.skip(no_clocks())
    return name, request.getfixturevalue("networked" if name.startswith("network-") else "victim")


@pytest.mark.parametrize("ending", ["undone", "injector killed", "warden killed"])
def test_a_fault_is_there_until_it_is_taken_back(struck: tuple[str, Victim], ending: str) -> None:
    name, victim = struck
    is_there, parameters = CASES[name]
    assert not is_there(victim)
    end = (end_by_killing_injector if ending == "injector killed" else end_in_this_process)(
        name, victim, parameters, ending
    )
    try:
        until(lambda: is_there(victim), within_s=20, what=f"{name} to be there")
    finally:
        end()
    until(lambda: not is_there(victim), within_s=20, what=f"{name} to be taken back")
    assert victim.ask("1 + 1") == 2, "it goes on"


def end_in_this_process(name: str, victim: Victim, parameters: dict[str, str], ending: str) -> Callable[[], None]:
    injection = inject(name, agent_target(victim.pid, str(victim.directory)), parameters=parameters)

    def end() -> None:
        assert injection.did
        if ending == "warden killed":
            assert injection.warden_pid is not None
            kill(injection.warden_pid)
        injection.undo()
        injection.undo()

    return end


def end_by_killing_injector(name: str, victim: Victim, parameters: dict[str, str], _: str) -> Callable[[], None]:
    settings = [f"{key}={value}" for key, value in parameters.items()]
    injector = subprocess.Popen(
        [sys.executable, str(INJECTOR), name, str(victim.pid), str(victim.directory), *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert injector.stdout is not None
    if injector.stdout.readline() != b"injected\n":
        raise AssertionError(injector.communicate()[1].decode())

    def end() -> None:
        injector.send_signal(signal.SIGKILL)
        injector.communicate()

    return end


@pytest.mark.parametrize(
    ("release", "machine", "possible"),
    [
        ("6.6.0", "x86_64", True),
        ("6.18.44-fc-v509", "aarch64", True),
        ("7.0-rc1", "x86_64", True),
        ("6.5.13-generic", "x86_64", False),
        ("5.15.0-91-generic", "x86_64", False),
        ("6.12", "riscv64", False),
    ],
)
def test_an_older_kernel_loses_packets_by_a_queue(release: str, machine: str, possible: bool) -> None:
    assert is_possible(release, machine) is possible
    assert losing_queue(100) == ("pfifo", "limit", "0")
    assert losing_queue(7.5) == ("netem", "loss", "7.5%")
    assert delaying_queue(60, 10) == ("netem", "delay", "60ms", "10ms")


@pytest.mark.usefixtures("as_root")
def test_a_queue_without_room_loses_everything(networked: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.release", lambda: "5.15.0")
    target = agent_target(networked.pid, str(networked.directory))
    loss = FAULTS["network-loss"].make(target, Values({"percent": "100", "interface": "eth0"}), key="k")
    assert not is_cut_off(networked)
    loss.apply()
    assert is_cut_off(networked)
    for _ in range(2):
        loss.undo()
    assert not is_cut_off(networked)


def test_a_fault_ends_by_itself_when_its_time_is_up(victim: Victim) -> None:
    injection = inject("stop", target_of(victim.pid), for_s=3.0)
    assert is_stopped(victim.pid)
    injection.wait()
    assert not is_stopped(victim.pid)
    assert victim.ask("1 + 1") == 2


def test_a_load_belongs_to_the_node(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of(victim.pid)
    object.__setattr__(target, "marks", {"HOLDFAST_NODE": "job/node-0"})
    with inject("memory-hog", target, parameters={"bytes": "1Mi"}):
        (hog,) = burdens("hog")
        assert variables_of(hog, ["HOLDFAST_NODE"]) == {"HOLDFAST_NODE": "job/node-0"}
