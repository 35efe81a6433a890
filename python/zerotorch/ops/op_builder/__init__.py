"""`deepspeed.ops.op_builder`: what is built in, by the names of DeepSpeed's extensions.

Nothing is ever compiled: the engine has an operation or it has not. Everything is local.
"""

from typing import ClassVar, NoReturn

from zerotorch.errors import NotBuiltError

from ..._modules import attach

__deepspeed__ = True


class OpBuilder:
    """Says whether the engine has an operation."""

    NAME: ClassVar[str] = ""
    BUILT_IN: ClassVar[bool] = False

    def is_compatible(self, verbose: bool = False) -> bool:
        """Whether the operation can be used."""
        return self.BUILT_IN

    def absolute_name(self) -> str:
        return f"zerotorch.ops.{self.NAME}"

    def load(self, verbose: bool = True) -> NoReturn:
        """Raises NotBuiltError: there is no extension, also for what the engine has."""
        raise NotBuiltError(
            f"{self.NAME} is part of the engine and no extension that could be loaded"
            if self.BUILT_IN
            else f"{self.NAME} is not built"
        )


class NotImplementedBuilder(OpBuilder):
    NAME = "deepspeed_not_implemented"


def _builder(name: str, built_in: bool = False) -> type[OpBuilder]:
    return type("Builder", (OpBuilder,), {"NAME": name, "BUILT_IN": built_in})


CPUAdagradBuilder = _builder("cpu_adagrad", built_in=True)
CPUAdamBuilder = _builder("cpu_adam", built_in=True)
CPULionBuilder = _builder("cpu_lion", built_in=True)
FusedAdamBuilder = _builder("fused_adam", built_in=True)
FusedLambBuilder = _builder("fused_lamb", built_in=True)
FusedLionBuilder = _builder("fused_lion", built_in=True)

AsyncIOBuilder = _builder("async_io")
CCLCommBuilder = _builder("deepspeed_ccl_comm")
DeepCompileBuilder = _builder("dc")
EvoformerAttnBuilder = _builder("evoformer_attn")
FPQuantizerBuilder = _builder("fp_quantizer")
GDSBuilder = _builder("gds")
InferenceBuilder = _builder("transformer_inference")
InferenceCoreBuilder = _builder("inference_core_ops")
InferenceCutlassBuilder = _builder("cutlass_ops")
PinMemoryBuilder = _builder("pin_memory")
QuantizerBuilder = _builder("quantizer")
RaggedOpsBuilder = _builder("ragged_device_ops")
RaggedUtilsBuilder = _builder("ragged_ops")
RandomLTDBuilder = _builder("random_ltd")
ShareMemCommBuilder = _builder("deepspeed_shm_comm")
SparseAttnBuilder = _builder("sparse_attn")
SpatialInferenceBuilder = _builder("spatial_inference")
StochasticTransformerBuilder = _builder("stochastic_transformer")
TransformerBuilder = _builder("transformer")
UtilsBuilder = _builder("utils")

ALL_OPS = {builder.NAME: builder() for builder in OpBuilder.__subclasses__() if builder is not NotImplementedBuilder}

__compatible_ops__ = {builder.NAME: builder().is_compatible() for builder in OpBuilder.__subclasses__()}

CUDAOpBuilder = OpBuilder

__getattr__, __dir__ = attach(__name__)
