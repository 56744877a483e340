from typing import Any

LONGEST: int
PIECE_ROWS: int

def bytes_step(*args: Any) -> bool: ...
def network(*args: Any) -> bool: ...
