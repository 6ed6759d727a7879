"""How each system runs the nodes of one job."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from peers import PEERS
from peers.environment import prepare, version_of
from peers.peer import SCRIPTS

WORKLOAD = Path(__file__).with_name("nodes_workload.py")
TORCHFT_WORKLOAD = SCRIPTS / "torchft_nodes.py"
BIN = Path(sys.executable).parent
NUM_NODES, MIN_NODES = 3, 2
SIZES = f"--nnodes={MIN_NODES}:{NUM_NODES}"
ENDLESS = "--max-restarts=100"
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it most restarts of torch's launcher fail."""

NODE_LOST, NODE_BACK, NODE_CUT_OFF = (
    "node lost, the others go on",
    "node comes, others' pause",
    "node cut off, the others go on",
)
SPARE = "node lost, a spare is there"
HOST_LOST = "first node lost, the others go on"
"""It hosts the master, or the store at which all meet."""


def collective_timeout(*, tuned: bool) -> str:
    """For the plain scripts: where nothing else notices that a node is silent, in place of 30 minutes."""
    return f"--timeout={2 if tuned else 10}"


@dataclass(frozen=True)
class Meeting:
    """Where the nodes of a job meet, and where they write down their steps."""

    address: str
    port: int
    folder: Path

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{self.port}"


@dataclass(frozen=True)
class Place:
    """Where a node runs."""

    number: int
    address: str
    enter: tuple[str, ...] = ()
    """In front of a command that is to run there."""


@dataclass(frozen=True)
class Start:
    """A command line, and what its environment has that ours has not."""

    command: list[str]
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeSystem:
    """A system that runs a job on several nodes."""

    name: str
    node: Callable[[Meeting, Place], Start]
    helper: Callable[[Meeting], Start] | None = None
    """What has to run before the first node, at the same place; it serves the port."""
    experiments: tuple[str, ...] = (NODE_LOST, NODE_BACK, NODE_CUT_OFF)


def holdfast() -> NodeSystem:
    def node(meeting: Meeting, place: Place) -> Start:
        return Start([str(BIN / "holdfast"), "run", *_torchrun_flags(meeting), str(WORKLOAD), str(meeting.folder)])

    return NodeSystem("holdfast", node, experiments=(SPARE, NODE_LOST, HOST_LOST, NODE_BACK, NODE_CUT_OFF))


def torchrun(*, tuned: bool) -> NodeSystem:
    conf = ["--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2"] if tuned else []

    def node(meeting: Meeting, place: Place) -> Start:
        flags = [*_torchrun_flags(meeting), "--rdzv-backend=c10d", ENDLESS, f"--local-addr={place.address}", *conf]
        return Start([str(BIN / "torchrun"), *flags, *_plain_script(meeting, tuned=tuned)], FRESH_STORE)

    experiments = (NODE_LOST, HOST_LOST, NODE_BACK, NODE_CUT_OFF)
    return NodeSystem("torchrun, tuned" if tuned else "torchrun", node, experiments=experiments)


def _torchrun_flags(meeting: Meeting) -> list[str]:
    return [SIZES, f"--rdzv-endpoint={meeting.endpoint}", "--rdzv-id=bench", "--nproc-per-node=1"]


def _plain_script(meeting: Meeting, *, tuned: bool) -> list[str]:
    return [str(WORKLOAD), str(meeting.folder), "--plain", collective_timeout(tuned=tuned)]


def dlrover(folder: Path, *, tuned: bool) -> NodeSystem:
    """With a master of its own on the first node's machine; `tuned`: with a last call of 1 s, not 60 s."""
    peer = PEERS["dlrover"]
    commands = prepare(folder, peer.requirements, module=peer.module)
    conf = ["--rdzv-conf=lastcall_timeout=1"] if tuned else []

    def helper(meeting: Meeting) -> Start:
        master = ["-m", "dlrover.python.master.main", "--platform=local", f"--node_num={NUM_NODES}", "--job_name=bench"]
        return Start([str(commands / "python"), *master, f"--port={meeting.port}"], variables(meeting))

    def variables(meeting: Meeting) -> dict[str, str]:
        return {**FRESH_STORE, **_environment(commands, meeting)}

    def node(meeting: Meeting, place: Place) -> Start:
        numbers = {"NODE_RANK": str(place.number), "NODE_ID": str(place.number), "NODE_NUM": str(NUM_NODES)}
        meeting_place = {"DLROVER_MASTER_ADDR": meeting.endpoint, "POD_IP": place.address}
        launch = [str(commands / "python"), str(SCRIPTS / "dlrover_launch.py"), SIZES, "--nproc_per_node=1"]
        command = [*launch, "--max_restarts=100", *conf, *_plain_script(meeting, tuned=tuned)]
        return Start(command, {**variables(meeting), **meeting_place, **numbers})

    name = f"DLRover {version_of(peer.package, commands)}"
    return NodeSystem(f"{name}, tuned" if tuned else name, node, helper)


def torchft(folder: Path, *, tuned: bool) -> NodeSystem:
    """A replica group a node; `tuned`: a node is given up after 1 s of silence, not 5 s."""
    peer = PEERS["torchft"]
    commands = prepare(folder, peer.requirements, module=peer.module)
    silence_ms = 1000 if tuned else 5000

    def helper(meeting: Meeting) -> Start:
        flags = [f"--bind={meeting.endpoint}", f"--min_replicas={MIN_NODES}", "--quorum_tick_ms=100"]
        command = [str(commands / "torchft_lighthouse"), *flags, f"--heartbeat_timeout_ms={silence_ms}"]
        return Start(command, {**_environment(commands, meeting), "RUST_LOG": "warn"})

    def node(meeting: Meeting, place: Place) -> Start:
        variables = {
            **_environment(commands, meeting),
            "RUST_LOG": "warn",
            "TORCHFT_LIGHTHOUSE": f"http://{meeting.endpoint}",
            "NODE_NUMBER": str(place.number),
            "NODE_ADDRESS": place.address,
            "NUM_NODES": str(NUM_NODES),
        }
        port = meeting.port + 1 + place.number
        flags = ["--nnodes=1", "--nproc-per-node=1", f"--master-addr={place.address}", f"--master-port={port}"]
        script = [str(TORCHFT_WORKLOAD), str(meeting.folder), collective_timeout(tuned=tuned)]
        return Start([str(commands / "torchrun"), *flags, ENDLESS, *script], variables)

    name = f"torchft {version_of(peer.package, commands)}"
    return NodeSystem(f"{name}, tuned" if tuned else name, node, helper)


def _environment(commands: Path, meeting: Meeting) -> dict[str, str]:
    return {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(WORKLOAD.parent),
        "TMPDIR": str(meeting.folder),
    }


NODE_PEERS: dict[str, Callable[..., NodeSystem]] = {"torchft": torchft, "dlrover": dlrover}
"""By the name of the flag: those that lose and take in nodes."""
