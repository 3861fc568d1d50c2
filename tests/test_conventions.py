"""Rules of the house that no linter knows, looked up in the syntax trees of the packages' own code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "relax_core"
PLUGINS = tuple(path for path in sorted((ROOT / "plugins").glob("*/relax_*")) if (path / "__init__.py").is_file())
ROOMS = "trainers engines transports weight_syncs rewards datasets roles objectives weights models"
COMPONENTS = tuple(CORE / name for name in ROOMS.split())
DEVICES = ("cpu", "cuda", "mps", "npu", "xpu")
MEGATRON = "plugins/relax_megatron/relax_megatron/"

CUDA_ONLY = {f"{MEGATRON}cpu.py", f"{MEGATRON}rank.py"}
"""Megatron-Core asks for CUDA by name; these stand between it and the device of the context."""

OWN_PIPES = {f"{MEGATRON}processes.py", "relax_core/engines/process/protocol.py"}
"""Pickled calls over a pipe that only a process and the children it has started can write to."""


def trees(*folders: Path) -> Iterator[tuple[str, ast.Module]]:
    """Place and syntax tree of every Python file below some folders."""
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def code(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, without docstrings."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not is_docstring(child):
            yield from code(child)


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every module that is imported, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""


def found_imports(folders: tuple[Path, ...], *forbidden: str) -> list[str]:
    """Places where one of the modules, or something below it, is imported."""
    return [
        f"{place}:{line} imports {module}"
        for place, tree in trees(*folders)
        for line, module in imports(tree)
        if any(module == name or module.startswith(f"{name}.") for name in forbidden)
    ]


def hard_coded_devices(tree: ast.Module) -> list[int]:
    """Lines that name a device.

    Asking what a device is (``device.type == "cpu"``) chooses none. A constant of the module with a docstring under it
    may name one: it says what waits or is stored there.
    """
    explained = {
        id(node)
        for statement, following in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(statement, ast.Assign) and is_docstring(following)
        for node in ast.walk(statement)
    }
    asked = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and any(isinstance(part, ast.Attribute) and part.attr == "type" for part in (node.left, *node.comparators))
        for part in (node.left, *node.comparators)
    }
    lines = []
    for node in code(tree):
        named = isinstance(node, ast.Constant) and str(node.value).partition(":")[0] in DEVICES
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in DEVICES[1:]
        if (named or called) and id(node) not in explained | asked:
            lines.append(node.lineno)  # type: ignore[attr-defined]
    return lines


def test_components_take_their_device_from_the_context() -> None:
    found = [
        f"{place}:{line}"
        for place, tree in trees(*COMPONENTS, *PLUGINS)
        if place not in CUDA_ONLY
        for line in hard_coded_devices(tree)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("x.to('cuda')", [1]),
        ("x.cuda()", [1]),
        ("torch.zeros(1, device='cpu')", [1]),
        ("load(path, device='cuda:0')", [1]),
        ("HOST = 'cpu'", [1]),
        ("HOST = 'cpu'\n'''Where released tensors wait.'''", []),
        ("if device.type == 'cpu':\n    pass", []),
        ("'''Runs on cuda.'''\nx.to(context.device).cpu()", []),
    ],
)
def test_a_device_that_code_chooses_itself_is_seen(source: str, lines: list[int]) -> None:
    assert hard_coded_devices(ast.parse(source)) == lines


def test_no_code_asks_for_the_name_of_an_algorithm() -> None:
    found = [
        f"{place}:{node.lineno} {ast.unparse(node)}"
        for place, tree in trees(CORE, *PLUGINS)
        for node in code(tree)
        if (
            isinstance(node, ast.Compare)
            and any(isinstance(operator, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for operator in node.ops)
            and any(ast.unparse(part) in ("algorithm", "algorithm.name") for part in (node.left, *node.comparators))
        )
        or (isinstance(node, ast.Match) and "algorithm" in ast.unparse(node.subject))
    ]
    assert found == []


def test_nothing_that_is_read_can_run_code() -> None:
    pickled = found_imports((CORE, *PLUGINS), "pickle", "cloudpickle", "dill", "marshal", "shelve")
    assert [found for found in pickled if found.partition(":")[0] not in OWN_PIPES] == []
    unsafe = ("eval", "exec", "torch.load", "yaml.unsafe_load", "yaml.full_load")
    found = [
        f"{place}:{node.lineno} {ast.unparse(node.func)}"
        for place, tree in trees(CORE, *PLUGINS)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in unsafe
    ]
    assert found == []


def test_no_role_and_no_algorithm_knows_the_mode() -> None:
    words = {"mode", "colocate", "hybrid", "fully_async"}
    found = [
        f"{place}:{getattr(node, 'lineno', 0)}"
        for place, tree in trees(CORE / "roles", ROOT / "plugins" / "relax_algos" / "relax_algos")
        for node in code(tree)
        if not isinstance(node, ast.keyword)  # pydantic's validators have a mode of their own
        and words & {str(getattr(node, field, None)) for field in ("attr", "id", "arg", "value", "name")}
    ]
    assert found == []


def test_imports_go_one_way() -> None:
    """Runtimes know roles, roles know contracts; core knows no plugin; contracts and plans know no component."""
    rooms = tuple(CORE / name for name in ("api", "config", "dataflow", "objectives", "roles"))
    assert found_imports(rooms, "relax_core.runtimes", "relax_core.cli", "ray") == []
    pure = tuple(CORE / name for name in ("api", "config", "dataflow"))
    assert (
        found_imports(pure, "relax_core.roles", "relax_core.trainers", "relax_core.engines", "relax_core.models") == []
    )
    assert found_imports((CORE,), *(plugin.name for plugin in PLUGINS)) == []
