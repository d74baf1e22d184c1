"""Makes the tiny policy: a tokenizer and a Qwen3 of a million parameters, by imitation.

    python -m harness.policy.warm_start demos=FILE out=DIR [steps=700] [target=0.3] ...

Demonstrations come from `python -m environments.swebench.mini.experts`. Every so many steps the
solve rate is measured by the harness's own rollouts, in real sandboxes, on generated tasks that are
in no other split; the first checkpoint that reaches `target` is kept and confirmed once on the
held-out split. `out` becomes a Hugging Face folder with WARM_START.json, which says how it was
made.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from harness.config import Config
from harness.evaluation import Evaluation, evaluate
from harness.protocols import Environment, Task, Trajectory, UsageError


@dataclass(frozen=True)
class WarmStart:
    """The command line's keys; the rest of the settings are ImitationSettings' and ModelShape's."""

    demos: str = ""
    out: str = ""
    steps: int = 700
    target: float = 0.3
    seed: int = 0
    threads: int = 2
    first_check: int = 250
    check_every: int = 50
    validation_tasks: int = 96
    validation_seed: int = 77
    parallel: int = 4  # sandboxes
    tokenizer_demos: int = 3000


@dataclass
class Measured:
    """A solve rate, in all and by difficulty."""

    evaluation: Evaluation
    by_difficulty: dict[str, tuple[int, int]] = field(default_factory=dict)  # solved, judged

    def record(self) -> dict[str, Any]:
        return asdict(self.evaluation) | {
            "by_difficulty": {k: list(v) for k, v in sorted(self.by_difficulty.items())}
        }


def validation_tasks(environment: Any, count: int, seed: int) -> list[Task]:
    """Tasks of the demonstrations' kind from another seed: packages that no demonstration shows."""
    from environments.swebench.mini.dataset import generate_instances

    stream = generate_instances("demo", seed)
    return [environment.task(instance) for _, instance in itertools.islice(stream, count)]


async def solve_rate(folder: Path, settings: WarmStart, split: str) -> Measured:
    """Solve rate of a policy folder at temperature 1, on `validation` or on a bundled split."""
    from environments.swebench.config import SweBenchConfig
    from harness.parts import make_rollouts, open_parts

    config = Config(env=SweBenchConfig())
    config.policy.path = str(folder.resolve())  # a relative path could be a name, such as tiny
    config.sandbox.kind = "bubblewrap"
    config.sandbox.max_parallel = settings.parallel
    counts: dict[str, list[float]] = defaultdict(list)

    def record(trajectory: Trajectory) -> None:
        counts[trajectory.difficulty].append(float(trajectory.reward == 1.0))

    async with open_parts(config, f"warm-start-{folder.name}", None, say=say) as parts:
        environment: Environment = parts.environment
        if split == "validation":
            tasks: Sequence[Task] = validation_tasks(
                environment, settings.validation_tasks, settings.validation_seed
            )
        else:
            tasks = environment.tasks(split)
        rollouts = make_rollouts(config, parts, temperature=1.0)
        evaluation = await evaluate(rollouts, parts.clock, tasks, 1, settings.seed, split, record)
    return Measured(evaluation, {k: (int(sum(v)), len(v)) for k, v in counts.items()})


def run(settings: WarmStart, command: str) -> dict[str, Any]:
    """Train, choose, confirm; returns the content of WARM_START.json."""
    import torch

    from harness.policy import imitation
    from harness.policy.tokenizer import ChatTokens, train_tokenizer

    torch.set_num_threads(settings.threads)
    out, demos = Path(settings.out), Path(settings.demos)
    out.mkdir(parents=True, exist_ok=True)
    shape = imitation.ModelShape()
    options = imitation.ImitationSettings(steps=settings.steps, seed=settings.seed)
    demonstrations = imitation.read_demonstrations(demos)
    # The headers' role names are part of the text, so that each becomes a single token.
    texts = (
        "\n".join(["user", d.first_message, *(f"assistant\n{c}\nuser\n{o}" for c, o in d.turns)])
        for d in demonstrations[: settings.tokenizer_demos]
    )
    train_tokenizer(texts, out, vocab_size=shape.vocab_size, context=shape.context)
    chat = ChatTokens(out)
    data = [imitation.tokenise(d, chat) for d in demonstrations]
    lengths = sorted(len(tokens) for tokens, _ in data)
    say(f"{len(data)} demonstrations, median {lengths[len(lengths) // 2]}, longest {lengths[-1]}")
    model = imitation.new_model(shape, settings.seed)
    model.config.eos_token_id = model.generation_config.eos_token_id = chat.stop_tokens[0]
    curve: list[dict[str, Any]] = []
    began, losses, kept = time.monotonic(), [], None
    for step, loss in imitation.imitate(model, data, options):
        losses.append(loss)
        last = step == settings.steps
        due = step >= settings.first_check and step % settings.check_every == 0
        if step % 25 == 0 or due or last:
            say(f"step {step}: action loss {losses[-1]:.3f}, {time.monotonic() - began:.0f} s")
        if due or last:
            model.save_pretrained(out)
            measured = asyncio.run(solve_rate(out, settings, "validation"))
            point = {"step": step, "action_loss": sum(losses[-25:]) / len(losses[-25:])}
            curve.append(point | {"validation": measured.record()})
            say(f"step {step}: validation {describe(measured.evaluation)}")
            if (measured.evaluation.solve_rate or 0.0) >= settings.target:
                kept = step
                break
    confirmed = asyncio.run(solve_rate(out, settings, "eval"))
    say(f"held-out split: {describe(confirmed.evaluation)}")
    record = {
        "command": command,
        "demonstrations": {
            "file_sha256": hashlib.sha256(demos.read_bytes()).hexdigest(),
            "count": len(data),
            "tokens": {"median": lengths[len(lengths) // 2], "longest": lengths[-1]},
        },
        "parameters": sum(p.numel() for p in model.parameters()),
        "shape": asdict(shape),
        "settings": asdict(options) | {"target": settings.target},
        "steps_trained": len(losses),
        "reached_target": kept is not None,
        "curve": curve,
        "eval": confirmed.record(),
        "versions": versions(),
    }
    text = json.dumps(record, indent=2) + "\n"
    (out / "WARM_START.json").write_text(text, encoding="utf-8")
    return record


def describe(evaluation: Evaluation) -> str:
    if evaluation.solve_rate is None:
        return f"no sample was judged ({evaluation.lost} lost)"
    error = evaluation.standard_error or 0.0
    return f"{evaluation.solve_rate:.3f} ± {error:.3f} on {evaluation.tasks} tasks"


def versions() -> dict[str, str]:
    import importlib.metadata

    return {name: importlib.metadata.version(name) for name in ("torch", "transformers")}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str]) -> WarmStart:
    """key=value arguments. Raises UsageError for an unknown key, a bad value or a missing path."""
    known = {f.name: f for f in fields(WarmStart)}
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in known:
            raise UsageError(f"{argument}: unknown argument; there is {'=, '.join(known)}=")
        kind = type(known[key].default)
        try:
            values[key] = kind(value)
        except ValueError as error:
            raise UsageError(f"{key}={value}: not a {kind.__name__}") from error
    settings = WarmStart(**values)
    if not settings.out or not Path(settings.demos).is_file():
        raise UsageError(
            f"demos={settings.demos} out={settings.out}: give an existing file and a folder; "
            "`python -m environments.swebench.mini.experts out=FILE` makes the demonstrations"
        )
    return settings


def main(arguments: Sequence[str]) -> int:
    try:
        settings = parse(arguments)
    except UsageError as error:
        say(str(error))
        return 2
    record = run(settings, "python -m harness.policy.warm_start " + " ".join(arguments))
    print(json.dumps({key: record[key] for key in ("steps_trained", "reached_target", "eval")}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
