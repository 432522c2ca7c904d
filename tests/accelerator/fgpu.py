"""Importing this module makes the device type "fgpu" available: `autotune … --load tests.accelerator.fgpu`."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend

from tests.accelerator import copies, devices, streams
from tests.accelerator.device_module import DeviceModule
from tests.accelerator.tensor import DeviceTensor, aten, factory, unwrapped

FACTORIES = (
    *("empty.memory_format", "empty_strided", "zeros", "ones", "full", "arange", "arange.start", "arange.start_step"),
    *("rand", "randn", "randint", "randint.low", "randperm", "eye", "eye.m", "linspace", "scalar_tensor"),
    *("tril_indices", "triu_indices"),
)
"""Operations without a tensor among their arguments."""


def attention(  # noqa: PLR0913, PLR0917 - torch's signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Attention by the algorithm that the CPU would choose, so that results are equal bit for bit."""
    raw = [unwrapped(each) for each in (query, key, value, attn_mask)]
    needs_grad = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    raw[:3] = [each.detach().requires_grad_(needs_grad) for each in raw[:3]]
    choice = torch._fused_sdp_choice(*raw, dropout_p, is_causal, **options)
    if choice != SDPBackend.FLASH_ATTENTION.value:
        plain = aten._scaled_dot_product_attention_math
        return plain(query, key, value, attn_mask, dropout_p, is_causal, **options)[0]
    if options.get("enable_gqa"):
        raise NotImplementedError("fused attention with grouped queries on the fake accelerator")
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -torch.inf)
    fused = aten._scaled_dot_product_flash_attention_for_cpu
    return fused(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=options.get("scale"))[0]


def dropout(given: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """As the CPU does it, with the same random numbers."""
    if not train or p == 0 or not given.numel():
        return given
    if p == 1:
        return given * torch.zeros((), dtype=given.dtype)
    return given * torch.empty_like(given).bernoulli_(1 - p).div_(1 - p)


def _install() -> torch.library.Library:
    torch.utils.rename_privateuse1_backend(streams.NAME)
    torch._register_device_module(streams.NAME, DeviceModule(streams.NAME))
    torch.utils.generate_methods_for_privateuse1_backend()
    library = torch.library.Library("aten", "IMPL")
    for full in FACTORIES:
        name, _, overload = full.partition(".")
        library.impl(full, factory(getattr(getattr(aten, name), overload or "default")), "PrivateUse1")
    library.impl("_copy_from", copies.copy_from, "PrivateUse1")
    library.impl("scaled_dot_product_attention", attention, "AutogradPrivateUse1")
    library.impl("dropout", dropout, "AutogradPrivateUse1")
    return library


library = _install()
"""Kept as long as the process: the registrations end with it."""
__all__ = ["DeviceTensor", "devices", "library"]
