"""Flower's executor, by which server apps start; started as a module, with Flower's arguments.

Flower's own puts the token with which a server app speaks for its run on the command line, which
every user of the machine can read. This one writes it into the server app's standard input.
"""

import subprocess
import sys

from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor

from sottovoce.deployment.machines.guard import die_with_parent

SERVER_APP = "sottovoce.flower.server_process"


class PrivateExecutor(SubprocessExecutor):
    """Starts server apps, and nothing else, so that they end with this process."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start a server app; tasks of other kinds have no place at a link."""
        if spec.task_type is not TaskType.SERVER_APP:
            return LaunchResult.failed(f"a link runs server apps, not '{spec.task_type}'")
        process = subprocess.Popen(  # noqa: S603  (our own list, and no shell)
            command(spec),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # the server app sends its log to the link
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent(),
        )
        assert process.stdin is not None
        try:
            with process.stdin as pipe:
                pipe.write(f"{spec.token}\n".encode())
        except BrokenPipeError:
            return LaunchResult.failed("the server app ended at once")
        self._started.append(process)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Let go of those that have ended."""
        self._started = [process for process in self._started if process.poll() is None]


def command(spec: ExecutionSpec) -> list[str]:
    """The command line of a server app, which tells no secret."""
    trust = (
        ["--insecure"]
        if spec.root_certificates_path is None
        else ["--root-certificates", spec.root_certificates_path]
    )
    return [
        *(sys.executable, "-P", "-m", SERVER_APP),
        *("--runtime-api-address", spec.runtime_api_address),
        *trust,
        *("--parent-pid", str(spec.parent_pid)),
    ]


def main() -> None:
    """Flower's executor with ours in place of its way to start a process."""
    assert hasattr(run_superexec, "get_executor")  # of the Flower that is declared
    setattr(run_superexec, "get_executor", lambda *_, **__: PrivateExecutor())  # noqa: B010
    flower_superexec()


if __name__ == "__main__":
    main()
