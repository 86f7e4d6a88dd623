from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.conformance import StoreConformance


class TestMemoryStore(StoreConformance):
    def open(self, folder, clock):
        return MemoryStore(folder.name, clock=clock)


def test_a_store_without_a_name_is_nobody_elses():
    one, two = MemoryStore(), MemoryStore()
    assert one._data is not two._data
