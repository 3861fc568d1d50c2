"""``relax plugins``: what is installed, why something is not usable, and how to make and check one of your own."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relax_core.cli.table import print_columns

if TYPE_CHECKING:
    from relax_core.component import Component
    from relax_core.discovery import PluginRecord

app = typer.Typer(no_args_is_help=True, help="Show installed plugins and their components; make and check your own.")

JSON_SCHEMA_VERSION = 1


class Format(StrEnum):
    """How a listing is written."""

    text = "text"
    json = "json"


@app.command("list")
def list_plugins(
    format: Annotated[Format, typer.Option(help="`json` is stable and complete.")] = Format.text,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if a plugin that is not disabled is not ok.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also load times and tracebacks.")] = False,
) -> None:
    """List every installed plugin with its status; never fails because of one of them."""
    from relax_core.registry import registry

    plugins = registry().plugins
    if format is Format.json:
        _print_json(plugins)
    else:
        _print_table(plugins, verbose)
    unusable = [plugin.name for plugin in plugins if plugin.status not in ("ok", "disabled")]
    if strict and unusable:
        typer.echo(f"relax: not usable: {', '.join(unusable)}", err=True)
        raise typer.Exit(1)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the distribution, as `relax plugins list` prints it.")],
) -> None:
    """Show a plugin: requirements, components with their configuration keys, and its traceback if it is broken."""
    from relax_core.hooks import section
    from relax_core.registry import registry

    plugin = registry().plugin(name)
    print(f"{plugin.name} {plugin.version}  {plugin.status}")
    if plugin.detail:
        print(plugin.detail)
    for line in plugin.requirements:
        print(f"requires {line}")
    for kind, components in plugin.components.items():
        for component in components:
            print(f"\n{section(kind)} {component.name}  {component.summary}")
            _print_keys(component)
    if plugin.traceback:
        print(f"\n{plugin.traceback}", end="")


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the distribution, such as `relax-myalgo`.")],
    kind: Annotated[str, typer.Option(help="`algorithm`, `reward`, `dataset`, `engine`, ...")],
    dir: Annotated[Path, typer.Option(help="Where its folder is made.")] = Path(),
) -> None:
    """Write a plugin with one component that works, its settings, its tests and a readme."""
    from relax_core.scaffold.project import create_plugin

    files = create_plugin(name, kind, dir)
    for file in files:
        print(file)
    print(f"\nnext: edit {files[0]}")
    project = dir / name if dir.is_absolute() else f"./{dir / name}"
    for command in (f'pip install -e "{project}[test]"', f"pytest {project}", f"relax plugins check {name}"):
        print(f"      {command}")


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="Name of the distribution, as `relax plugins list` prints it.")],
    level: Annotated[
        str, typer.Option(help="`import`: what it registers. `unit`: also the contract suites. `device`: on a GPU.")
    ] = "unit",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.component.key=value.", metavar="KEY=VALUE")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Every rule on a line of its own.")] = False,
) -> None:
    """Check what an installed plugin promises; exits with 1 if a check fails, 3 if the plugin is not usable."""
    from relax_core.cli.checks import print_findings
    from relax_core.registry import registry
    from relax_core.testing.check import check_plugin

    plugin = registry().plugin(name)
    if level != "import" and sys.stderr.isatty():
        typer.echo("running the contract suites, which may take minutes", err=True)
    findings = check_plugin(plugin, level, overrides or [])
    print_findings(findings, verbose)
    if any(finding.outcome == "failed" for finding in findings):
        raise typer.Exit(1)


def _print_table(plugins: "list[PluginRecord]", verbose: bool) -> None:
    rows = [["plugin", "version", "components", "status", "detail"]]
    for plugin in plugins:
        count = sum(len(components) for components in plugin.components.values())
        rows.append([plugin.name, plugin.version, str(count), plugin.status, plugin.detail])
    if verbose:
        for row, time in zip(rows, ["load ms", *(f"{plugin.load_ms:.1f}" for plugin in plugins)], strict=True):
            row.insert(3, time)
    print_columns(rows)
    for plugin in plugins:
        if verbose and plugin.traceback:
            print(f"\n{plugin.name}\n{plugin.traceback}", end="")


def _print_json(plugins: "list[PluginRecord]") -> None:
    import json

    from relax_core._version import __version__

    listed = [
        {
            "name": plugin.name,
            "version": plugin.version,
            "status": plugin.status,
            "detail": plugin.detail,
            "components": {kind: [component.name for component in of] for kind, of in plugin.components.items()},
            "load_ms": round(plugin.load_ms, 3),
            "traceback": plugin.traceback or None,
        }
        for plugin in plugins
    ]
    print(json.dumps({"schema": JSON_SCHEMA_VERSION, "core": __version__, "plugins": listed}, indent=2))


def _print_keys(component: "Component") -> None:
    """Prints the keys of a component's section: name, type, default and description."""
    from inspect import formatannotation

    from relax_core.api.errors import PluginError
    from relax_core.registry import load_target

    try:
        fields = load_target(component.config).model_fields
    except PluginError as error:
        print(f"  {error}")
        return
    print_columns(
        [
            [f"  {key}", formatannotation(field.annotation), _default(field), field.description or ""]
            for key, field in fields.items()
        ]
    )


def _default(field: Any) -> str:
    return "required" if field.is_required() else f"= {field.get_default(call_default_factory=True)!r}"
