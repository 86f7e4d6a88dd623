import pytest

pytest.register_assert_rewrite(
    "holdfast.testing.appends",
    "holdfast.testing.blobs",
    "holdfast.testing.conformance",
    "holdfast.testing.feed",
    "holdfast.testing.tokens",
    "holdfast.testing.upkeep",
)
