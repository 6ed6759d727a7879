"""Measure what a fault costs: with the SDK, with a standby too, under torchrun with checkpoints, and under peers.

One job of 4 ranks at a time is disturbed once and trains on to its end; the systems take turns.
Progress goes to stderr.
"""

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nodes
from disturbances import (
    DAMAGE,
    EVENTS,
    KILLS,
    LARGE,
    SMALL,
    STOPS,
    Clean,
    Fault,
    Plan,
    Sample,
    System,
    measure_clean,
    measure_disturbed,
)
from experiments import Pair, measure_steady_state
from harness import SDK_WORKLOAD, JobFailed, Launcher
from peers import PEERS, default_folder
from peers.environment import NotAvailable, prepare, version_of
from peers.peer import Peer
from program import conduct, say
from recovery_report import Results, document, table
from restart import HOLDFAST, TORCHRUN

HANG_FLAGS = ("--hang-timeout=1:20",)
TORCHRUN_HANG_ARGUMENTS = ("--timeout=10",)
EXPERIMENTS = "kill", "stop", "damage", "steady"
NODES = "nodes"
"""Only when asked for: torchrun takes a minute for each."""
FULL = {"rounds": 7, "sessions": 6, "pairs": 4, "block": 100}
FULL_LARGE = {"rounds": 3, "sessions": 2, "pairs": 4, "block": 8}
QUICK = {"rounds": 1, "sessions": 1, "pairs": 2, "block": 24}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only",
        choices=(*EXPERIMENTS, NODES),
        action="append",
        help="may be repeated; nodes, what the loss of a node costs, is measured only so",
    )
    parser.add_argument(
        "--large", action="store_true", help="49 million parameters with Adam, not 0.95 million with SGD"
    )
    parser.add_argument(
        "--slow", action="store_true", help="SIGSTOP under torchrun too; its timeout, set to 10 s, is slow"
    )
    parser.add_argument("--quick", action="store_true", help="a check of the harness, no result")
    parser.add_argument("--json", action="store_true", help="raw samples to stdout, table to stderr")
    parser.add_argument("--rounds", type=int, help="jobs per system and fault (7; 3 with --large)")
    parser.add_argument("--sessions", type=int, help="fresh pairs of jobs that take turns (6; 2 with --large)")
    parser.add_argument("--pairs", type=int, help="measurements per session (4)")
    parser.add_argument("--block", type=int, help="steps of each job per measurement (100; 8 with --large)")
    parser.add_argument(
        "--peers",
        choices=PEERS,
        nargs="*",
        metavar="NAME",
        help=f"other systems too ({', '.join(PEERS)}; all with no name), each installed into an environment of its own",
    )
    parser.add_argument(
        "--peers-folder", type=Path, default=default_folder(), metavar="FOLDER", help="of the peers' environments"
    )
    parser.add_argument("--holdfast", default=HOLDFAST, metavar="COMMAND")
    parser.add_argument("--torchrun", default=TORCHRUN, metavar="COMMAND")
    args = parser.parse_args()
    for name, value in (QUICK if args.quick else FULL_LARGE if args.large else FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def systems_of(args: argparse.Namespace) -> list[System]:
    arguments = ("--large",) if args.large else ()
    holdfast = Launcher.parse(args.holdfast).with_(flags=[f"--events={{folder}}/{EVENTS}"], arguments=arguments)
    holdfast = replace(holdfast, script=SDK_WORKLOAD)
    return [
        System("holdfast SDK", holdfast, hang_flags=HANG_FLAGS),
        System(
            "holdfast SDK, --standby 1",
            holdfast.with_(flags=["--standby=1"]),
            has_standby=True,
            hang_flags=HANG_FLAGS,
        ),
        System(
            "torchrun", Launcher.parse(args.torchrun).with_(arguments=arguments), hang_arguments=TORCHRUN_HANG_ARGUMENTS
        ),
    ]


def make_peer(peer: Peer, folder: Path, *, large: bool) -> System:
    """The peer, installed into `folder` if it was not yet."""
    commands = prepare(folder, peer.requirements, module=peer.module)
    return System(
        f"{peer.name} {version_of(peer.package, commands)}",
        peer.launcher(commands).with_(arguments=["--large"] if large else []),
        hang_flags=peer.hang_flags,
        hang_arguments=peer.hang_arguments,
        times_steps=peer.times_steps,
        is_peer=True,
    )


def add_peers(results: Results, args: argparse.Namespace) -> None:
    """Those that can be installed; the report says why the others are missing."""
    for name in args.peers or PEERS:
        say(f"installing {name} into {args.peers_folder / name}, if it is not there yet")
        try:
            results.peers.append(make_peer(PEERS[name], args.peers_folder / name, large=args.large))
        except NotAvailable as error:
            results.not_available[name] = str(error)
            say(f"{name}: not available: {error}")


def faults_of(args: argparse.Namespace, chosen: tuple[str, ...]) -> list[Fault]:
    groups = {"kill": KILLS, "stop": STOPS, "damage": [DAMAGE]}
    return [fault for name, faults in groups.items() if name in chosen for fault in faults]


def applies(fault: Fault, system: System, *, slow: bool) -> bool:
    """Whether there is anything to measure: torchrun never retries, and a standby makes no difference to a retry."""
    if fault is DAMAGE:
        return system.has_sdk and not system.has_standby
    return system.has_sdk or system.is_peer or fault in KILLS or slow


def measure_disturbances(results: Results, args: argparse.Namespace, faults: list[Fault]) -> None:
    """Round by round, so that the drift of the machine meets every system alike."""
    clean = measure_undisturbed(results)
    results.clean = list(clean.values())
    systems, plan = results.columns, results.plan
    for turn in range(args.rounds):
        for fault in faults:
            for system in systems if turn % 2 == 0 else systems[::-1]:
                if applies(fault, system, slow=args.slow):
                    sample = measure_safely(system, fault, plan, clean=clean[key_of(system)])
                    results.samples.append(sample)
                    say(f"{turn + 1}/{args.rounds}  {fault.name}, {system.name}: {outcome_of(sample)}")


def measure_undisturbed(results: Results) -> dict[str, Clean]:
    """What each system is held against. A peer that fails without any fault is not measured further."""
    clean = {}
    for system in (results.systems[0], results.systems[-1]):
        clean[key_of(system)] = measure_clean(system, results.plan, report=say)
    for peer in list(results.peers):
        try:
            clean[key_of(peer)] = measure_clean(peer, results.plan, report=say)
        except Exception as error:  # noqa: BLE001 - whatever a peer does, the others are measured
            results.peers.remove(peer)
            results.not_available[peer.name] = f"its undisturbed job {describe(error)}"
            say(f"{peer.name}: not available: its undisturbed job {describe(error)}")
    return clean


def key_of(system: System) -> str:
    """Systems with the same key end with the same weights: a standby makes no difference to them."""
    return "SDK" if system.has_sdk else system.name


def measure_safely(system: System, fault: Fault, plan: Plan, *, clean: Clean) -> Sample:
    try:
        return measure_disturbed(system, fault, plan, clean=clean)
    except Exception as error:  # the boundary to a peer: whatever it does, the others are measured
        if not system.is_peer:
            raise
        return Sample(system.name, fault.name, None, failure=describe(error))


def describe(error: Exception) -> str:
    return str(error) if isinstance(error, JobFailed) else f"could not be measured: {error!r}"


def outcome_of(sample: Sample) -> str:
    if sample.failure is not None or sample.new_step_s is None:
        return sample.failure or "not recovered"
    weights = "same weights" if sample.same_weights else "other weights"
    lost = f"{sample.samples_lost} samples lost"
    return f"{sample.new_step_s:.3f} s, {sample.steps_run_again} steps run again, {lost}, {weights}"


def measure(args: argparse.Namespace) -> Results:
    systems = systems_of(args)
    pair = Pair(baseline=systems[-1].launcher, candidate=systems[0].launcher)
    settings = {name: getattr(args, name) for name in ("quick", "large", "slow", *FULL)}
    results = Results(systems, pair, LARGE if args.large else SMALL, settings)
    chosen = tuple(args.only or EXPERIMENTS)
    if args.peers is not None:
        add_peers(results, args)
    if NODES in chosen:
        peers = [] if args.peers is None else [name for name in args.peers or PEERS if name in nodes.NODE_PEERS]
        node_systems = nodes.systems_of(with_torchrun=not args.quick, peers=peers, folder=args.peers_folder)
        results.of_nodes = nodes.measure_all(node_systems, rounds=args.rounds)
    # The first job would otherwise pay for reading torch from the disk.
    subprocess.run([sys.executable, "-c", "import torch._dynamo"], check=True)
    if faults := faults_of(args, chosen):
        measure_disturbances(results, args, faults)
    if "steady" in chosen:
        results.steady = measure_steady_state(
            pair, sessions=args.sessions, pairs=args.pairs, block=args.block, report=say
        )
    return results


def main() -> int:
    args = parse_args()
    return conduct(lambda: measure(args), table=table, document=document, as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
