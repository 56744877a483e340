"""The tables and figures of TC-GNN (ATC'23)."""
