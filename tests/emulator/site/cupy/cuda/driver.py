"""The names of ``cupy.cuda.driver`` that callers look for."""


class CUDADriverError(RuntimeError):
    pass


def get_build_version() -> int:
    return 13000
