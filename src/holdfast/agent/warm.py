"""`python -u warm.py SOCKET READER WRITER SETTINGS`: the warm interpreter, from which workers are forked.

It imports what the script will need, proves that it is safe to fork, and then does three things: fork on request,
reap and report, and sweep. It has one thread, no event loop and no sockets but one, so a fork of it is clean. If
it is not safe to fork, it forks and executes a fresh interpreter instead, and says why.

Run as a file and not with `-m`: then nothing in the current directory can be imported by accident.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

import ast
import dataclasses
import gc
import importlib.util
import os
import select
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import msgspec

from holdfast.agent import preload, requests, store
from holdfast.agent.environment import worker_args
from holdfast.agent.lifeline import Lifeline
from holdfast.agent.probe import Task, run_probe
from holdfast.agent.processes import become_subreaper, die_with_parent, kill_below, kill_marked, signal_groups
from holdfast.agent.script import Role, play, set_title
from holdfast.spec.job import Command

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
"""Blocked here, and so in a fork until it is ready for them: one that comes sooner is not lost."""

AGENT_DIED = signal.SIGRTMIN + 10
"""The kernel's word while we import, which takes long. What is imported has no use for it."""


@dataclass
class Interpreter:
    """The state of the warm interpreter."""

    agent: socket.socket
    lifeline: Lifeline
    settings: requests.Settings
    cold_reason: str = ""
    wake: int = -1
    workers: set[int] = field(default_factory=set)
    stores: dict[int, requests.Store] = field(default_factory=dict)
    probes: set[int] = field(default_factory=set)

    def send(self, reply: requests.Reply) -> None:
        try:
            self.agent.send(msgspec.msgpack.encode(reply))
        except (BrokenPipeError, ConnectionResetError):
            self.end()

    def end(self) -> NoReturn:
        """The agent is gone, and so is the reason for everything below us."""
        kill_below()
        kill_marked(self.settings.marker)
        os._exit(0)


def is_abandoned(agent: socket.socket) -> bool:
    """Whether the agent has died already: then the kernel tells nobody of it any more."""
    try:
        return not agent.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def warm_up(settings: requests.Settings) -> str:
    """Import what the script needs; why workers must be started cold, or an empty string."""
    if settings.cold_reason or not settings.warm:
        return settings.cold_reason or requests.ASKED_FOR
    path = preload.find_script(settings.command.how, settings.command.target)
    if path is None:
        return "the command is not a Python source file"
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError) as error:
        return f"{path} cannot be read: {error}"
    if variable := preload.environment_written(tree):
        return f"{path.name} sets {variable}, which is read when torch is imported"
    before = preload.open_sockets()
    torch = () if preload.is_plain(tree) else preload.TORCH
    names = dict.fromkeys([*torch, *preload.third_party(preload.imported_names(tree))])
    if reason := preload.import_ahead(names):
        return reason
    if preload.open_sockets() - before:
        return "an import opened a socket"
    directory = Path.cwd() if settings.command.how == "module" else path.resolve().parent
    if hidden := preload.hidden_module(directory, sys.modules):
        return f"{directory / hidden} hides a module that is loaded already"
    return ""


def serve(it: Interpreter) -> Role | requests.Store | Task:
    """Serve the agent; returns only in a fork, with what the fork is to become."""
    wake_r, it.wake = os.pipe()
    os.set_blocking(wake_r, False)
    os.set_blocking(it.wake, False)
    signal.set_wakeup_fd(it.wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(it.agent, select.POLLIN)
    poll.register(wake_r, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if wake_r in ready:
            os.read(wake_r, 4096)
            reap(it)
        if it.agent.fileno() not in ready:
            continue
        try:
            data, fds, _, _ = socket.recv_fds(it.agent, requests.MAX_BYTES, 4)
        except ConnectionResetError:
            # It died before it had read what we sent.
            it.end()
        if not data:
            it.end()
        match msgspec.msgpack.decode(data, type=requests.Request):
            case requests.Fork() as request:
                if fork_worker(it, request, fds):
                    os.close(wake_r)
                    return become(it, request)
            case requests.Store() as request:
                if fork_store(it, request):
                    os.close(wake_r)
                    return msgspec.structs.replace(request, listen_fd=fds[0])
            case requests.Probe() as request:
                if fork_probe(it, request):
                    os.close(wake_r)
                    return become_probe(it, request, fds)
            case requests.Signal() as request:
                signal_groups(it.workers, request.number)
            case requests.Sweep():
                sweep(it)
        for fd in fds:
            os.close(fd)


def fork_worker(it: Interpreter, request: requests.Fork, fds: list[int]) -> bool:
    """True in the child, with its standard streams in place."""
    pid = os.fork()
    if pid != 0:
        it.workers.add(pid)
        it.send(requests.Started(request.local_rank, pid))
        return False
    detach(it)
    streams = list(fds)
    for target, given in ((1, request.has_stdout), (2, request.has_stderr)):
        if given:
            fd = streams.pop(0)
            os.dup2(fd, target)
            os.close(fd)
    return True


def fork_store(it: Interpreter, request: requests.Store) -> bool:
    pid = os.fork()
    if pid != 0:
        it.stores[pid] = request
        return False
    detach(it)
    return True


def fork_probe(it: Interpreter, request: requests.Probe) -> bool:
    pid = os.fork()
    if pid != 0:
        it.probes.add(pid)
        it.send(requests.ProbeStarted(request.check_id, request.round, pid))
        return False
    detach(it)
    return True


def become_probe(it: Interpreter, request: requests.Probe, fds: list[int]) -> Task:
    """What a forked probe is; a cold one is executed right here and does not return."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    argv = request.argv(sys.executable, tuple(fds))
    if "torch" not in sys.modules:
        for fd in fds:
            os.set_inheritable(fd, True)
        execute(tuple(argv), it.settings.env, "")
    os.environ.clear()
    os.environ.update(it.settings.env)
    set_title(argv)
    return Task(request, *fds)


def detach(it: Interpreter) -> None:
    """Forget, in a fork, that this was the warm interpreter."""
    signal.set_wakeup_fd(-1)
    os.close(it.wake)
    it.agent.close()
    os.setsid()
    it.lifeline.tie()
    for number in (signal.SIGCHLD, *PASSED_ON):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)


def become(it: Interpreter, request: requests.Fork) -> Role:
    """What a forked worker is; a cold one is executed right here and does not return."""
    settings, command = it.settings, it.settings.command
    env = {**settings.env, **request.env}
    args = worker_args(command.args, local_rank=request.local_rank)
    argv = tuple(dataclasses.replace(command, args=args).argv())
    if it.cold_reason:
        execute(argv, env, request.error_file)
    return Role(
        argv,
        command.how,
        command.target,
        args,
        env,
        request.error_file,
        settings.numa_binding,
        request.local_rank,
    )


def execute(argv: tuple[str, ...], env: dict[str, str], error_file: str) -> NoReturn:
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        message = f"{argv[0]}: {error.strerror}"
        sys.stderr.write(f"holdfast: cannot run {message}\n")
        if error_file:
            Path(error_file).write_text(message)
        os._exit(127)


def keep_store(request: requests.Store, settings: requests.Settings, *, warm: bool) -> NoReturn:
    """Be the store through which the workers of one generation find each other."""
    if not warm:
        if importlib.util.find_spec("torch") is None:
            os._exit(requests.NO_TORCH)
        os.set_inheritable(request.listen_fd, True)
        argv = [sys.executable, "-P", "-m", store.__name__, str(request.port), str(request.listen_fd)]
        if expects_nobody(settings.command):
            # To be one takes seconds of a core.
            set_title(argv)
            select.select([request.listen_fd], [], [])
        os.execv(sys.executable, argv)
    store.keep(port=request.port, listen_fd=request.listen_fd)


def expects_nobody(command: Command) -> bool:
    """Whether the script has no use for a store, as far as can be seen."""
    path = preload.find_script(command.how, command.target)
    try:
        return path is not None and preload.is_plain(ast.parse(path.read_bytes()))
    except (SyntaxError, ValueError, OSError):
        return False


def reap(it: Interpreter) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        note_exit(it, pid, status)


def note_exit(it: Interpreter, pid: int, status: int) -> None:
    if pid in it.workers:
        it.workers.remove(pid)
        it.send(requests.Exited(pid, os.waitstatus_to_exitcode(status)))
    elif pid in it.probes:
        it.probes.remove(pid)
        it.send(requests.ProbeExited(pid, os.waitstatus_to_exitcode(status)))
    elif store := it.stores.pop(pid, None):
        it.send(requests.StoreExited(store.generation, os.waitstatus_to_exitcode(status)))


def sweep(it: Interpreter) -> None:
    it.stores.clear()
    reaped: dict[int, int] = {}
    clean = kill_below(reaped=reaped)
    for pid, status in reaped.items():
        note_exit(it, pid, status)
    reap(it)
    it.send(requests.Swept(clean))


def main() -> None:
    agent = socket.socket(fileno=int(sys.argv[1]))
    become_subreaper()
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    with open(int(sys.argv[4]), "rb") as memory:
        memory.seek(0)
        settings = msgspec.msgpack.decode(memory.read(), type=requests.Settings)
    it = Interpreter(agent, Lifeline(int(sys.argv[2]), int(sys.argv[3])), settings)
    signal.signal(AGENT_DIED, lambda *_: it.end())
    die_with_parent(AGENT_DIED)
    if is_abandoned(agent):
        it.end()
    # Nothing that is imported is garbage, and looking for it takes a fifth of the time.
    gc.disable()
    it.cold_reason = warm_up(settings)
    gc.freeze()
    gc.enable()
    # From here on the end of the socket is what tells us.
    die_with_parent(0)
    signal.signal(AGENT_DIED, signal.SIG_DFL)
    it.send(requests.Ready(it.cold_reason, importlib.util.find_spec("torch") is not None))
    part = serve(it)
    if isinstance(part, requests.Store):
        keep_store(part, settings, warm="torch" in sys.modules)
    if isinstance(part, Task):
        run_probe(part)
    play(part)


if __name__ == "__main__":
    main()
