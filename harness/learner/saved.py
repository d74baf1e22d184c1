"""A learner's weights and optimizer state in a checkpoint's folder: safetensors, nothing else.

Where every rank holds all weights rank 0 writes them for all; under fsdp each writes its shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from harness.learner.placement import Placement
from harness.protocols import UsageError

_WEIGHT = "weight/"
_STATE = "optimizer/"  # and then its key, such as exp_avg


def _path(folder: str, placement: Placement) -> Path:
    rank = placement.rank if placement.parallel == "fsdp" else 0
    return Path(folder) / f"learner-{rank}.safetensors"


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of it."""
    to_local = getattr(tensor, "to_local", None)  # a DTensor's, whose module takes long to import
    return tensor if to_local is None else to_local()


def _like(parameter: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """This rank's part as a part of something of the parameter's layout; scalars are whole."""
    if hasattr(parameter, "to_local") and own.dim():
        from torch.distributed.tensor import DTensor

        assert isinstance(parameter, DTensor)
        return DTensor.from_local(
            own, parameter.device_mesh, parameter.placements,
            shape=parameter.shape, stride=parameter.stride(),
        )  # fmt: skip
    return own


def names(model: torch.nn.Module, parameters: Sequence[torch.nn.Parameter]) -> list[str]:
    """Of what is trained, in order; tied parameters have one name."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    return [known[id(parameter)] for parameter in parameters]


def write(
    folder: str,
    placement: Placement,
    named: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Only on the ranks that have to."""
    if placement.rank and placement.parallel != "fsdp":
        return
    found = {f"{_WEIGHT}{name}": parameter.detach() for name, parameter in named.items()}
    for name, parameter in named.items():
        for key, value in optimizer.state[parameter].items():
            found[f"{_STATE}{key}/{name}"] = torch.as_tensor(value)
    save_file(
        {name: _own(value).contiguous().cpu() for name, value in found.items()},
        _path(folder, placement),
    )


def read(
    folder: str,
    placement: Placement,
    named: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Puts back what `write` wrote. Raises UsageError where the policy is another one."""
    path = _path(folder, placement)
    if not path.is_file():
        raise UsageError(f"resume: {path.name} is missing; it was saved with other learner.ranks")
    found = load_file(path)
    shapes = {
        name.removeprefix(_WEIGHT): (value.shape, value.dtype)
        for name, value in found.items()
        if name.startswith(_WEIGHT)
    }
    for name in sorted({*shapes, *named}):
        here = (_own(named[name]).shape, named[name].dtype) if name in named else None
        if shapes.get(name) != here:
            raise UsageError(
                f"resume: checkpoint {path.parent.name} is of another policy: {name} is "
                f"{_told(shapes.get(name))} there and {_told(here)} here; give the policy that it "
                "was trained with"
            )
    with torch.no_grad():
        for name, parameter in named.items():
            _own(parameter).copy_(found.pop(f"{_WEIGHT}{name}"))
    for key, value in found.items():
        kind, _, name = key.removeprefix(_STATE).partition("/")
        parameter = named[name]
        own = value if kind == "step" else value.to(parameter.device)
        optimizer.state[parameter][kind] = _like(parameter, own)


def _told(found: tuple[torch.Size, torch.dtype] | None) -> str:
    return "absent" if found is None else f"{list(found[0])} {found[1]}".replace("torch.", "")
