"""Counts of the house: how long files and functions are, circles of imports, and where existing things are named.

    python tests/support/house_counts.py [CHECKOUT]

It reads the four code folders of a checkout as text, so that it runs on any commit:

    git worktree add ../before 5d27eda && python tests/support/house_counts.py ../before

Where a thing is named (a baseline, a metric, an option of a run) says what adding the next one of its kind would touch.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

FLOORS = ("hierfl", "inference", "models", "experiments")
#: one thing of each kind, by what it is called in both editions
NAMED = {
    "baseline (ditto)": r"ditto",
    "data set (usps)": r"usps",
    "split (shards)": r"\bshards\b",
    "layer (GELU)": r"\bGELU\b",
    "network (projection)": r"\bprojection\b",
    "aggregation rule (GibbsDraw)": r"\bGibbsDraw\b",
    "figure (movement)": r"[\"']movement[\"']",
    "response (weibull)": r"[Ww]eibull",
    "metric (brier)": r"\bbrier\b|Brier",
    "run option (quorum)": r"\bquorum\b",
    "engine": r"\b(Plate)?Engine\b",
}

#: tests of a response's or a level's kind, in the mixed models' room
KINDS = {
    "closed form (.exact)": r"\.exact\b",
    "levels inside (slots)": r"\bslots\b",
    "levels above (.regions)": r"\.regions\b",
}


def sources(root: Path) -> dict[Path, str]:
    """The code of a checkout, committed results left out."""
    paths = [path for floor in FLOORS for path in sorted((root / floor).rglob("*.py"))]
    return {path: path.read_text(encoding="utf-8") for path in paths if "results" not in path.relative_to(root).parts}


def module_of(path: Path, root: Path) -> str:
    """A file's module as it is installed."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    parts = parts if parts[0] == "hierfl" else ["hierfl", *parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, tree: ast.Module, root: Path, known: set[str]) -> set[str]:
    """Modules that a file imports: at its top, in functions, or for types alone."""
    name, imports = module_of(path, root), set()
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names} & known
        if isinstance(node, ast.ImportFrom):
            base = package.split(".")
            base = base[: len(base) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:  # a module of a package, or else a name of a module
                inside = f"{source}.{alias.name}"
                imports |= {inside} if inside in known else {source} & known
    return imports - {name}


def circles(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Groups of modules that import each other, directly or not."""
    reach = {node: set(targets) for node, targets in graph.items()}
    for middle in graph:
        for start in graph:
            if middle in reach[start]:
                reach[start] |= reach[middle]
    seen: set[str] = set()
    for node in sorted(graph):
        group = {node} | {other for other in reach[node] if node in reach.get(other, ())}
        if len(group) > 1 and node not in seen:
            seen |= group
            yield sorted(group)


def functions(tree: ast.Module) -> Iterator[int]:
    """The lengths of all functions, in lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def main(root: Path) -> None:
    """Prints the counts."""
    files = sources(root)
    trees = {path: ast.parse(text) for path, text in files.items()}
    lengths = sorted(len(text.splitlines()) for text in files.values())
    bodies = sorted(length for tree in trees.values() for length in functions(tree))
    print(f"files {len(files)}, lines {sum(lengths)}")
    print(f"lines of a file: median {statistics.median(lengths):g}, longest {lengths[-1]}")
    print(f"files of at most 150 lines: {sum(n <= 150 for n in lengths) / len(lengths):.0%}, above 300: "
          f"{sum(n > 300 for n in lengths)}")  # fmt: skip
    print(f"lines of a function: median {statistics.median(bodies):g}, p90 {bodies[int(0.9 * len(bodies))]}, "
          f"longest {bodies[-1]}")  # fmt: skip
    known = {module_of(path, root) for path in files if path.stem != "__init__"}
    graph = {
        module_of(path, root): imported(path, tree, root, known)
        for path, tree in trees.items()
        if path.stem != "__init__"
    }
    cycles = list(circles(graph))
    print(f"circles of imports: {len(cycles)}")
    for group in cycles:
        print(f"    {', '.join(group)}")
    print("named in how many files, how many lines:")
    for thing, pattern in NAMED.items():
        hits = {path: sum(1 for line in text.splitlines() if re.search(pattern, line)) for path, text in files.items()}
        where = [path.relative_to(root).as_posix() for path, count in hits.items() if count]
        print(f"    {thing}: {len(where)} files, {sum(hits.values())} lines: {', '.join(where)}")
    mixed_models(root, files)


def mixed_models(root: Path, files: Mapping[Path, str]) -> None:
    """Prints the counts of the mixed models' room."""
    room = root / "models" / "mixed_effects"
    own = {path: text for path, text in files.items() if room in path.parents}
    lengths = sorted(len(text.splitlines()) for text in own.values())
    print(f"mixed models: files {len(own)}, lines {sum(lengths)}, longest {lengths[-1]}, above 200: "
          f"{sum(n > 200 for n in lengths)}, in no room: {sum(path.parent == room for path in own)}")  # fmt: skip
    for kind, pattern in KINDS.items():
        hits = [len(re.findall(pattern, text)) for path, text in own.items() if "likelihood" not in path.parts]
        inside = sum(len(re.findall(pattern, text)) for text in own.values()) - sum(hits)
        print(f"    {kind}: {sum(hits)} in {sum(n > 0 for n in hits)} files, and {inside} in the likelihood")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve())
