"""Where `deploy run` and `deploy ask` run specs and ask questions: at a link, or a collector."""

import contextlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sottovoce.cli.ask_terms import AskTerms
from sottovoce.cli.deploy_relay import is_operator

if TYPE_CHECKING:
    from sottovoce.analytics.question import Question
    from sottovoce.deployment.machines.federation import Federation
    from sottovoce.deployment.machines.submitted_runs import RunsKeeper
    from sottovoce.deployment.operators.folders import CollectorFolder
    from sottovoce.runs.folder import RunFolder
    from sottovoce.runs.spec import RunSpec


class RunsServer(Protocol):
    """Who runs specs and asks questions: its folder, and what it refuses."""

    folder: Path

    @property
    def runs_folder(self) -> Path:
        """The default folder of runs."""

    @property
    def asked(self) -> str:
        """Whom a question asks, as text."""

    def terms(self, given: AskTerms) -> dict[str, Any]:
        """Return the terms of a question; raise ParameterError if they are not for this server."""

    def check_question(self, question: "Question", terms: dict[str, Any]) -> None:
        """Refuse a question before anyone is asked."""

    def check_clients(self, spec: "RunSpec") -> None:
        """Refuse a spec with clients that this server does not have."""

    def check_spec(self, spec: "RunSpec", run_folder: "RunFolder", *, resume: bool) -> None:
        """Build the run here, to find errors that the server would find later."""

    def running(self) -> contextlib.AbstractContextManager["RunsKeeper"]:
        """Open the server's runs; raise DeploymentError if it does not run."""


class LinkServer:
    """A federation, whose link runs specs and asks questions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def _federation(self) -> "Federation":
        from sottovoce.deployment.machines.federation import Federation

        return Federation.read(self.folder)

    @property
    def runs_folder(self) -> Path:
        return self._federation.runs_folder

    @property
    def asked(self) -> str:
        return f"{len(self._federation.sites)} sites"

    def terms(self, given: AskTerms) -> dict[str, Any]:
        return given.of_federation()

    def check_question(self, question: "Question", terms: dict[str, Any]) -> None:
        if terms.get("channel") is not None:
            from sottovoce.deployment.masked_questions import check_countable

            check_countable(question)

    def check_clients(self, spec: "RunSpec") -> None:
        from sottovoce.core.errors import ConfigError
        from sottovoce.core.printable_text import client_name

        data, sites = spec.data, self._federation.sites
        numbered = [client_name(number) for number in range(data.clients or 0)]
        clients = list(data.sites) or list(data.names) or numbered
        unknown = [name for name in clients if name not in sites]
        if unknown:
            raise ConfigError(
                f"the spec's client '{unknown[0]}' is not a site of the federation; name its sites "
                f"in 'data.names' (or 'data.sites'): {', '.join(sites)}"
            )
        if ":" in data.dataset and not data.sites:
            raise ConfigError(
                f"the dataset '{data.dataset}' has an argument after the colon, such as a file, "
                "and sites read no data set that a run describes so; state in 'data.sites' how "
                "many records each site has, or name a data set without a colon that all sites have"
            )

    def check_spec(self, spec: "RunSpec", run_folder: "RunFolder", *, resume: bool) -> None:
        from sottovoce.flower.remote import check_buildable

        check_buildable(spec, run_folder, resume=resume)

    @contextlib.contextmanager
    def running(self) -> Iterator["RunsKeeper"]:
        from sottovoce.flower.runs import open_link_runs

        with open_link_runs(self._federation) as runs:
            yield runs


class CollectorServer:
    """A collector, which runs specs and asks questions through its relay."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def _collector(self) -> "CollectorFolder":
        from sottovoce.deployment.operators.folders import CollectorFolder

        return CollectorFolder.read(self.folder)

    @property
    def runs_folder(self) -> Path:
        return self._collector.runs_folder

    @property
    def asked(self) -> str:
        return f"{len(self._collector.clients())} clients"

    def terms(self, given: AskTerms) -> dict[str, Any]:
        return given.of_collector()

    def check_question(self, question: "Question", terms: dict[str, Any]) -> None:
        from sottovoce.deployment.operators.relay_asking import terms_of

        names = ("channel", "minimum_clients", "colluders", "people_per_client")
        terms_of(self._collector, question, **{name: terms[name] for name in names})

    def check_clients(self, spec: "RunSpec") -> None:
        """Do nothing: `check_spec` compares the clients of the run with those admitted."""

    def check_spec(self, spec: "RunSpec", run_folder: "RunFolder", *, resume: bool) -> None:
        from sottovoce.deployment.operators.relay_runs import check_runnable

        check_runnable(spec, self._collector, run_folder, resume=resume)

    @contextlib.contextmanager
    def running(self) -> Iterator["RunsKeeper"]:
        from sottovoce.deployment.operators.collector_runs import open_collector_runs

        with open_collector_runs(self._collector) as runs:
            yield runs


def server_of(folder: Path) -> RunsServer:
    """Return the server of a folder, which is not read yet."""
    return CollectorServer(folder) if is_operator(folder) else LinkServer(folder)
