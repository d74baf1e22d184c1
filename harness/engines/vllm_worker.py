"""What vLLM's own processes import: weights from a published file.

Named as `worker_extension_cls`, so that it is there before a model is loaded, wherever vLLM's
worker runs. Weights go through vLLM's weight-transfer API; the transport is a safetensors file with
Hugging Face names, which the model's own `load_weights` maps, stacks and, with several processes,
cuts to this one's part. vLLM's layerwise reloading then processes them again: on a CPU a layer
computes with packed copies, which a plain load would not reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngineFactory,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (  # pyright: ignore[reportMissingImports]
    ParallelLMHead,
)
from vllm.model_executor.model_loader.reload import (  # pyright: ignore[reportMissingImports]
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

from harness.engines.vllm_options import BACKEND


@dataclass
class Connection(WeightTransferInitInfo):
    """There is none: both sides know the folder."""


@dataclass
class PublishedFile(WeightTransferUpdateInfo):
    path: str


class FileTransfer(WeightTransferEngine[Connection, PublishedFile]):
    """A published file as a weight-transfer backend."""

    init_info_cls = Connection
    update_info_cls = PublishedFile

    def init_transfer_engine(self, init_info: Connection) -> None:
        """Nothing to connect."""

    def start_weight_update(self) -> None:
        # Before layers are taken apart: afterwards tied weights are no longer one.
        self._wanted = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: PublishedFile) -> None:
        """Raises ValueError where the file lacks one of the model's weights."""
        loaded = self.model.load_weights(iter(load_file(update_info.path).items()))
        if missing := sorted(self._wanted - loaded):
            raise ValueError(f"weights={update_info.path}: without {', '.join(missing[:3])}")

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu():
            # A head that is tied to the embedding computes with a packed copy of its own, which
            # reloading leaves as it was: the head alone would keep the old weights.
            for layer in self.model.modules():
                if isinstance(layer, ParallelLMHead):
                    layer.quant_method.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        """Nothing is held."""


class Extension:
    """Mixed into vLLM's worker; what matters happens where this module is imported."""


WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)
