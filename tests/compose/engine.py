"""The Docker engine: the one that answers, or one of our own that leaves nothing behind."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pvebench.errors import MachineError, ToolFailed

START_SECONDS = 60.0
STOP_SECONDS = 60.0
CLONE_NEWNET = 0x40000000
HOST_NETWORK = ("--iptables=false", "--ip6tables=false", "--ip-forward=false")
"""Building leaves the host's firewall and forwarding as they are."""


class NoEngine(MachineError):
    """No Docker engine answers, and none can be started here."""


class Docker:
    """The docker program, talking to one engine.

    Attributes:
        environment: what programs need in theirs to talk to the same engine.
        ours: whether the engine was started here, and ends here.
    """

    def __init__(self, environment: Mapping[str, str], *, ours: bool) -> None:
        self.environment = dict(environment)
        self.ours = ours

    def __call__(self, *arguments: str, seconds: float = 120.0) -> str:
        """Run `docker …` and return its output.

        Raises:
            ToolFailed: it did not work, or not in time.
        """
        return run(["docker", *arguments], self.environment, seconds=seconds)

    def succeeds(self, *arguments: str, seconds: float = 120.0) -> bool:
        """Whether `docker …` works."""
        try:
            self(*arguments, seconds=seconds)
        except ToolFailed:
            return False
        return True


def run(
    command: list[str],
    environment: Mapping[str, str],
    *,
    seconds: float = 120.0,
    directory: Path | None = None,
) -> str:
    """Run a program to its end and return its output.

    Raises:
        ToolFailed: it did not work, or not in time.
    """
    name = " ".join(command[:3])
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"{name} … took longer than {seconds:.0f} s") from error
    if done.returncode != 0:
        raise ToolFailed(
            f"{name} … failed with exit code {done.returncode}",
            cause=(done.stdout + done.stderr).strip()[-3000:],
        )
    return done.stdout


def compose_program(docker: Docker) -> list[str]:
    """Return the compose to use: COMPOSE names one, else the plugin, else docker-compose 1.29.

    Raises:
        NoEngine: there is neither.
    """
    named = shlex.split(os.environ.get("COMPOSE", ""))
    if named:
        return named
    if docker.succeeds("compose", "version"):
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise NoEngine(
        "neither docker compose nor docker-compose is installed", next_step="install docker-compose"
    )


class Engine:
    """Where images are made, and where containers run.

    An engine that answers is used for both. One of our own is started for each: with the host's
    network to fetch packages, then in a network of its own, so that neither this host's firewall
    nor its ports have anything to do with the stack, and nothing of it is left afterwards.

    Args:
        directory: files of an engine of our own; images that are there already are used.

    Raises:
        NoEngine: none answers, and none can be started here.
    """

    def __init__(self, directory: Path) -> None:
        if shutil.which("docker") is None:
            raise NoEngine("the program docker is not installed", next_step="install docker.io")
        self._directory = directory
        self._given = Docker(os.environ, ours=False)
        self._answers = self._given.succeeds("version", seconds=20)
        self._program = "" if self._answers else startable()
        compose_program(self._given)
        print(
            "Docker:", "an engine answers" if self._answers else "an engine of its own is started"
        )

    @contextmanager
    def building(self) -> Iterator[Docker]:
        """Give an engine whose builds reach the network."""
        if self._answers:
            yield self._given
            return
        with started(self._program, self._directory, *HOST_NETWORK, alone=False) as (docker, _):
            yield docker

    @contextmanager
    def running(self) -> Iterator[Docker]:
        """Give an engine; its published ports are where this thread is while inside."""
        if self._answers:
            yield self._given
            return
        running = started(self._program, self._directory, alone=True)
        with running as (docker, process), network_of(process):
            yield docker


def startable() -> str:
    """Return the engine's program.

    Raises:
        NoEngine: there is none, or we may not start it.
    """
    program = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None or os.geteuid() != 0:
        why = "there is no dockerd" if program is None else "only root may start dockerd"
        raise NoEngine(
            f"no Docker engine answers, and {why}",
            next_step="start Docker, or run this as root with docker.io installed",
        )
    return program


@contextmanager
def started(
    program: str, directory: Path, *options: str, alone: bool
) -> Iterator[tuple[Docker, int]]:
    """Run an engine with its files in `directory`; give it and its process.

    Args:
        alone: in a network of its own, without a way out.
    """
    directory.mkdir(parents=True, exist_ok=True)
    settings = directory / "daemon.json"
    settings.write_text("{}\n", "utf-8")
    address = f"unix://{directory}/docker.sock"
    # Its own mounts and processes: whatever happens, nothing stays mounted or running. Mounts are
    # shared among its containers, as systemd has it on a real host; node_exporter needs that.
    shell = 'mount --make-rshared / && { ip link set lo up || true; } && exec "$@"'
    command = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        *(["--net"] if alone else []),
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        shell,
        "sh",
        program,
        f"--config-file={settings}",
        f"--data-root={directory}/data",
        f"--exec-root={directory}/exec",
        f"--pidfile={directory}/docker.pid",
        f"--host={address}",
        "--bridge=none",
        "--log-level=warn",
        *options,
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    docker = Docker({**os.environ, "DOCKER_HOST": address}, ours=True)
    try:
        wait_until_it_answers(docker, process, directory / "log")
        yield docker, children(process.pid)[0]
    finally:
        end(process)


@contextmanager
def network_of(process: int) -> Iterator[None]:
    """Be in the network of another process while inside; this thread and what it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    mine = os.open("/proc/self/ns/net", os.O_RDONLY)
    other = os.open(f"/proc/{process}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(other, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        yield
    finally:
        libc.setns(mine, CLONE_NEWNET)
        os.close(mine)
        os.close(other)


def wait_until_it_answers(docker: Docker, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a new engine.

    Raises:
        NoEngine: it ended, or does not answer.
    """
    deadline = time.monotonic() + START_SECONDS
    while not docker.succeeds("version", seconds=20):
        if process.poll() is not None or time.monotonic() > deadline:
            raise NoEngine(
                "dockerd was started and does not answer",
                cause=log.read_text("utf-8", "replace")[-2000:],
            )
        time.sleep(0.5)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the engine to stop; what does not stop is killed with all that it started."""
    for child in children(process.pid):
        subprocess.run(["kill", "-TERM", str(child)], check=False)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def children(process: int) -> list[int]:
    """Return the direct children of a process."""
    text = Path(f"/proc/{process}/task/{process}/children").read_text("utf-8")
    return [int(one) for one in text.split()]
