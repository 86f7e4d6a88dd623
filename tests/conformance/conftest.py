import pytest

pytest.register_assert_rewrite("holdfast.testing.appends", "holdfast.testing.conformance")
