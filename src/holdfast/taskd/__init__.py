"""TaskD's interface, by its own names: `from holdfast.taskd import ...` in place of `from taskd.api import ...`.

Every function answers True, or False and a line in the log that names what is wrong.
"""

from __future__ import annotations

from holdfast.taskd.agent import init_taskd_agent, register_func, start_taskd_agent
from holdfast.taskd.manager import init_taskd_manager, start_taskd_manager
from holdfast.taskd.proxy import destroy_taskd_proxy, init_taskd_proxy
from holdfast.taskd.worker import destroy_taskd_worker, init_taskd_worker, start_taskd_worker
from holdfast.version import __version__

__all__ = [
    "__version__",
    "destroy_taskd_proxy",
    "destroy_taskd_worker",
    "init_taskd_agent",
    "init_taskd_manager",
    "init_taskd_proxy",
    "init_taskd_worker",
    "register_func",
    "start_taskd_agent",
    "start_taskd_manager",
    "start_taskd_worker",
]
