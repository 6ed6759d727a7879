"""Which format a job file is in."""

from __future__ import annotations

from dataclasses import replace

from holdfast.errors import SpecError
from holdfast.spec import yaml_tree
from holdfast.spec.convert.ascend import convert_ascend
from holdfast.spec.convert.elastic import convert_elastic
from holdfast.spec.convert.picking import Picker
from holdfast.spec.convert.volcano import convert_volcano
from holdfast.spec.job_file import Draft, read_job_file

CONVERTERS = {"ElasticJob": convert_elastic, "AscendJob": convert_ascend, "Job": convert_volcano}


def read_draft(path: str) -> Draft:
    documents = yaml_tree.read_trees(path)
    if not any("kind" in tree.items for tree in documents):
        if len(documents) > 1:
            at = f"{path}, line {documents[1].line}"
            raise SpecError(at, "a second document", "a file has one job")
        return read_job_file(documents[0], name=path)
    jobs = [tree for tree in documents if _kind(tree) in CONVERTERS]
    if len(jobs) != 1:
        kinds = ", ".join(_kind(tree) or "none" for tree in documents)
        lines = [tree.lines["kind"] for tree in jobs or documents if "kind" in tree.lines]
        raise SpecError(
            f"{path}, line {lines[-1]}: kind", kinds, f"there must be one of {', '.join(CONVERTERS)}; or no kind at all"
        )
    picker = Picker(jobs[0], file=path)
    for other in documents:
        if other is not jobs[0]:
            picker.note(f"{path}, line {other.line}: the document of kind {_kind(other) or 'none'} does nothing here")
    draft = CONVERTERS[_kind(jobs[0])](picker)
    return replace(draft, notes=tuple(picker.notes()))


def _kind(tree: yaml_tree.Mapping) -> str:
    kind = tree.items.get("kind")
    return kind.text if isinstance(kind, yaml_tree.Scalar) else ""
