"""The rows of docs/calibration.md: python experiments/results/sbc/table.py"""

import json
from pathlib import Path

for path in sorted(Path(__file__).parent.glob("*.json")):
    found = json.loads(path.read_text())
    rows = found["quantities"]
    shares = [sorted(100 * row[f"coverage_{level}"] for row in rows) for level in (50, 90)]
    spans = [f"{values[0]:.1f} to {values[-1]:.1f} %" for values in shares]
    off = (
        ", ".join(f"{row['quantity']} ({row['how']}, {row['coverage_90']:.1%})" for row in rows if row["off"]) or "none"
    )
    print(f"| {found['model']} | {' | '.join(spans)} | {found['failed']} | {off} |")
