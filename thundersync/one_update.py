"""One update of recorded trajectories, synchronous and streamed, at the size of a real policy.

    python -m thundersync.one_update policy=smollm2|FOLDER [recorded=smollm2_pypi|FILE.jsonl.gz]
        [releases=reward] [permutations=2] [KEY=VALUE ...]

math.md section 6, on trajectories of real tasks with the verdicts that they got, arriving as they
did: the same weights, one AdamW step each, by the synchronous schedule, by each of `releases`, and
for the control by synchronous updates with rows permuted and re-chunked. Gradients must agree
within 3 x the control, weights after the step within 5 x its own. What is compared lies on disk, so
that the peak of memory is the learner's own: it is shown beside what harness.footprint expects. Any
KEY=VALUE of harness.run holds (learner.gradient_checkpointing=true, schedule.chunk_tokens=1024).
The recording that comes along is of SmolLM2-135M-Instruct (thundersync/recordings).
"""

from __future__ import annotations

import gc
import gzip
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from environments.sandbox.ownership import folder_prefix
from harness import composition, entry
from harness.cluster.worker import load
from harness.config import Config
from harness.footprint import footprint
from harness.learner.precision import weights_dtype
from harness.learner.torch_learner import TorchLearner
from harness.packing import pack
from harness.parity import GAP_FACTOR, GRADIENT_FACTOR, pack_permuted
from harness.parts import learner_options, learner_threads
from harness.peak import Peak
from harness.policy.load import load_for_training, resolve
from harness.policy.size import policy_size
from harness.protocols import Group, Schedule, StepStats, Trajectory, UsageError
from harness.trajectory_lines import decode
from harness.validation import validate
from thundersync.check import SYNC
from thundersync.recorded import InlineLearner, Pack, RecordedBatch, play

_KEYS = ("policy", "recorded", "releases", "permutations")
_RELEASES = ("group", "reward", "submit")
Say = Callable[[str], None]


def recording(name: str) -> list[Trajectory]:
    """The trajectories of a file, or of one that comes along. Raises UsageError."""
    path = Path(name)
    if not path.suffix:
        path = Path(str(resources.files("thundersync.recordings"))) / f"{name}.jsonl.gz"
    if not path.is_file():
        raise UsageError(f"recorded={name}: no such recording; take smollm2_pypi, or a .jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [decode(json.loads(line)) for line in file]


def groups_of(trajectories: list[Trajectory]) -> list[Group]:
    """Raises UsageError where no group has mixed rewards: nothing would be checked."""
    found: dict[int, Group] = {}
    for t in sorted(trajectories, key=lambda t: (t.group, t.index)):
        found.setdefault(t.group, Group(t.group, t.task_id, t.difficulty)).trajectories.append(t)
    groups = list(found.values())
    sizes = {len(g.trajectories) for g in groups}
    if len(sizes) > 1:
        raise UsageError("recorded: its groups are not of one size")
    if all(len({t.reward for t in g.trajectories}) == 1 for g in groups):
        raise UsageError("recorded: no group has mixed rewards; there is no update to compare")
    return groups


class _Kept(InlineLearner):
    """Writes each update's direction and weights to disk instead of keeping them."""

    def __init__(self, service: TorchLearner, folder: Path) -> None:
        super().__init__(service)
        self._folder = folder

    async def step(self, normaliser: float) -> StepStats:
        direction = self.service.update_direction(normaliser)
        save_file(_numbered(direction), self._folder / "direction.safetensors")
        del direction
        self.stats.append(self.service.step(normaliser))
        save_file(_numbered(self.service.parameters), self._folder / "weights.safetensors")
        return self.stats[-1]


def _numbered(tensors: Any) -> dict[str, torch.Tensor]:
    return {f"{n:05d}": t.detach().contiguous() for n, t in enumerate(tensors)}


def relative(got: Path, reference: Path, start: Path | None = None) -> float:
    """‖got - reference‖ / ‖reference - start‖ over files of numbered tensors, in float64. Raises
    ValueError where the reference is where it started: that checks nothing."""
    apart, length = [], []
    for ours, theirs, zero in _triples(got, reference, start):
        apart.append(float(torch.linalg.vector_norm(ours - theirs)) ** 2)
        length.append(float(torch.linalg.vector_norm(theirs - zero)) ** 2)
    if math.fsum(length) == 0.0:
        raise ValueError("the reference update is zero: nothing to compare")
    return math.sqrt(math.fsum(apart) / math.fsum(length))


def _triples(
    got: Path, reference: Path, start: Path | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    with safe_open(got, "pt") as ours, safe_open(reference, "pt") as theirs:
        for name in ours.keys():  # noqa: SIM118  # no mapping
            one, two = ours.get_tensor(name).double(), theirs.get_tensor(name).double()
            zero = torch.zeros_like(two)
            if start is not None:
                with safe_open(start, "pt") as origin:
                    zero = origin.get_tensor(name).double()
            yield one, two, zero


class OneUpdate:
    """Plays the same batch, from the same weights, as often as is asked."""

    def __init__(self, config: Config, policy: Path, groups: list[Group], folder: Path) -> None:
        self._config, self._policy, self._folder = config, policy, folder
        self._groups = groups
        self._arrival = sorted(
            (t for g in groups for t in g.trajectories), key=lambda t: t.reward_s
        )
        self._model: Any = None
        self.peaks: list[dict[str, Any]] = []

    def play(self, name: str, schedule: str, release: str, packing: Pack = pack) -> Path:
        """A folder with the update's direction and the weights after it."""
        out = self._folder / name
        out.mkdir()
        config, began_s = self._config, time.monotonic()
        config.schedule.release = release
        gc.collect()
        with Peak() as peak:
            options = learner_options(config, self._policy, out)
            if self._model is None:
                self._model = load_for_training(
                    self._policy, weights_dtype(config.learner.dtype), options.pop("adapters")
                )
                start = [p for p in self._model.parameters() if p.requires_grad]
                save_file(_numbered(start), self._folder / "start.safetensors")
            threads = learner_threads(config)
            learner = TorchLearner(**options, threads=threads, model=self._model)
            batch = RecordedBatch(self._groups, self._arrival, burst=2, reward_delay=1)
            made: Schedule = load(schedule)(config)
            kept = play(made, learner, config, [batch], packing, _Kept(learner, out))
        stats = kept.stats[0]
        self.peaks.append(
            {
                "play": name,
                "seconds": round(time.monotonic() - began_s, 1),
                "peak_bytes": peak.bytes,
                "ledger_buffers_peak": stats.ledger_buffers_peak,
                "ledger_bytes_peak": stats.ledger_bytes_peak,
                "gradient_norm": stats.gradient_norm,
            }
        )
        self._rewind(learner)
        return out

    def _rewind(self, learner: TorchLearner) -> None:
        with safe_open(self._folder / "start.safetensors", "pt") as file, torch.no_grad():
            for n, parameter in enumerate(learner.parameters):
                parameter.copy_(file.get_tensor(f"{n:05d}"))

    def errors(self, got: Path, reference: Path) -> tuple[float, float]:
        """(relative gradient error, parameter gap after one step)."""
        direction, weights = "direction.safetensors", "weights.safetensors"
        return (
            relative(got / direction, reference / direction),
            relative(got / weights, reference / weights, self._folder / "start.safetensors"),
        )


def compare(
    config: Config,
    policy: Path,
    groups: list[Group],
    releases: list[str],
    permutations: int,
    say: Say,
) -> dict[str, Any]:
    """Every play, and what came of it; the closing line's value."""
    with tempfile.TemporaryDirectory(prefix=folder_prefix("update")) as scratch:
        update = OneUpdate(config, policy, groups, Path(scratch))
        reference = update.play("sync", SYNC, "batch")
        say(_told(update.peaks[-1]))
        control = control_gap = 0.0
        for seed in range(permutations):
            permuted = update.play(
                f"control-{seed}", SYNC, "batch", partial(pack_permuted, seed=seed)
            )
            error, gap = update.errors(permuted, reference)
            control, control_gap = max(control, error), max(control_gap, gap)
            say(f"{_told(update.peaks[-1])}; error {error:.1e}, gap {gap:.1e}")
        rows = []
        for release in releases:
            streamed = update.play(release, "thundersync.stream:Stream", release)
            error, gap = update.errors(streamed, reference)
            ok = error <= GRADIENT_FACTOR * control and gap <= GAP_FACTOR * control_gap
            rows.append(
                {
                    "release": release,
                    "gradient_relative_error": error, "control_relative_error": control,
                    "parameter_gap": gap, "control_parameter_gap": control_gap,
                    "ok": ok and control > 0.0 and control_gap > 0.0,
                }
            )  # fmt: skip
            say(f"{_told(update.peaks[-1])}; error {error:.1e}, gap {gap:.1e}")
        return {"rows": rows, "plays": update.peaks}


def _told(play: dict[str, Any]) -> str:
    return f"{play['play']}: {play['seconds']:.0f} s, peak {play['peak_bytes'] / 1e9:.2f} GB"


def update_from_command_line() -> None:
    """Prints what was found; exits 1 where it does not hold."""
    own = [a for a in sys.argv[1:] if a.partition("=")[0] in _KEYS]
    given = {
        "recorded": "smollm2_pypi",
        "releases": "reward",
        "permutations": "2",
    } | entry.settings(own, _KEYS, ("policy",), "python -m thundersync.one_update policy=smollm2")
    releases = given["releases"].split(",")
    for release in releases:
        if release not in _RELEASES:
            raise UsageError(f"releases={release}: take {', '.join(_RELEASES)}")
    if not given["permutations"].isdecimal() or int(given["permutations"]) < 1:
        raise UsageError(f"permutations={given['permutations']}: take a number of at least 1")
    trajectories = recording(given["recorded"])
    groups = groups_of(trajectories)
    policy = resolve(given["policy"])
    config = composition.compose(
        [
            "env.dataset=pypi", "agent=oracle", f"rollout.group_size={len(groups[0].trajectories)}",
            f"rollout.groups_per_batch={len(groups)}",
            f"rollout.max_context_tokens={max(len(t.tokens_T) for t in trajectories)}",
            *(a for a in sys.argv[1:] if a not in own),
        ]
    )  # fmt: skip
    validate(config)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    tokens = sum(len(t.tokens_T) for t in trajectories)
    say(f"{given['policy']}, {config.learner.dtype}: {len(groups)} groups, {tokens} tokens")
    expected = footprint(config, policy_size(policy))
    say(f"expected at most {expected.learner_bytes() / 1e9:.2f} GB in the streaming update")
    found = compare(config, policy, groups, releases, int(given["permutations"]), say)
    entry.closing_line(
        {
            "policy": given["policy"], "recorded": given["recorded"], "tokens": tokens,
            "dtype": config.learner.dtype, "expected_bytes": expected.learner_bytes(),
            "expected": expected.learner | {"ledger": expected.ledger}, **found,
            "ok": all(row["ok"] for row in found["rows"]),
        }
    )  # fmt: skip
    if not all(row["ok"] for row in found["rows"]):
        raise SystemExit(1)


def main() -> int:
    return entry.guarded(update_from_command_line, __doc__)


if __name__ == "__main__":
    sys.exit(main())
