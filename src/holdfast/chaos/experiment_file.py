"""Reading an experiment: YAML in, a value out. An error names the file, the line, the field and what is valid."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.resources import files
from typing import Any

from holdfast.chaos.expectations import EXPECTATIONS
from holdfast.chaos.experiment import (
    PACE_MS,
    SIZES,
    Action,
    After,
    End,
    Expectation,
    Experiment,
    Given,
    Negative,
    Scale,
    Size,
    Strike,
)
from holdfast.chaos.reading import Reader
from holdfast.errors import SpecError
from holdfast.spec import yaml_tree
from holdfast.spec.job_file import Entry, read_job_file

ACTS = ("fault", "scale", "slots", "end")


def names() -> list[str]:
    """Every experiment that is shipped."""
    return sorted(path.name.removesuffix(".yaml") for path in _shipped().iterdir() if path.name.endswith(".yaml"))


def load_experiment(name: str, *, size: Size) -> Experiment:
    """A shipped experiment by its name, or one in a file of your own."""
    if name.endswith((".yaml", ".yml")):
        return read_experiment(yaml_tree.read_trees(name)[0], name=name, size=size)
    if name not in names():
        near = get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        raise SpecError("NAME", name, f"{hint} is: {', '.join(names())}; or give a file that ends in .yaml")
    file = f"{name}.yaml"
    return read_experiment(yaml_tree.parse_trees((_shipped() / file).read_bytes(), name=file)[0], name=file, size=size)


def _shipped() -> Any:  # noqa: ANN401  its type depends on the version of Python
    return files("holdfast.chaos") / "experiments"


def read_experiment(tree: yaml_tree.Mapping, *, name: str, size: Size) -> Experiment:
    read = Reader(name, size)
    read.refuse_others(tree, "", ("says", "root", "instead", "given", "when", "then", "negative"))
    title = name.rpartition("/")[2].rpartition(".")[0]
    return Experiment(
        name=title,
        says=read.text(tree, "says"),
        root=read.text(tree, "root", default=""),
        instead=read.text(tree, "instead", default=""),
        given=_given(read, read.mapping(tree, "given")),
        when=_actions(read, tree, "when"),
        then=tuple(_expectation(read, item, f"then[{n}]") for n, item in enumerate(read.items(tree, "then"))),
        negative=_negative(read, read.mapping(tree, "negative")),
    )


def _given(read: Reader, tree: yaml_tree.Mapping) -> Given:
    read.refuse_others(tree, "given", ("job", "pace_ms", "patience", *SIZES))
    job = {**_job(read, tree, "job"), **_job(read, tree, read.size)}
    _job(read, tree, next(size for size in SIZES if size != read.size))
    return Given(
        job,
        pace_ms=read.number(tree, "pace_ms", within="given", default=PACE_MS),
        patience_s=read.number(tree, "patience", within="given", default=120.0),
    )


def _job(read: Reader, tree: yaml_tree.Mapping, key: str) -> dict[str, Entry]:
    if key not in tree.items:
        return {}
    draft = read_job_file(read.mapping(tree, key), name=read.name)
    roles = list(draft.roles.values())
    if len(roles) > 1:
        raise SpecError(roles[1].source, ", ".join(draft.roles), "the job of an experiment has one role")
    return {**draft.entries, **(roles[0].entries if roles else {})}


def _actions(read: Reader, tree: yaml_tree.Mapping, shown: str) -> tuple[Action, ...]:
    return tuple(_action(read, item, f"{shown}[{n}]") for n, item in enumerate(read.items(tree, "when")))


def _action(read: Reader, tree: yaml_tree.Tree, shown: str) -> Action:
    fields = read.as_mapping(tree, shown)
    read.refuse_others(fields, shown, ("after", "target", "with", "for", *ACTS))
    acts = [key for key in ACTS if key in fields.items]
    if len(acts) != 1:
        raise SpecError(read.at(fields.line, shown), " and ".join(acts), f"it must have one of {', '.join(ACTS)}")
    after = (
        _after(read, read.mapping(fields, "after", within=shown), f"{shown}.after")
        if "after" in fields.items
        else After()
    )
    if acts != ["fault"]:
        for key in ("target", "with", "for"):
            if key in fields.items:
                raise SpecError(read.at(fields.lines[key], f"{shown}.{key}"), key, "it belongs to a fault")
    match acts[0]:
        case "fault":
            return Action(after, _strike(read, fields, shown))
        case "scale":
            return Action(after, Scale(nodes=int(read.number(fields, "scale", within=shown))))
        case "slots":
            return Action(after, Scale(slots=int(read.number(fields, "slots", within=shown))))
    read.choice(fields, "end", ("training",), within=shown)
    return Action(after, End())


def _after(read: Reader, tree: yaml_tree.Mapping, shown: str) -> After:
    read.refuse_others(tree, shown, ("event", "steps", "seconds"))
    event: dict[str, str] = {}
    if "event" in tree.items:
        event = read.texts(read.mapping(tree, "event", within=shown), f"{shown}.event")
        if "kind" not in event:
            raise SpecError(
                read.at(tree.lines["event"], f"{shown}.event"), "", "it must have a kind, as in docs/events.md"
            )
    steps = int(read.number(tree, "steps", within=shown, default=0.0))
    return After(event, steps, read.number(tree, "seconds", within=shown, default=0.0))


def _strike(read: Reader, tree: yaml_tree.Mapping, shown: str) -> Strike:
    parameters = read.texts(read.mapping(tree, "with", within=shown), f"{shown}.with") if "with" in tree.items else {}
    for_s = read.number(tree, "for", within=shown) if "for" in tree.items else None
    return Strike(read.text(tree, "fault", within=shown), read.text(tree, "target", within=shown), parameters, for_s)


def _expectation(read: Reader, tree: yaml_tree.Tree, shown: str) -> Expectation:
    fields = read.as_mapping(tree, shown)
    if len(fields.items) != 1:
        raise SpecError(read.at(fields.line, shown), ", ".join(fields.items), "it must be one expectation")
    name, value = next(iter(fields.items.items()))
    if name not in EXPECTATIONS:
        near = get_close_matches(name, EXPECTATIONS, n=1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        raise SpecError(read.at(fields.line, f"{shown}.{name}"), name, f"{hint} is: {', '.join(EXPECTATIONS)}")
    value = read.of_size(value, f"{shown}.{name}")
    return Expectation(name, EXPECTATIONS[name].kind(read, value, f"{shown}.{name}"))


def _negative(read: Reader, tree: yaml_tree.Mapping) -> Negative:
    read.refuse_others(tree, "negative", ("says", "job", "when", "fails", "patience"))
    fails = read.words(tree, "fails", within="negative")
    for name in fails:
        if name not in EXPECTATIONS:
            valid = f"there is: {', '.join(EXPECTATIONS)}"
            raise SpecError(read.at(tree.lines["fails"], "negative.fails"), name, valid)
    if not fails:
        raise SpecError(read.at(tree.line, "negative.fails"), "", "it must name what is not met, as [exit_code]")
    return Negative(
        says=read.text(tree, "says", within="negative"),
        job=_job(read, tree, "job"),
        when=_actions(read, tree, "negative.when") if "when" in tree.items else (),
        fails=tuple(fails),
        patience_s=read.number(tree, "patience", within="negative") if "patience" in tree.items else None,
    )
