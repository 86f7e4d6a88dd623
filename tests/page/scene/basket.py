"""An order that starts a parcel, which fails, and calls a payment, which calls a review, which asks."""

from __future__ import annotations

from typing import Any

import holdfast as hf

review, payment, parcel, order = (hf.Graph(name) for name in ("review", "payment", "parcel", "order"))


@review.node
async def look(state: dict[str, Any], ctx: hf.Context) -> Any:
    return {"fine": await ctx.ask("Is this card fine?", options=["yes", "no"])}


reviewed = review.chain(hf.START, "look", hf.END).compile()


@payment.node
async def charge(state: dict[str, Any], ctx: hf.Context) -> Any:
    return {"fine": (await ctx.call(reviewed))["fine"]}


paid = payment.chain(hf.START, "charge", hf.END).compile()


@parcel.node
def pack(state: dict[str, Any]) -> None:
    raise hf.Fatal("the lamp is broken")


packed = parcel.chain(hf.START, "pack", hf.END).compile()


@order.node
async def settle(state: dict[str, Any], ctx: hf.Context) -> Any:
    await ctx.start(packed)
    return await ctx.call(paid)


ordered = order.chain(hf.START, "settle", hf.END).compile()
