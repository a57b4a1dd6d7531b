"""A site's own file, site.toml, and the site that it describes."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import AdjacencyMismatchError, PolicyError, SottovoceError
from sottovoce.deployment import policy as policies
from sottovoce.deployment.audit_log import LOG_NAME
from sottovoce.deployment.policy import Policy
from sottovoce.deployment.site import Keys, OwnColumn, OwnRecords, Site
from sottovoce.ledger import seal as seals
from sottovoce.ledger.ledger import LEDGER_NAME
from sottovoce.ledger.reader import LedgerReader
from sottovoce.runs.sections import Section, problem_in

SITE_FILE = "site.toml"
_Text = Annotated[str, Field(min_length=1)]


class LinkTable(Section):
    """How a node reaches the link; what of it is needed is the node's affair."""

    address: str
    root_certificate: _Text | None = None
    private_key: _Text | None = None
    insecure: bool = False


class DataTable(Section):
    """[data]: the site's own records."""

    dataset: _Text
    csv: dict[str, Any] = Field(default_factory=dict)
    classes: Annotated[int, Field(ge=2, le=2**31)] | None = None


class ColumnTable(Section):
    """[columns.age] csv = "people.csv", column = "age" (a place: latitude and longitude)."""

    csv: _Text
    column: _Text | None = None
    latitude: _Text | None = None
    longitude: _Text | None = None


class SiteTable(Section):
    """What site.toml holds."""

    name: _Text
    policy: dict[str, Any]
    link: LinkTable | None = None
    data: DataTable | None = None
    columns: dict[str, ColumnTable] = Field(default_factory=dict)
    factories: list[str] = Field(default_factory=list)
    app: str | None = None
    longest_seconds: float = 3600.0


def read_site(path: Path) -> Site:
    """The site that a file describes; without a policy there is none."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyError(
            f"cannot read the site's file {path}: {error.strerror or error}; without a policy "
            "nothing is answered"
        ) from None
    except (ValueError, RecursionError) as error:  # neither UTF-8 nor TOML, or nested too deep
        raise PolicyError(f"{path} is not valid TOML: {error}") from None
    try:
        return _site(SiteTable.model_validate(table), path.parent)
    except ValidationError as error:
        raise PolicyError(f"{path}: {problem_in(error, SiteTable)}") from None
    except SottovoceError as error:
        raise PolicyError(f"{path}: {error}") from None


def warnings_of(path: Path) -> list[str]:
    """What the owner of a site's file should know before it answers more, by its log and ledger."""
    site = read_site(path)
    if site.audit_log is None:
        return []
    return site.audit_log.warnings(site.ledger, records=site.count_own_records())


def account_problem(site: Site, ledger: LedgerReader) -> str | None:
    """Why nothing could be charged under the site's policy: level and adjacency of the ledger.

    Charges of two kinds do not add up, so that every order would be refused.
    """
    policy = site.policy
    assert isinstance(policy, Policy)  # what a file holds
    try:
        found = {str(event.adjacency) for event, _ in ledger.everything(policy.level)}
        key, ours = "adjacency", str(policy.adjacency)
    except AdjacencyMismatchError:
        found = {str(unit) for unit in Unit if unit is not policy.level}
        key, ours = "level", str(policy.level)
    others = sorted(found - {ours})
    if not others:
        return None
    return (
        f'[policy] {key} is "{ours}", and {site.ledger} has charges under "{others[0]}", which do '
        f'not add up with it: every order would be refused. Set {key} = "{others[0]}" again, or '
        "make a new folder with 'sottovoce deploy join': an account of its own, and what both "
        "spend adds up"
    )


def _site(table: SiteTable, folder: Path) -> Site:
    link, longest = table.link, table.longest_seconds
    keys = None
    if link and link.private_key is not None and link.root_certificate is not None:
        keys = Keys(private_key=folder / link.private_key, authority=folder / link.root_certificate)
    return Site(
        name=table.name,
        policy=policies.from_table(table.policy),
        ledger=folder / LEDGER_NAME,
        seal=folder / seals.SEAL_NAME,
        log=folder / LOG_NAME,
        records=_records(table.data, folder) if table.data else None,
        columns={name: _column(name, one, folder) for name, one in table.columns.items()},
        factories=tuple(table.factories),
        app=table.app,
        longest_seconds=parameter_rules.positive("longest_seconds", longest),
        keys=keys,
    )


def _records(data: DataTable, folder: Path) -> OwnRecords:
    dataset = data.dataset
    if dataset.startswith("hf:"):
        # Its classes are numbered as they are found: a site that lacks one would train on others.
        raise PolicyError(
            "[data] dataset: 'hf:' numbers classes as it finds them; use npz: or csv:"
        )
    kind, colon, text = dataset.partition(":")
    if colon and (folder / text).is_file():  # beside site.toml, as [columns] are
        dataset = f"{kind}:{(folder / text).absolute()}"
    return OwnRecords(dataset=dataset, csv=data.csv, classes=data.classes)


def _column(name: str, given: ColumnTable, folder: Path) -> OwnColumn:
    place = (given.latitude, given.longitude)
    columns = (given.column,) if place == (None, None) else place
    if None in columns or (given.column is not None and columns == place):
        raise PolicyError(
            f"[columns.{name}] needs 'column', or 'latitude' and 'longitude', beside 'csv'"
        )
    return OwnColumn(csv=folder / given.csv, columns=tuple(filter(None, columns)))
