"""workload.py, which also tells NVRx after every step that its rank is alive."""

from pathlib import Path

import task
import workload
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient


class HeartbeatTrace(task.Trace):
    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(folder, rank)
        self._monitor = RankMonitorClient()
        self._monitor.init_workload_monitoring()

    def finished(self, step: int) -> None:
        super().finished(step)
        self._monitor.send_heartbeat()


if __name__ == "__main__":
    workload.main(make_trace=HeartbeatTrace)
