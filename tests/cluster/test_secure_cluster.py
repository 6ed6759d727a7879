"""The secure channel of a cluster that forms itself, turned on as MindSpore's scripts do it."""

from __future__ import annotations

from pathlib import Path

from certs import CLIENT_PASSWORD, PASSWORDS, SERVER_PASSWORD, Files
from clusters import SCRIPT, START_S, StartCluster, end_of

TURN_ON = f"""
import runpy
from holdfast.compat import set_ps_context
set_ps_context(config_file_path=%r, enable_ssl=True, client_password={CLIENT_PASSWORD!r},
               server_password={SERVER_PASSWORD!r})
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""
INIT = f"""
import functools, runpy
import holdfast
holdfast.init = functools.partial(holdfast.init, tls=%r)
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


def test_a_cluster_with_tls_trains_and_turns_a_plain_worker_away(cluster: StartCluster, tmp_path: Path) -> None:
    files = Files(tmp_path / "tls")
    it = cluster(2)
    it.script = it.directory / "secure.py"
    it.script.write_text(TURN_ON % files.config)
    scheduler, first = it.scheduler(), it.worker()
    first.wait_for_output("waiting: 1 of 2 nodes are here", within_s=START_S)
    # As a server, since that loads no torch.
    plain = it.server(MS_SERVER_NUM=1)
    assert plain.wait(within_s=START_S) != 0
    assert "speaks TLS only" in plain.err
    (it.directory / "go").touch()
    it.script = it.directory / "init.py"
    it.script.write_text(INIT % files.config)
    second = it.worker(**PASSWORDS)
    assert [first.wait(within_s=START_S), second.wait(within_s=START_S)] == [0, 0], first.story()
    assert scheduler.wait(within_s=30) == 0, scheduler.story()
    assert sorted(end_of(worker)[0] for worker in (first, second)) == [0, 1]
    for process in it.started:
        assert SERVER_PASSWORD not in process.out + process.err
        assert CLIENT_PASSWORD not in process.out + process.err
