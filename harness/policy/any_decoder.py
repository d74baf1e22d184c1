"""Serving by transformers' own classes, for policies that harness.policy.decoder does not compute.

The same slots, chunks and verbs. One call of the model advances every decoding slot and feeds new
prompts, as one row of tokens; keys and values lie in slots here (`_Step.attend`). That a model can
be served so is tried when it is loaded, against its own forward pass: nothing else would notice an
attention that takes more than the interface hands on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file

from harness.policy.attention import Rule, attend, install, outside
from harness.policy.decoder import Chunk
from harness.policy.head import Head
from harness.policy.load import load_for_training
from harness.protocols import UsageError

_TOLERANCE = 1e-4  # of the logits' norm; rounding is below 1e-5, a wrong mask or position near 1
_TRIED = 12  # tokens


class AnyDecoder:
    """Weights, and `slots` caches of `max_context` tokens each, in float32. Raises UsageError for a
    model that cannot be served."""

    def __init__(self, folder: str | Path, *, slots: int, max_context: int) -> None:
        self._model: Any = load_for_training(folder, torch.float32).eval().requires_grad_(False)
        self.config = SimpleNamespace(vocab_size=self._model.config.get_text_config().vocab_size)
        self.slots, self.max_context = slots, max_context
        self._columns = max_context + 1  # one more: idle slots write there and disturb nothing
        self._caches: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        with torch.inference_mode():
            self._try(folder)

    # -- weights -----------------------------------------------------------------------------------

    def read(self, path: str | Path) -> dict[str, torch.Tensor]:
        """The weights of a published safetensors file. Raises UsageError where there is none."""
        if not Path(path).is_file():
            raise UsageError(f"weights={path}: no such safetensors file")
        return load_file(path)

    def take(self, weights: dict[str, torch.Tensor]) -> None:
        """Weights under the names that the model's parameters have; a tied one is listed once."""
        own = dict(self._model.named_parameters())
        if weights.keys() != own.keys():
            names = ", ".join(sorted(weights.keys() ^ own.keys())[:3])
            raise UsageError(f"weights: not of this policy, which differs in {names}")
        for name, weight in weights.items():
            own[name].copy_(weight)

    # -- the step ----------------------------------------------------------------------------------

    def forward(
        self,
        tokens_N: torch.Tensor,
        positions_N: torch.Tensor,
        slots_N: torch.Tensor,
        *,
        decoding: int,
        used: int,
        chunks: Sequence[Chunk],
    ) -> torch.Tensor:
        """Last hidden states (decoding + chunks, hidden), as harness.policy.decoder.Decoder's, but
        that the final norm is in them."""
        hidden = self._hidden(tokens_N, positions_N, slots_N, decoding, used, chunks)
        ends = itertools.accumulate((chunk.length for chunk in chunks), initial=decoding - 1)
        return hidden[[*range(decoding), *itertools.islice(ends, 1, None)]]

    def _hidden(
        self,
        tokens_N: torch.Tensor,
        positions_N: torch.Tensor,
        slots_N: torch.Tensor,
        decoding: int,
        used: int,
        chunks: Sequence[Chunk],
    ) -> torch.Tensor:
        """Of every row (N, hidden)."""
        # What an idle row is given as its position decides nothing, but must be one.
        places_N = positions_N.clamp(max=self.max_context - 1)
        step = _Step(self._cache, positions_N, slots_N, decoding, used, chunks)
        return self._model.base_model(
            input_ids=tokens_N[None],
            position_ids=places_N[None],
            use_cache=False,
            side_by_side=step,
        ).last_hidden_state[0]

    def logits(self, hidden_M: torch.Tensor) -> torch.Tensor:
        """Logits (M, vocab) of hidden states from `forward`."""
        return self._head(hidden_M)

    def swap(self, a: int, b: int, columns: int) -> None:
        """Exchange the first `columns` keys and values of two slots."""
        for cache in self._caches.values():
            for part in cache:
                kept = part[a, :, :columns].clone()
                part[a, :, :columns] = part[b, :, :columns]
                part[b, :, :columns] = kept

    def _cache(
        self, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's (slots, kv heads, columns, D), made when it is first asked for."""
        if layer not in self._caches:
            keys, values = (
                x.new_zeros(self.slots, x.shape[0], self._columns, x.shape[2]) for x in (key, value)
            )
            self._caches[layer] = keys, values
        return self._caches[layer]

    # -- can it be served? -------------------------------------------------------------------------

    def _try(self, folder: str | Path) -> None:
        """A prompt in two chunks, then token by token, against the model's own forward pass."""
        model, kind = self._model, self._model.config.model_type
        count = max(6, min(max(_TRIED, _window(model.config) + 4), self.max_context))
        draw = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, self.config.vocab_size, (count,), generator=draw)
        expected = model(input_ids=tokens[None], use_cache=False).logits[0]
        try:
            install(model)
            self._head = Head(model)
            got = self._served(tokens)
            wrong = float((got - expected).norm() / expected.norm())
        except (TypeError, AttributeError, KeyError, IndexError, RuntimeError, ValueError) as error:
            raise UsageError(_refused(folder, kind, str(error).splitlines()[0][:80])) from error
        if not wrong <= _TOLERANCE:
            raise UsageError(
                _refused(folder, kind, f"its logits would be {wrong:.1g} of their size wrong")
            )
        self._caches.clear()

    def _served(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits at each of `tokens`, in the last slot, the other slots idle."""
        slot, count = self.slots - 1, len(tokens)
        read = count - 3
        found = []
        for start, end in ((0, read // 2), (read // 2, read)):
            found.append(
                self._hidden(
                    tokens[start:end], torch.arange(start, end), torch.full((end - start,), slot),
                    0, 0, [Chunk(slot, start, end - start)],
                )
            )  # fmt: skip
        for place in range(read, count):
            idle = torch.zeros(self.slots, dtype=torch.long)
            fed, at = idle.clone(), idle + self.max_context
            fed[slot], at[slot] = tokens[place], place
            every = torch.arange(self.slots)
            hidden = self._hidden(fed, at, every, self.slots, place + 1, [])
            found.append(hidden[slot : slot + 1])
        return self.logits(torch.cat(found))


class _Step:
    """Who may look at whom in one step: a session's tokens at its own slot's keys."""

    def __init__(
        self,
        cache: Any,
        positions_N: torch.Tensor,
        slots_N: torch.Tensor,
        decoding: int,
        used: int,
        chunks: Sequence[Chunk],
    ) -> None:
        self._cache, self._positions, self._slots = cache, positions_N, slots_N
        self._decoding, self._used, self._chunks = decoding, used, chunks
        self._hidden: dict[tuple[int | None, int | None], torch.Tensor] = {}  # by chunk and window

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule
    ) -> torch.Tensor:
        keys, values = self._cache(layer, key, value)
        keys[self._slots, :, self._positions] = key.transpose(0, 1)
        values[self._slots, :, self._positions] = value.transpose(0, 1)
        parts = []
        count = self._decoding
        if count:
            mixed = attend(
                query[:, :count].transpose(0, 1)[:, :, None],
                keys[:count, :, : self._used],
                values[:count, :, : self._used],
                rule,
                self._outside(None, rule.window, self._positions[:count], self._used)[
                    :, None, None
                ],
            )
            parts.append(mixed[:, :, 0].transpose(0, 1))
        row = count
        for chunk in self._chunks:
            end, stop = chunk.start + chunk.length, row + chunk.length
            hidden = None
            if chunk.start or rule.window is not None:
                places = self._positions[row:stop]
                hidden = self._outside(row, rule.window, places, end)
            mixed = attend(
                query[None, :, row:stop],
                keys[None, chunk.slot, :, :end],
                values[None, chunk.slot, :, :end],
                rule,
                hidden,
            )
            parts.append(mixed[0])
            row = stop
        return torch.cat(parts, 1)

    def _outside(
        self, row: int | None, window: int | None, places: torch.Tensor, used: int
    ) -> torch.Tensor:
        """Made once a step for all layers of one kind. An idle row sees all: what it computes is
        thrown away, but must not be NaN."""
        if (row, window) not in self._hidden:
            columns = torch.arange(used, device=places.device)
            hidden = outside(places, columns, window)
            if row is None:
                hidden &= (places < used)[:, None]
            self._hidden[row, window] = hidden
        return self._hidden[row, window]


def _window(config: Any) -> int:
    """The largest of the windows that a configuration speaks of."""
    text = config.get_text_config()
    names = ("sliding_window", "window_size", "attention_chunk_size")
    found = [getattr(text, name, None) for name in names]
    return max((w for w in found if isinstance(w, int)), default=0)


def _refused(folder: str | Path, kind: str, why: str) -> str:
    return (
        f"policy={folder}: model_type={kind} cannot be served by engine=torch ({why}); take a "
        "decoder whose attention goes through transformers' attention interface, such as llama, "
        "qwen3, mistral, gemma3 or gpt_neox"
    )
