"""Nodes on this machine: real processes, networks and limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from jobs import is_alive, until
from watched import Watched, order, play

from holdfast.core.fleet.events import MemoryExhausted, NodeEnded, NodeStarted
from holdfast.platforms.local.cgroups import Cgroups, Hierarchy, find_hierarchy, group_name, remove_stale
from holdfast.platforms.local.keeper import Keeper
from holdfast.platforms.local.namespaces import in_namespace
from holdfast.platforms.local.network import Network
from holdfast.platforms.local.processes import marked

MIB = 1 << 20

pytestmark = pytest.mark.timeout(150)


def python(source: str) -> list[str]:
    return [sys.executable, "-S", "-c", textwrap.dedent(source)]


SAY_WHERE = python("""
    import os, signal
    names = sorted(name for name in os.listdir("/sys/class/net"))
    os.write(1, f"cwd {os.getcwd()} group {os.getpgid(0) == os.getpid()} {os.environ['HOLDFAST_NODE']}\\n".encode())
    signal.pause()
""")

HIDE = python("""
    import os, signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(1, f"hidden {os.getpid()}\\n".encode())
            signal.pause()
        os._exit(0)
    while True:
        signal.pause()
""")

HOG = python("""
    import os, signal
    pid = os.fork()
    if pid == 0:
        held = []
        while True:
            held.append(b"x" * (4 << 20))
    _, status = os.waitpid(pid, 0)
    os.write(1, f"hog ended by {os.waitstatus_to_exitcode(status)}\\n".encode())
    signal.pause()
""")


@pytest.fixture(params=["plain", "apart"])
def local(request: pytest.FixtureRequest, kind_of_local) -> str:
    return kind_of_local(request.param)


@pytest.fixture
def kind_of_local(request: pytest.FixtureRequest):
    return lambda name: request.getfixturevalue("apart") if name == "apart" else name


def test_a_node_has_a_directory_a_group_of_processes_and_a_mark_of_its_own(local: str, tmp_path: Path):
    async def scenario(it: Watched) -> None:
        await it.platform.create(order(0))
        await it.next()
        said = await it.output_has("node-0", "cwd")
        found = it.platform.find("node-0")
        assert f"cwd {tmp_path}/nodes/node-0 group True test-{os.getpid()}/node-0" in said
        assert found.directory == f"{tmp_path}/nodes/node-0"
        assert marked(f"test-{os.getpid()}/node-0") == [found.pid]

    play(scenario, local, tmp_path, SAY_WHERE)


@pytest.mark.parametrize("grace_s", [0.0, 0.3])
def test_nothing_of_a_node_survives_its_end(local: str, tmp_path: Path, grace_s: float):
    async def scenario(it: Watched) -> None:
        await it.platform.create(order(0))
        await it.next()
        hidden = int((await it.output_has("node-0", "hidden")).split()[1])
        assert is_alive(hidden)
        await it.platform.delete("node-0", grace_s=grace_s)
        assert await it.next() == NodeEnded("node-0", signal=signal.SIGKILL)
        assert not is_alive(hidden)

    play(scenario, local, tmp_path, HIDE)


def test_a_node_that_is_killed_takes_what_it_hid_along(local: str, tmp_path: Path):
    async def scenario(it: Watched) -> None:
        await it.platform.create(order(0))
        await it.next()
        hidden = int((await it.output_has("node-0", "hidden")).split()[1])
        os.kill(it.platform.find("node-0").pid, signal.SIGKILL)
        assert await it.next() == NodeEnded("node-0", signal=signal.SIGKILL)
        assert not is_alive(hidden)

    play(scenario, local, tmp_path, HIDE)


def test_a_node_that_needs_more_memory_than_it_has_is_told(local: str, tmp_path: Path):
    async def scenario(it: Watched) -> None:
        await it.platform.create(order(0, memory_bytes=128 * MIB))
        assert await it.next() == NodeStarted("node-0", "host-0")
        assert await it.next() == MemoryExhausted("node-0")
        await it.output_has("node-0", "hog ended by -9")
        await it.platform.delete("node-0", grace_s=0.0)
        assert await it.next() == NodeEnded("node-0", signal=signal.SIGKILL, out_of_memory=True)

    play(scenario, local, tmp_path, HOG)


def test_a_command_that_is_not_there_is_the_end_of_its_node(local: str, tmp_path: Path):
    async def scenario(it: Watched) -> None:
        await it.platform.create(order(0))
        assert await it.next() == NodeStarted("node-0", "host-0")
        assert await it.next() == NodeEnded("node-0", exit_code=1)
        assert "cannot be run" in it.output("node-0")

    play(scenario, local, tmp_path, ["/gone"])


TALK = python("""
    import os, signal, socket
    name, host = "NAME", "HOST"
    listener = socket.create_server((host, 7000))
    os.write(1, b"listens\\n")
    if name == "node-1":
        with socket.create_connection(("10.86.1.0", 7000), timeout=10) as peer:
            os.write(1, f"reached node-0 from {peer.getsockname()[0]}\\n".encode())
    signal.pause()
""")


def test_nodes_apart_have_addresses_of_their_own_and_reach_each_other(apart: str, tmp_path: Path):
    before = set(os.listdir("/sys/class/net"))

    async def scenario(it: Watched) -> None:
        await it.platform.create(order(0))
        await it.output_has("node-0", "listens")
        await it.platform.create(order(1))
        await it.output_has("node-1", "reached node-0 from 10.86.1.1")
        found = [it.platform.find(f"node-{number}") for number in range(2)]
        spaces = {os.readlink(each.network_namespace) for each in found}
        assert len(spaces) == 2
        assert os.readlink("/proc/self/ns/net") not in spaces
        assert set(os.listdir("/sys/class/net")) == before, "nothing of it is in this machine's network"

    play(scenario, apart, tmp_path, TALK)
    assert set(os.listdir("/sys/class/net")) == before


def test_the_master_stays_where_it_is_when_cables_come_and_go(apart: str):
    keeper = Keeper(network=True, groups=[])
    try:
        network = Network(keeper)
        addresses = set()
        for number in range(4):
            with subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE) as node:
                until(lambda: _space(node.pid) != _space(os.getpid()), within_s=30, what="a network of its own")
                network.connect(number, node.pid)
                addresses.add(in_namespace(keeper.pid, _bridge))
        addresses.add(in_namespace(keeper.pid, _bridge))
        assert len(addresses) == 1
    finally:
        keeper.close()


def _space(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def _bridge() -> str:
    shown = subprocess.run(["ip", "-o", "link", "show", "nodes"], capture_output=True, text=True, check=True)
    return shown.stdout.split("link/ether ")[1].split()[0]


def test_limits_are_set_and_their_groups_go_with_the_node(apart: str, tmp_path: Path):
    async def scenario(it: Watched) -> None:
        await it.platform.create(order(0, memory_bytes=64 * MIB))
        await it.next()
        groups = {name: Path(path) for name, path in it.platform.find("node-0").cgroups.items()}
        if "all" in groups:
            assert (groups["all"] / "memory.max").read_text().strip() == str(64 * MIB)
            assert (groups["all"] / "cpu.max").read_text().split()[0] == "50000"
        else:
            assert (groups["memory"] / "memory.limit_in_bytes").read_text().strip() == str(64 * MIB)
            assert (groups["cpu"] / "cpu.cfs_quota_us").read_text().strip() == "50000"
        assert str(it.platform.find("node-0").pid) in (next(iter(groups.values())) / "cgroup.procs").read_text()
        await it.platform.delete("node-0", grace_s=0.0)
        await it.next()
        assert not any(group.exists() for group in groups.values())

    play(scenario, apart, tmp_path, ["sleep", "1000"], cpu=0.5)
    hierarchy = find_hierarchy()
    assert hierarchy is not None
    assert not [base for base in hierarchy.bases.values() if (base / group_name(os.getpid())).exists()]


OWNER = """
import asyncio, pathlib, sys
sys.path.insert(0, sys.argv[2])
from watched import open_platform, order
async def main():
    async with open_platform(sys.argv[3], pathlib.Path(sys.argv[1]), ["sleep", "1000"]) as it:
        for number in range(2):
            await it.platform.create(order(number, memory_bytes=64 << 20))
        print(*[it.platform.find(f"node-{n}").pid for n in range(2)], flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
def owned(tmp_path: Path):
    """Start a process that has two nodes; it, and its nodes."""
    owners: list[subprocess.Popen[str]] = []

    def begin(kind: str) -> tuple[subprocess.Popen[str], list[int]]:
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(tmp_path), str(Path(__file__).parent), kind],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        owners.append(owner)
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 2
        return owner, pids

    yield begin
    for owner in owners:
        owner.kill()
        owner.communicate()


def test_nodes_go_with_an_owner_that_is_killed(owned):
    owner, pids = owned("plain")
    owner.kill()
    until(lambda: not any(map(is_alive, pids)), within_s=30, what="the nodes to die")


def test_networks_and_groups_go_with_an_owner_that_is_killed(apart: str, owned):
    before = set(os.listdir("/sys/class/net"))
    owner, pids = owned(apart)
    hierarchy = find_hierarchy()
    assert hierarchy is not None
    groups = [base / group_name(owner.pid) for base in hierarchy.bases.values()]
    assert all(group.is_dir() for group in groups)
    spaces = {os.readlink(f"/proc/{pid}/ns/net") for pid in pids}
    owner.kill()
    until(lambda: not any(map(is_alive, pids)), within_s=30, what="the nodes to die")
    until(lambda: not any(group.exists() for group in groups), within_s=30, what="their groups to go")
    until(lambda: not spaces & _spaces(), within_s=30, what="their networks to go")
    assert set(os.listdir("/sys/class/net")) == before


def _spaces() -> set[str]:
    found = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                found.add(os.readlink(f"/proc/{name}/ns/net"))
            except OSError:
                continue
    return found


def test_groups_of_jobs_that_are_gone_are_removed_by_the_next(tmp_path: Path):
    alive, gone = tmp_path / group_name(os.getpid()), tmp_path / "holdfast.1.notitsstart"
    for group in (alive, gone, gone / "node-0", tmp_path / "others"):
        group.mkdir()
    remove_stale(Hierarchy(2, {"all": tmp_path}))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive.name, "others"])


def test_version_2_of_control_groups(tmp_path: Path):
    """On a stand-in for its file system: each machine has one version only."""
    group = tmp_path / "job" / "node-0"
    group.mkdir(parents=True)
    (tmp_path / "job" / "cgroup.subtree_control").write_text("")
    cgroups = Cgroups(Hierarchy(2, {"all": tmp_path}), "job")
    cgroups.open()
    cgroups.make("node-0", cpu=1.5, memory_bytes=7)
    assert (tmp_path / "job" / "cgroup.subtree_control").read_text() == "+memory +cpu"
    assert (group / "memory.max").read_text() == "7"
    assert (group / "cpu.max").read_text() == "150000 100000"
    assert cgroups.num_kills("node-0") == 0
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 8\noom 1\noom_kill 2\n")
    assert cgroups.num_kills("node-0") == 2


@pytest.mark.parametrize(
    ("mounts", "version"),
    [
        ("30 20 0:1 / {base} rw - cgroup2 cgroup2 rw", 2),
        ("30 20 0:1 / {base} rw - cgroup cgroup rw,memory\n31 20 0:2 / {base} rw - cgroup cgroup rw,cpu,cpuacct", 1),
        ("30 20 0:1 / {base} rw - cgroup cgroup rw,pids", None),
    ],
)
def test_the_hierarchy_is_found(tmp_path: Path, mounts: str, version: int | None):
    base, proc = tmp_path / "base", tmp_path / "proc"
    for directory in (base / "inner", proc):
        directory.mkdir(parents=True)
    (base / "cgroup.controllers").write_text("cpu memory pids\n")
    (proc / "mountinfo").write_text(mounts.format(base=base) + "\n")
    (proc / "cgroup").write_text("4:memory:/inner\n1:cpu,cpuacct:/\n0::/\n")
    found = find_hierarchy(proc)
    assert (found.version if found else None) == version
    if found is not None and version == 1:
        assert found.bases == {"memory": base / "inner", "cpu": base}
