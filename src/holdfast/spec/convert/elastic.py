"""DLRover's ElasticJob."""

from __future__ import annotations

from holdfast.errors import SpecError
from holdfast.spec.convert.drafts import make_draft
from holdfast.spec.convert.gangs import convert_alike, count_nodes
from holdfast.spec.convert.labels import convert_labels
from holdfast.spec.convert.picking import Entries, Path, Picker
from holdfast.spec.convert.pods import convert_variables, join_variables
from holdfast.spec.job_fields import ROLE
from holdfast.spec.job_file import Draft, Entry
from holdfast.spec.job_kinds import NAME

STRATEGIES = ("AllreduceStrategy", "Local")
SPECS: Path = ("spec", "replicaSpecs")
NOT_RUN = {
    "dlrover-master": "the submitter runs the master",
    "ps": "submitted jobs have no parameter servers",
}
WORKER, CHIEF = "worker", "chief"
MOST_RELAUNCHES = 5
"""DLRover replaces a node at most so often, whatever restartCount says."""


def convert_elastic(picker: Picker) -> Draft:
    strategy = picker.text("spec", "distributionStrategy")
    if strategy is not None and strategy not in STRATEGIES:
        at = picker.at(("spec", "distributionStrategy"))
        raise SpecError(
            at, strategy, f"it must be one of {', '.join(STRATEGIES)}: submitted jobs have no parameter servers"
        )
    variables = convert_variables(picker, ("spec", "envs"))
    roles: dict[str, tuple[Path, Entries]] = {}
    for name, parts in _roles(picker).items():
        entries = _convert_role(picker, parts)
        if variables:
            entries = join_variables(entries, Entry(variables, picker.at(("spec", "envs"))))
        roles[name] = (parts[-1], entries)
    draft = make_draft(picker, roles)
    if (title := picker.text("metadata", "name")) is not None:
        draft.entries.update(picker.entry("name", title, ("metadata", "name")))
    draft.entries.update(convert_labels(picker))
    return draft


def _roles(picker: Picker) -> dict[str, tuple[Path, ...]]:
    """The roles by their names, each with the replicas that take part in it: a chief trains with the workers."""
    found: dict[str, tuple[Path, ...]] = {}
    kinds = picker.keys(*SPECS)
    for kind in kinds:
        if kind in NOT_RUN:
            picker.note_field((*SPECS, kind), f"does nothing here: {NOT_RUN[kind]}")
    names = [kind for kind in kinds if kind not in NOT_RUN]
    if not names:
        raise SpecError(picker.at(SPECS), ", ".join(kinds), "it must have replicas that train, as worker")
    for kind in names:
        path: Path = (*SPECS, kind)
        NAME.parse(kind.lower(), picker.at(path))
        if kind == CHIEF and WORKER in names:
            picker.note(f"{picker.at(path)} is a node of the role {WORKER} here: both train together")
        elif kind == WORKER and CHIEF in names:
            found[WORKER] = ((*SPECS, CHIEF), path)
        else:
            found[kind.lower()] = (path,)
    return found


def _convert_role(picker: Picker, parts: tuple[Path, ...]) -> Entries:
    num_nodes = count_nodes(picker, parts)
    where: Path = (*parts[-1], "replicas")
    entries = picker.entry(f"{ROLE}.nodes", str(num_nodes), where)
    entries |= convert_alike(picker, parts, num_nodes=num_nodes)
    entries |= _at_most(picker, entries, num_nodes, where)
    for part in parts:
        entries |= _relaunches(picker, (*part, "restartCount"))
    return entries


def _at_most(picker: Picker, entries: Entries, replicas: int, path: Path) -> Entries:
    """The command's --nnodes says the least; there are never more than replicas."""
    written = entries[f"{ROLE}.nodes"].written
    assert isinstance(written, str), "a number of nodes is a text"
    least, _, most = written.partition(":")
    if int(most or least) == replicas:
        return {}
    picker.note(f"{picker.at(path)}: --nnodes={written} in the command means {min(int(least), replicas)}:{replicas}")
    return picker.entry(f"{ROLE}.nodes", f"{min(int(least), replicas)}:{replicas}", path)


def _relaunches(picker: Picker, path: Path) -> Entries:
    text = picker.text(*path)
    if text is None:
        return {}
    if not text.isdecimal():
        raise SpecError(picker.at(path), text, "it must be a whole number, 0 or more")
    if int(text) > MOST_RELAUNCHES:
        picker.note(f"{picker.at(path)}: {text} is more than {MOST_RELAUNCHES}, which is used, as DLRover does")
    limit = str(min(int(text), MOST_RELAUNCHES))
    entries: Entries = {}
    for cause in ("hardware", "software", "out_of_memory", "unknown"):
        entries |= picker.entry(f"relaunch.{cause}", limit, path)
    return entries
