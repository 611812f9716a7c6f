"""zerobench: the benchmark and conformance suite for ZeRO, and the reference engine's public API."""

from engine import (
    ConfigError,
    Engine,
    GatheredParameters,
    initialize,
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
)

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "Engine",
    "GatheredParameters",
    "initialize",
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
]
