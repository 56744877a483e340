def launch(entry: int, config: int, function: int, arguments: int) -> int: ...
def once(entry: int, function: int, blocks: int, threads: int, shared: int, stream: int, params: int) -> int: ...

class Quick:
    operand: int

    def __init__(
        self,
        entry: int,
        config: int,
        config_bytes: int,
        stream_at: int,
        function: int,
        params: int,
        params_bytes: int,
        out_at: int,
    ) -> None: ...
    def launch(self, stream: int, operand: int, out: int) -> int: ...
