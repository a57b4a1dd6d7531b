"""Flower's SuperExec, which starts ServerApps; run as a module with Flower's arguments.

Flower's own version puts the token with which a ServerApp acts for its run on the command line,
which every user of the machine can read. This one writes it to the ServerApp's standard input.
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
    """An executor that starts ServerApps only, and ends them with this process."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start a ServerApp in a process of its own; a task of another type fails with a reason."""
        if spec.task_type is not TaskType.SERVER_APP:
            return LaunchResult.failed(f"expected a server app, got '{spec.task_type}'")
        process = subprocess.Popen(  # noqa: S603  (our own list, and no shell)
            command(spec),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # The ServerApp sends its log to the SuperLink.
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
        """Forget processes that have ended."""
        self._started = [process for process in self._started if process.poll() is None]


def command(spec: ExecutionSpec) -> list[str]:
    """Return the command line of a ServerApp, which contains no secret."""
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
    """Run Flower's SuperExec with `PrivateExecutor` in place of its own executor."""
    assert hasattr(run_superexec, "get_executor"), "in the declared versions of Flower"
    setattr(run_superexec, "get_executor", lambda *_, **__: PrivateExecutor())  # noqa: B010
    flower_superexec()


if __name__ == "__main__":
    main()
