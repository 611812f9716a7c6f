"""Gates a commit against itself, for real, again and again, and keeps what was measured: ``gates.json``.

    python -m zerobench.suites.meta.gate.record_gates 20

A minute to start with, and half a minute for a round. Nothing else should run meanwhile.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from zerobench.suites.meta.gate import real_gate

#: A list of gates; a gate is the list of its rounds, a round the multiples of base and head, by case.
RECORDED = Path(__file__).with_name("gates.json")


def record(number: int) -> None:
    """Run gates until the rounds of so many are recorded; each that has ended is, whatever becomes of the next."""
    gates = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else []
    with tempfile.TemporaryDirectory() as directory:
        tree = real_gate.cloned(Path(directory, "tree"))
        while len(gates) < number:
            done = real_gate.run_gate(tree, "--time-against", "HEAD", "--json")
            if done.returncode not in (0, 1):
                sys.exit(done.stderr)
            value = json.loads(done.stdout)
            gates.append([_short(each) for each in value["times"]["rounds"]])
            _write(gates)
            said = ", ".join(f"{each['verdict']} {each['ratio']:.3f}" for each in value["times"]["timed"])
            print(f"{value['outcome']}, {len(gates[-1])} rounds: {said}", flush=True)


def _short(of_round: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        side: {f"stage {json.loads(case)[1].get('stage', 0)}": round(each, 4) for case, each in multiples.items()}
        for side, multiples in of_round.items()
    }


def _write(gates: list[list[Any]]) -> None:
    """A round to a line."""
    text = ",\n".join("[" + ",\n ".join(json.dumps(each) for each in rounds) + "]" for rounds in gates)
    written = RECORDED.with_suffix(".new")
    written.write_text(f"[\n{text}\n]\n", encoding="utf-8")
    written.replace(RECORDED)


if __name__ == "__main__":
    record(int(sys.argv[1]))
