"""The recipe "leave one domain out" has every method with a common model that it could have."""

from __future__ import annotations

from fedloom.core.lookup import make, names
from fedloom.experiments.recipe import recipe
from fedloom.testing.small_world import place


def test_all_methods_with_a_common_model_are_in_it() -> None:
    """Except those that need images, or a dual encoder: the recipe has frozen features."""
    able = set()
    for name in names():
        method = make(name)
        worker = place(method)
        if method.traits.world == "dual" or "images" in method.traits.needs:
            continue
        if method.common(method.init(worker), worker) is not None:
            able.add(name)
    specs = [row["method"] for row in recipe("leave-one-domain-out").rows.values()]
    listed = {spec for spec in specs if "+" not in spec}
    assert len(able) >= 36 and able <= listed
    assert listed - able == {"fedbn"}, "a common model without BatchNorm, as there"
