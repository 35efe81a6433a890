"""LAMB under DeepSpeed's name."""

from .fused_lamb import FusedLamb

__all__ = ["FusedLamb"]
