"""Judges an experiment again, from the raw evidence in its report. Shares no code with what judged it first.

python tests/chaos/recompute.py REPORT.json ...    exit code 0 if every verdict is confirmed
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path


def told(raw: dict, kind: str, **fields: str) -> list[dict]:
    of_kind = (event for event in raw["events"] if event["kind"] == kind)
    return [event for event in of_kind if not [name for name in fields if str(event.get(name)) != fields[name]]]


def lines(raw: dict, what: str) -> list[dict]:
    return list(filter(lambda line: line["what"] == what, raw["records"]))


def is_replaced(raw: dict, wanted: dict) -> bool:
    for gone in told(raw, "node_gone", node=wanted["node"]):
        if "cause" in wanted and gone["cause"] != wanted["cause"]:
            continue
        for heir in told(raw, "node_created", replaces=wanted["node"]):
            before = {rank for start in told(raw, "workers_started", node=gone["node"]) for rank in start["pids"]}
            after = {rank for start in told(raw, "workers_started", node=heir["node"]) for rank in start["pids"]}
            if after and heir["rank"] == gone["rank"] and (not before or before == after):
                return True
    return False


def sizes(raw: dict) -> list[int]:
    found: list[int] = []
    for step in sorted(lines(raw, "step"), key=lambda line: line["step"]):
        if found[-1:] != [step["world"]]:
            found.append(step["world"])
    return found


def goes_on(raw: dict, limit_s: float) -> bool:
    steps = sorted(line["at"] for line in lines(raw, "step"))
    deeds = [action["at"] for action in raw["actions"] if action["what"] in ("fault", "scale")]
    later_steps = {line["step"] for line in lines(raw, "step") if not deeds or line["at"] > max(deeds)}
    if len(later_steps) < 5 or not lines(raw, "end"):
        return False
    moments = sorted(steps + [line["at"] for line in lines(raw, "end")])
    return all(later <= earlier + limit_s for earlier, later in pairwise(moments))


def is_repaired(raw: dict, wanted: dict) -> bool:
    verdicts = {event["number"]: event["verdict"] for event in told(raw, "incident_closed")}
    for event in told(raw, "incident_opened"):
        verdict = verdicts.get(event["number"], "open")
        if wanted.get("strategy") in (None, event["strategy"]) and wanted.get("verdict") in (None, verdict):
            return True
    return False


def is_each_sample_used_once(raw: dict) -> bool:
    epochs = lines(raw, "epoch")
    if not epochs or not lines(raw, "end"):
        return False
    if any(list(line["uses"]) != [str(line["epoch"] + 1)] for line in epochs):
        return False
    place: dict[tuple[int, int], int] = {}
    for line in lines(raw, "step"):
        for sample in line["samples"]:
            if place.setdefault((line["epoch"], sample), line["step"]) != line["step"]:
                return False
    return True


def are_weights_equal(raw: dict) -> bool:
    epochs = lines(raw, "epoch")
    agree = [raw["reference"].get(str(line["epoch"])) == line["weights"] for line in epochs]
    return bool(epochs) and bool(lines(raw, "end")) and all(agree)


def do_generations_grow(raw: dict) -> bool:
    worlds = [e["generation"] for e in raw["events"] if e["kind"] == "world_formed" or e["kind"] == "incident_opened"]
    return worlds != [] and worlds == sorted(set(worlds))


def does_memory_grow(raw: dict) -> bool:
    memory = {event["node"]: event["memory_bytes"] for event in told(raw, "node_created")}
    heirs = [event for event in told(raw, "node_created") if event["replaces"]]
    return heirs != [] and all(event["memory_bytes"] > memory[event["replaces"]] for event in heirs)


def is_soaked(raw: dict) -> bool:
    """Whether four in five of the faults of a soak were put in, and it came to its end."""
    deeds = [action["what"] for action in raw["actions"]]
    missed = deeds.count("skipped") + deeds.count("failed")
    return "fault" in deeds and 4 * missed <= deeds.count("fault") and "end" in deeds


def is_met(name: str, value: object, raw: dict) -> bool:
    finished = told(raw, "job_finished")
    answers = {
        "exit_code": lambda: raw["exit_code"] == value,
        "node_replaced": lambda: is_replaced(raw, value),
        "nodes_kept": lambda: not [event for event in told(raw, "node_gone") if event["cause"] != ""],
        "world_sizes": lambda: sizes(raw) == value,
        "recovers_within": lambda: goes_on(raw, value),
        "incident": lambda: is_repaired(raw, value),
        "told": lambda: told(raw, **value) != [],
        "not_told": lambda: told(raw, **value) == [],
        "samples": lambda: is_each_sample_used_once(raw),
        "weights": lambda: are_weights_equal(raw),
        "generations": lambda: do_generations_grow(raw),
        "orphans": lambda: raw["leftovers"] == [],
        "memory": lambda: does_memory_grow(raw),
        "restarts": lambda: finished != [] and finished[-1]["restarts"] <= value,
    }
    return answers[name]()


def recompute(report: dict) -> tuple[str, list[str]]:
    """The verdict, and the expectations that are not met."""
    raw = report["evidence"]
    missed = [name for each in report["then"] for name, value in each.items() if not is_met(name, value, raw)]
    done = [action for action in raw["actions"] if action["what"] in ("fault", "scale", "end")]
    if len(done) != len(report["when"]) if report["when"] else not is_soaked(raw):
        missed.append("actions")
    return ("FAIL" if missed else "PASS"), missed


def confirm(report: dict) -> list[str]:
    """What the report says otherwise than its evidence."""
    verdict, missed = recompute(report)
    said = sorted({each["expected"].partition(":")[0] for each in report["findings"] if not each["met"]})
    wrong = [] if verdict == report["verdict"] else [f"the verdict is {verdict}, not {report['verdict']}"]
    if sorted(set(missed)) != said:
        wrong.append(f"not met are {sorted(set(missed))}, not {said}")
    if report["must_fail"]:
        struck = [action for action in report["evidence"]["actions"] if action["what"] in ("fault", "scale")]
        as_it_must = bool(struck) and set(report["must_fail"]) <= set(missed)
        as_it_must = as_it_must and "orphans" not in missed and "generations" not in missed
    else:
        as_it_must = verdict == "PASS"
    if as_it_must != report["as_it_must"]:
        wrong.append(f"that it came out as it must is {as_it_must}, not {report['as_it_must']}")
    return wrong


def main() -> int:
    bad = 0
    for path in sys.argv[1:]:
        wrong = confirm(json.loads(Path(path).read_text()))
        bad += bool(wrong)
        sys.stdout.write(f"{path}: {'; '.join(wrong) or 'confirmed'}\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
