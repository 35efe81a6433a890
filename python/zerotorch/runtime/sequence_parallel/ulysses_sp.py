"""Sequence parallelism, which is not built."""

from ..._not_built import not_built_class, not_built_function

_FEATURE = "sequence parallelism"

UlyssesSPAttentionHF = not_built_class("UlyssesSPAttentionHF", _FEATURE)
UlyssesSPDataLoaderAdapter = not_built_class("UlyssesSPDataLoaderAdapter", _FEATURE)
SequenceTiledCompute = not_built_class("SequenceTiledCompute", _FEATURE)
TiledMLP = not_built_class("TiledMLP", _FEATURE)
TiledFusedLogitsLoss = not_built_class("TiledFusedLogitsLoss", _FEATURE)
sequence_tiled_compute = not_built_function("sequence_tiled_compute", _FEATURE)
