from collections.abc import Callable, Sequence

KEY_BYTES: int
KEPT_OPERANDS: int

Node = tuple[bytes, int, tuple[int, int, int], int, int, bytes, bytes, Sequence[tuple[int, int, int]]]

def setup(
    serves: Callable[[bool, bytes, bytes, list[int], list[int], int, int], None], holds: Callable[[int], bool]
) -> dict[str, int]: ...
def end() -> None: ...
def large_pages(address: int, nbytes: int) -> None: ...
def set_driver(launch: int, zero: int, name: int) -> None: ...

class Launches:
    def __init__(
        self,
        digest: bytes,
        device: int,
        stream: int,
        operands: Sequence[int],
        owner: int,
        slots: int,
        nodes: Sequence[Node],
    ) -> None: ...
    def keep(self) -> None: ...
