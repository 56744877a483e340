"""Operands: what sparse and dense arguments become before a kernel sees them, and where results go."""
