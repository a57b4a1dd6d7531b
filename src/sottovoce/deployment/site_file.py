"""A site's own file, site.toml, and the site that it describes."""

import tomllib
from pathlib import Path
from typing import Any

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import (
    AdjacencyMismatchError,
    PolicyError,
    SottovoceError,
    UnknownNameError,
)
from sottovoce.deployment import policy as policies
from sottovoce.deployment.audit_log import LOG_NAME
from sottovoce.deployment.policy import Policy
from sottovoce.deployment.site import Keys, OwnColumn, OwnRecords, Site
from sottovoce.ledger import seal as seals
from sottovoce.ledger.ledger import LEDGER_NAME
from sottovoce.ledger.reader import LedgerReader

SITE_FILE = "site.toml"
_DATA_KEYS = ("dataset", "csv", "classes")
_COLUMN_KEYS, _PLACE_KEYS = ("csv", "column"), ("csv", "latitude", "longitude")
_TABLES = ("name", "policy", "link", "data", "columns", "factories", "app", "longest_seconds")


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
        return _site(table, path)
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


def _site(table: dict[str, Any], path: Path) -> Site:
    for key in table:
        if key not in _TABLES:
            raise UnknownNameError.among("key", key, _TABLES)
    name, limits, data = table.get("name"), table.get("policy"), table.get("data")
    if not isinstance(name, str) or not name:
        raise PolicyError("'name' is missing: the client that this site is")
    if not isinstance(limits, dict):
        raise PolicyError("[policy] is missing; without it nothing is answered")
    factories = table.get("factories", [])
    if not isinstance(factories, list) or not all(isinstance(one, str) for one in factories):
        raise PolicyError(f"'factories' must be a list of 'module:function', got {factories!r}")
    app = table.get("app")
    if app is not None and not isinstance(app, str):
        raise PolicyError(f"'app' must be 'module:attribute', got {app!r}")
    longest = parameter_rules.positive("longest_seconds", table.get("longest_seconds", 3600.0))
    return Site(
        name=name,
        policy=policies.from_table(limits),
        ledger=path.parent / LEDGER_NAME,
        seal=path.parent / seals.SEAL_NAME,
        log=path.parent / LOG_NAME,
        records=None if data is None else _records(data, path.parent),
        columns=_columns(table.get("columns", {}), path.parent),
        factories=tuple(factories),
        app=app,
        longest_seconds=longest,
        keys=_keys(table.get("link"), path.parent),
    )


def _keys(link: object, folder: Path) -> Keys | None:
    """Whatever else [link] says is for the node."""
    names = ("private_key", "root_certificate")
    if not isinstance(link, dict) or not all(isinstance(link.get(name), str) for name in names):
        return None
    return Keys(private_key=folder / link[names[0]], authority=folder / link[names[1]])


def _records(table: object, folder: Path) -> OwnRecords:
    if not isinstance(table, dict):
        raise PolicyError("[data] must be a table")
    for key in table:
        if key not in _DATA_KEYS:
            raise UnknownNameError.among("key of [data]", key, _DATA_KEYS)
    dataset, csv, classes = table.get("dataset"), table.get("csv", {}), table.get("classes")
    if not isinstance(dataset, str) or not dataset:
        raise PolicyError(f"[data] dataset must be a name or a path, got {dataset!r}")
    if dataset.startswith("hf:"):
        # Its classes are numbered as they are found: a site that lacks one would train on others.
        raise PolicyError(
            "[data] dataset: 'hf:' numbers classes as it finds them; use npz: or csv:"
        )
    if not isinstance(csv, dict):
        raise PolicyError(f"[data] csv must be a table, as in a spec, got {csv!r}")
    if classes is not None:
        parameter_rules.integer("[data] classes", classes, low=2, high=2**31)
    kind, colon, text = dataset.partition(":")
    if colon and (folder / text).is_file():  # beside site.toml, as [columns] are
        dataset = f"{kind}:{(folder / text).absolute()}"
    return OwnRecords(dataset=dataset, csv=csv, classes=classes)


def _columns(table: object, folder: Path) -> dict[str, OwnColumn]:
    """[columns.age] csv = "people.csv", column = "age" (a place: latitude and longitude)."""
    if not isinstance(table, dict):
        raise PolicyError("[columns] must be a table of tables")
    return {name: _column(name, given, folder) for name, given in table.items()}


def _column(name: str, given: object, folder: Path) -> OwnColumn:
    where = f"[columns.{name}]"
    if not isinstance(given, dict):
        raise PolicyError(f"{where} must be a table with 'csv' and 'column'")
    keys = _PLACE_KEYS if "latitude" in given or "longitude" in given else _COLUMN_KEYS
    for key in given:
        if key not in keys:
            raise UnknownNameError.among(f"key of {where}", key, keys)
    for key in keys:
        if not isinstance(given.get(key), str) or not given[key]:
            raise PolicyError(f"{where} needs '{key}', some text, got {given.get(key)!r}")
    csv = Path(given["csv"])
    return OwnColumn(csv=folder / csv, columns=tuple(given[key] for key in keys[1:]))
