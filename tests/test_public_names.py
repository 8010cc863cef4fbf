"""The front door: `import parsimax` is light, its names are the promised ones, and they resolve."""

import ast
import pickle
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import torch

import parsimax as px


def run_python(code: str) -> str:
    """Run code in a new interpreter, where nothing has been imported yet."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("parsimax", {"torch"}),
        ("parsimax.attention", {"torch._dynamo", "triton"}),
        ("parsimax.cli.app", {"torch", "matplotlib"}),
        ("parsimax.mappings, parsimax.losses, parsimax.structured", {"numba", "matplotlib"}),
        ("parsimax.losses", {"triton"}),
    ],
)
def test_import_is_light(module: str, heavy: set[str]) -> None:
    assert run_python(f"import sys, {module}; print({heavy!r} & set(sys.modules))") == "set()"


def test_one_list_of_names() -> None:
    tree = ast.parse(Path(px.__file__).read_text(encoding="utf-8"))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )
    typed = {
        alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert (
        set(px._EXPORTS)
        == typed
        == set(px.__all__) - {"__version__"}
        == set(dir(px)) - {"__version__"}
    )


@pytest.mark.parametrize("name", sorted(px.__all__))
def test_every_name_resolves(name: str) -> None:
    assert getattr(px, name) is not None


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="entmux"):
        _ = px.entmux


@pytest.mark.parametrize(
    "imports",
    [
        "import parsimax as px",
        "import parsimax.attention; import parsimax as px",
        "from parsimax.attention import MultiheadAttention; import parsimax as px",
        "import parsimax as px; px.attention; from parsimax.attention import MultiheadAttention",
        "import parsimax as px; import parsimax.nn; import parsimax.attention as a; a.attention",
    ],
)
def test_attention_is_the_function_whatever_is_imported_first(imports: str) -> None:
    assert run_python(f"{imports}; print(type(px.attention).__name__)") == "function"


def test_attention_package_is_reachable_in_every_way() -> None:
    import parsimax.attention as package
    from parsimax import attention
    from parsimax.attention import MultiheadAttention

    assert attention is px.attention
    assert package.MultiheadAttention is MultiheadAttention
    assert isinstance(sys.modules["parsimax.attention"], ModuleType)
    assert isinstance(px.attention, FunctionType)
    assert pickle.loads(pickle.dumps(px.attention)) is px.attention


def test_attention_can_be_traced() -> None:
    q = torch.randn(1, 2, 3, 4)
    compiled = torch.compile(lambda x: px.attention(x, x, x), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(q), px.attention(q, q, q))
