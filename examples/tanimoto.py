"""Nearest molecules and near-duplicates by their fingerprints (Tanimoto similarity, which is Jaccard's).

If RDKit is installed, it computes the fingerprints of some small molecules; else they are random, with as few ones as real fingerprints.
"""

from __future__ import annotations

import importlib.util

import numpy as np

import bitsparse as bs

SMILES = [
    "CCO",
    "CCCO",
    "CCCCO",
    "c1ccccc1",
    "Cc1ccccc1",
    "CCc1ccccc1",
    "CC(=O)O",
    "CC(=O)OC",
    "CC(=O)Oc1ccccc1C(=O)O",
    "CN1C=NC2=C1C(=O)N(C)C(=O)N2C",
]


def fingerprints() -> tuple[bs.BitTensor, str]:
    """Return fingerprints as rows of single bits, and their origin."""
    if importlib.util.find_spec("rdkit") is not None:
        from rdkit import Chem
        from rdkit.Chem import rdFingerprintGenerator

        morgan = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
        return bs.from_rdkit([morgan.GetFingerprint(Chem.MolFromSmiles(one)) for one in SMILES]), "RDKit"
    rng = np.random.default_rng(0)
    families = rng.random((50, 2048)) < 0.02
    bits = families[rng.integers(0, 50, 1000)] ^ (rng.random((1000, 2048)) < 0.004)
    return bs.pack_bits(bits, 1), "made"


def main() -> dict[float, int]:
    """Print nearest neighbours and similar pairs; return the number of pairs by threshold."""
    rows, source = fingerprints()
    print(f"{rows.shape[0]} fingerprints of {rows.shape[1]} bits, {source}")
    distances, indices = bs.nearest(rows, rows, k=2, metric="jaccard")
    print("the nearest other of the first rows:", indices[:5, 1].tolist(), "at", np.round(distances[:5, 1], 3).tolist())
    counts = {}
    for threshold in (0.8, 0.5, 0.3):
        i, _, _ = bs.pairs(rows, threshold=threshold, limit=1_000_000)
        counts[threshold] = int(i.size)
        print(f"pairs with a similarity of {threshold} and more: {i.size}")
    return counts


if __name__ == "__main__":
    main()
