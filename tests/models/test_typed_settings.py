"""Settings are typed: mypy finds a typing error in ``self.settings.NAME`` on a method's page."""

from __future__ import annotations

import ast
from pathlib import Path

MODELS = Path(__file__).parents[2] / "models"
#: bases whose subclasses declare settings of their own kind
OPEN = {"WholeNetwork"}


def test_a_class_that_declares_settings_says_of_which_type_they_are() -> None:
    seen = 0
    for path in MODELS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef) or node.name in OPEN:
                continue
            if any(isinstance(inner, ast.ClassDef) and inner.name == "Settings" for inner in node.body):
                declared = [ast.unparse(inner) for inner in node.body if isinstance(inner, ast.AnnAssign)]
                assert "settings: Settings" in declared, f"{path}: {node.name}"
                seen += 1
    assert seen >= 20
