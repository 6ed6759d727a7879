"""What a process learns of its cluster from the environment, and the errors that name the variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import SpecError
from holdfast.spec.cluster import VARIABLES, Role, load_cluster

GOOD = {"MS_ROLE": "MS_WORKER", "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "8118", "MS_WORKER_NUM": "8"}


def test_without_a_role_there_is_no_cluster():
    assert load_cluster({}) is None
    assert load_cluster({"MS_SCHED_HOST": "127.0.0.1"}) is None


def test_defaults_are_those_of_the_original():
    spec = load_cluster(GOOD)
    assert spec is not None
    assert (spec.role, spec.host, spec.port, spec.num_workers) == (Role.WORKER, "127.0.0.1", 8118, 8)
    assert (spec.recovery, spec.topo_timeout_s, spec.node_timeout_s) == (False, 1800.0, 30.0)
    assert not spec.node_id.isdecimal(), "a number would be its rank"
    assert spec.node_id != load_cluster(GOOD).node_id, "a name is made up for each process"


@pytest.mark.parametrize("name", [name for name in VARIABLES if name not in ("recovery", "recovery_path")])
def test_every_variable_has_a_name_of_ours_which_wins_and_says_so(name: str):
    variable = VARIABLES[name]
    values = {"role": ("scheduler", "MS_WORKER"), "host": ("::1", "127.0.0.1")}
    ours, theirs = values.get(name, ("2000", "3000"))
    both = load_cluster({**GOOD, variable.ours: ours, variable.theirs: theirs})
    alone = load_cluster({**GOOD, variable.theirs: "", variable.ours: ours})
    assert both is not None
    assert alone is not None
    assert both.notes == (f"{variable.ours}={ours} counts, not {variable.theirs}={theirs}",)
    assert alone.notes == ()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"MS_ROLE": "FOO"}, "MS_ROLE: 'FOO'"),
        ({"MS_ROLE": "MS_PSERVER"}, "MS_ROLE: 'MS_PSERVER'"),
        ({"MS_SCHED_HOST": ""}, r"HOLDFAST_SCHED_HOST \(or MS_SCHED_HOST\)"),
        ({"MS_SCHED_HOST": "nowhere"}, "MS_SCHED_HOST: 'nowhere'"),
        ({"MS_SCHED_PORT": ""}, "MS_SCHED_PORT"),
        ({"MS_SCHED_PORT": "0"}, "MS_SCHED_PORT: '0'"),
        ({"MS_SCHED_PORT": "80"}, "MS_SCHED_PORT: '80'"),
        ({"MS_SCHED_PORT": "70000"}, "MS_SCHED_PORT: '70000'"),
        ({"MS_SCHED_PORT": "abc"}, "MS_SCHED_PORT: 'abc'"),
        ({"MS_WORKER_NUM": ""}, "MS_WORKER_NUM"),
        ({"MS_WORKER_NUM": "-1"}, "MS_WORKER_NUM: '-1'"),
        ({"MS_TOPO_TIMEOUT": "soon"}, "MS_TOPO_TIMEOUT: 'soon'"),
        ({"MS_ENABLE_RECOVERY": "yes"}, "MS_ENABLE_RECOVERY: 'yes'"),
        ({"MS_ENABLE_RECOVERY": "1"}, "HOLDFAST_RECOVERY_PATH: ''"),
        ({"MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PATH": "/proc/none"}, "MS_RECOVERY_PATH: '/proc/none'"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_variable(changes: dict[str, str], named: str):
    with pytest.raises(SpecError, match=named):
        load_cluster({**GOOD, **changes})


def test_a_missing_recovery_path_is_made(tmp_path: Path):
    spec = load_cluster({**GOOD, "MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PATH": str(tmp_path / "a" / "b")})
    assert spec is not None
    assert spec.recovery
    assert Path(spec.recovery_path).is_dir()
