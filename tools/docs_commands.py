"""The page of all commands, made from the commands themselves when the site is built."""

import inspect
from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from sottovoce.cli.main import parser

PAGE = "reference/command-line.md"
INTRODUCTION = """# Command line

Every command, as `--help` shows it. All that print a result take `--json`. A user's mistake is one
line and exit code 2; `--debug`, anywhere on the line, adds the traceback. Defaults are in brackets.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    files.append(File.generated(config, PAGE, content=page()))
    return files


def page() -> str:
    """Return all commands in Markdown."""
    sections = [_section(name, command) for name, command in _commands(_root(), "sottovoce")]
    return "\n".join([INTRODUCTION, *sections])


def _root() -> Any:
    return parser()


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands in the order of `--help`."""
    for part, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {part}")
        else:
            yield f"{name} {part}", command


def _section(name: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    usage = " ".join([name, *(_usage(one) for one in arguments), "[OPTIONS]"])
    lines = [f"## {name}", "", f"    {usage}", "", inspect.cleandoc(command.help or ""), ""]
    rows = [(_usage(one), _help(one)) for one in arguments]
    rows += [(_names(one), _help(one)) for one in options]
    if rows:
        lines += [
            "| given | meaning |",
            "|---|---|",
            *(f"| `{left}` | {right} |" for left, right in rows),
            "",
        ]
    return "\n".join(lines)


def _usage(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper().rstrip("_"))
    dots = "..." if argument.nargs == -1 else ""
    return f"{name}{dots}" if argument.required else f"[{name}{dots}]"


def _names(option: Any) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {_kind(option.type)}"


def _kind(kind: Any) -> str:
    choices = getattr(kind, "choices", None)
    return f"{{{', '.join(map(str, choices))}}}" if choices else str(kind.name).upper()


def _help(parameter: Any) -> str:
    text = " ".join((parameter.help or "").split())
    default = parameter.default
    shown = default is not None and default is not False and not callable(default)
    if shown and default != () and "[" not in text:
        text = f"{text} [{getattr(default, 'value', default)}]"
    return text.replace("|", r"\|")
