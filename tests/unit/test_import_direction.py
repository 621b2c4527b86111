"""Who may import whom: `sim` never `policies` (but for two named files), a policy only what policies may see."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAY_IMPORT_POLICIES = {"sim/build.py", "sim/cli/policies.py"}
POLICY_MAY_SEE = {"sim.interfaces", "sim.views", "sim.decisions", "sim.batch", "sim.errors"}
MEMORY_MAY_SEE = {*POLICY_MAY_SEE, "sim.kv"}


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports, at module level or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} if node.module != "sim" else {f"sim.{alias.name}" for alias in node.names}
    return found


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_sim_imports_policies_only_where_it_may() -> None:
    offenders = {
        str(path.relative_to(ROOT))
        for path in files("sim")
        if any(m.split(".")[0] == "policies" for m in imports(path))
    }
    assert offenders <= MAY_IMPORT_POLICIES


def test_a_policy_imports_only_what_policies_may_see() -> None:
    for path in files("policies"):
        memory = path.parent.name in ("block_allocator", "eviction")
        allowed = MEMORY_MAY_SEE if memory else POLICY_MAY_SEE
        for module in imports(path):
            if module.split(".")[0] in ("sim", "simpy"):
                seen = ".".join(module.split(".")[:2])
                assert seen in allowed, f"{path.relative_to(ROOT)} imports {module}"
