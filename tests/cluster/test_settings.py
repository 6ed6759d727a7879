"""Settings at work: servers, settings that differ, windows, rank tables, addresses, heartbeats switched off."""

from __future__ import annotations

import json
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from clusters import SCRIPTS, START_S, StartCluster, end_of
from jobs import kill

pytestmark = pytest.mark.timeout(400)

QUICK = {"MS_RETRY_INTERVAL_LOWER": 0.2, "MS_RETRY_INTERVAL_UPPER": 0.4}


def test_servers_join_with_ranks_of_their_own_and_other_settings_are_refused(
    cluster: StartCluster, tmp_path: Path
) -> None:
    it = cluster(1, MS_SERVER_NUM=2, **QUICK)
    (it.directory / "go").touch()
    logs = tmp_path / "logs"
    scheduler, worker = it.scheduler(HOLDFAST_LOG_DIR=logs), it.worker(0)
    servers = [it.server(1), it.server(0, HOLDFAST_LOG_DIR=logs)]
    stranger = it.server(2, MS_WORKER_NUM=3, MS_NODE_TIMEOUT=60)
    assert stranger.wait(within_s=START_S) != 0
    assert "HOLDFAST_WORKER_NUM is 3 here and 1 at the scheduler" in stranger.err
    assert "HOLDFAST_NODE_TIMEOUT is 60 here and 30 at the scheduler" in stranger.err
    assert worker.wait(within_s=START_S) == 0, worker.story()
    assert [server.wait(within_s=30) for server in servers] == [0, 0], servers[0].story()
    assert scheduler.wait(within_s=30) == 0
    assert end_of(worker)[:3] == (0, 0, 1), "servers are no part of the world"
    assert "server 1 of 2" in servers[0].out
    assert "this process is a parameter server and does not train" in servers[0].out
    assert "server 0 of 2" in (logs / "server_0.log").read_text()
    assert (logs / "scheduler_sched.log").exists()


def test_an_id_is_free_at_once_when_its_holder_is_dead_and_a_scheduler_keeps_its_settings(
    cluster: StartCluster, tmp_path: Path
) -> None:
    it = cluster(
        1,
        MS_SERVER_NUM=2,
        MS_ENABLE_RECOVERY=1,
        MS_RECOVERY_PATH=tmp_path,
        MS_TOPO_TIMEOUT=20,
        MS_NODE_TIMEOUT=-1,
        **QUICK,
    )
    # A scheduler that imports torch may be away for longer than the others wait for it.
    it.script = SCRIPTS / "serve.py"
    scheduler, first = it.scheduler(), it.server(0)
    first.wait_for_output("0 of 1 nodes are here, 1 of 2 servers", within_s=START_S)
    second = it.server(0)
    second.wait_for_output("node id '0' is held by pid", within_s=START_S)
    began = time.monotonic()
    kill(first.pid)
    first.process.wait()
    second.wait_for_output("waiting: 0 of 1 nodes are here, 1 of 2 servers", within_s=30)
    assert time.monotonic() - began < 10, "not the window of 30 s"
    kill(scheduler.pid)
    scheduler.process.wait()
    other = it.scheduler(MS_WORKER_NUM=2)
    assert other.wait(within_s=START_S) != 0
    assert "HOLDFAST_WORKER_NUM is 2 now and 1 there" in other.err
    scheduler = it.scheduler()
    for process in (scheduler, second):
        assert process.wait(within_s=START_S) != 0
        assert "no world within 20 s" in process.err
        assert "here: none; 1 missing; servers missing: 1" in process.err


def test_a_silent_holder_loses_its_id_after_the_window_and_nobody_else_notices(
    cluster: StartCluster, tmp_path: Path
) -> None:
    window_s = 5.0
    it = cluster(
        1, MS_SERVER_NUM=2, MS_ENABLE_RECOVERY=1, MS_RECOVERY_PATH=tmp_path, HOLDFAST_REJECTION_WINDOW=window_s, **QUICK
    )
    scheduler, holder, other = it.scheduler(), it.server(0), it.server(1)
    for server in (holder, other):
        server.wait_for_output("waiting: 0 of 1 nodes are here", within_s=START_S)
    second = it.server(0)
    second.wait_for_output(f"node id '0' is held by pid {holder.pid}", within_s=START_S)
    story = it.follow()
    silent_at = datetime.now(UTC)
    kill(holder.pid, signal.SIGSTOP)
    taken_at = story.when("node_joined", node="server-0", pid=second.pid)
    assert window_s - 1 < (taken_at - silent_at).total_seconds() < window_s + 3, "counted from the last heartbeat"
    kill(holder.pid, signal.SIGCONT)
    assert holder.wait(within_s=30) != 0
    assert f"pid {second.pid} on " in holder.err
    assert "has taken node id '0'" in holder.err
    num_refusals = second.err.count("is held by")
    kill(scheduler.pid)
    scheduler.process.wait()
    (it.directory / "go").touch()
    everybody = [it.scheduler(), it.worker(0), second, other]
    assert [process.wait(within_s=START_S) for process in everybody] == [0, 0, 0, 0], second.story()
    assert second.err.count("is held by") == num_refusals, "whoever reconnects is not refused"
    assert "refused this node" not in other.err


def test_without_a_window_the_last_to_come_wins_and_the_other_ends(cluster: StartCluster, tmp_path: Path) -> None:
    it = cluster(
        1, MS_SERVER_NUM=1, MS_ENABLE_RECOVERY=1, MS_RECOVERY_PATH=tmp_path, HOLDFAST_REJECTION_WINDOW=0, **QUICK
    )
    it.scheduler()
    first = it.server(0)
    first.wait_for_output("0 of 1 nodes are here", within_s=START_S)
    second = it.server(0)
    assert first.wait(within_s=START_S) != 0
    assert f"pid {second.pid} on " in first.err
    assert "has taken node id '0'" in first.err
    assert second.process.poll() is None


def test_a_rank_table_goes_by_the_addresses_that_workers_were_given(cluster: StartCluster, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    servers = [{"server_id": f"127.0.0.{n}", "device": [{"rank_id": str(3 - n)}]} for n in (2, 3)]
    table.write_text(json.dumps({"server_list": servers}))
    it = cluster(2, RANK_TABLE_FILE=table, **QUICK)
    (it.directory / "go").touch()
    scheduler = it.scheduler()
    workers = [it.worker(node, MS_WORKER_IP=address) for node, address in (("a", "127.0.0.2"), ("b", "127.0.0.3"))]
    assert [worker.wait(within_s=START_S) for worker in workers] == [0, 0], scheduler.story()
    assert [end_of(worker)[0] for worker in workers] == [1, 0], "by address and by id it would be the other way round"
    assert [end_of(worker)[1] for worker in workers] == [1, 0], "one machine, whatever its addresses"
    assert scheduler.wait(within_s=30) == 0


def test_without_heartbeats_a_dead_worker_is_nobodys_business(cluster: StartCluster) -> None:
    it = cluster(2, MS_DISABLE_HEARTBEAT=1, MS_NODE_TIMEOUT=3)
    scheduler, workers = it.scheduler(), [it.worker(rank) for rank in range(2)]
    it.wait_for_hold(2)
    kill(workers[1].pid)
    workers[1].process.wait()
    time.sleep(3 * 2)
    assert scheduler.process.poll() is None, scheduler.story()
    assert workers[0].process.poll() is None, workers[0].story()
    assert "lost" not in workers[0].err
