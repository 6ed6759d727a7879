"""Whatever happens to the nodes of a job and to its master: no rank is given away while its worker lives, and masters
act one after the other."""

from __future__ import annotations

from collections import Counter

from electing import Node, gather
from electing_stage import RULES, Stage

NUM_SEEDS = 300
LEASE_S = RULES.lease_s
REACHED: Counter[str] = Counter()


class Faults:
    """Strikes, one after the other."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._calm_at = 0.0
        stage.on_stand = self._abandon

    def strike(self) -> None:
        stage, rng = self._stage, self._stage.rng
        living = [node for node in stage.nodes if node.alive and not node.is_stopped]
        if len(living) < 3:
            return
        node, last_s = rng.choice(living), rng.uniform(0.1, 2.5) * LEASE_S
        kind = rng.choice(["cut"] * 3 + ["stop", "stick", "stick", "crash", "die", "power"])
        if kind in ("cut", "stick", "crash") or node.is_host:
            # What a master that is cut off is safe from is told in decision 12: it must not be lost as well.
            if stage.now < self._calm_at:
                return
            self._calm_at = stage.now + last_s + 2 * LEASE_S
        stage.reached[kind] += 1
        match kind:
            case "cut":
                stage.cut = {each.name for each in rng.sample(stage.nodes, rng.randint(1, len(stage.nodes) - 1))}
                stage.timeline.after(last_s, stage.cut.clear)
            case "stop":
                self._stop(node, last_s)
            case "stick":
                self._stick(last_s)
            case "crash":
                for host in living:
                    host.restart_master()
            case "die" | "power":
                node.die(has_power=kind == "die")

    def _abandon(self, candidate: Node) -> None:
        """Some candidates are lost before they are elected."""
        stage = self._stage
        if stage.rng.random() < 0.15 and sum(node.alive for node in stage.nodes) > 2:
            has_power = stage.rng.random() < 0.7
            stage.timeline.after(
                stage.rng.uniform(0.0, 0.3), lambda: candidate.is_host or candidate.die(has_power=has_power)
            )

    def _stop(self, node: Node, last_s: float) -> None:
        stage = self._stage
        processes = [node, *([] if node.hosted is None else [node.hosted])]
        for process in processes:
            process.is_stopped = True
        stage.timeline.after(last_s, lambda: [process.go_on() for process in processes])

    def _stick(self, last_s: float) -> None:
        for node in self._stage.nodes:
            if node.alive and node.hosted is not None and node.hosted.alive and not node.is_stopped:
                node.hosted.is_stopped = True
                self._stage.timeline.after(last_s, node.hosted.go_on)


def play(seed: int) -> Stage:
    stage = gather(seed, num_nodes=3 + seed % 3)
    faults, at = Faults(stage), 3.0
    for _ in range(stage.rng.randint(1, 6)):
        at += stage.rng.choice([0.2, 0.5, 1.0, 4.0]) * stage.rng.random() * LEASE_S
        stage.timeline.at(at, faults.strike)
    while stage.now < at + 6 * LEASE_S and stage.timeline.step():
        pass
    return stage


def test_a_rank_has_one_worker_and_a_job_one_master_through_every_history():
    for seed in range(NUM_SEEDS):
        try:
            REACHED.update(play(seed).reached)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


def test_the_histories_above_went_somewhere():
    """Green proves little: count where they went."""
    often = ("election won", "election lost", "successor acts", "gave way", "fenced", "revived", "Isolated")
    rare = ("not followed", "candidate vanished", "withdrawn", "unseated")
    assert all(REACHED[path] > 20 for path in often), REACHED
    assert all(REACHED[path] > 2 for path in rare), REACHED
