"""How the documentation is built: python -m sphinx -W --keep-going -b html docs OUT, without a network."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
# What is described is the installed package: "python -m sphinx" would take the source tree, which need not be built.
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != HERE.parent]

project = "bitsparse"
author = "bitsparse developers"
project_copyright = author
version = release = version_of("bitsparse")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.viewcode", "numpydoc"]
exclude_patterns = ["**/.ipynb_checkpoints"]

# One page for each public name, made of its docstring in a folder that is removed again when the site is built.
autosummary_generate = True
templates_path = ["templates"]
autodoc_typehints = "none"  # types stand in the docstrings
autodoc_member_order = "groupwise"
numpydoc_show_class_members = False

# Cells of the pages run at every build, and an error in one stops it. Pages for a framework run where that framework is installed.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True
FRAMEWORK_PAGES = {"torch": ["guide/training.md"], "torch_geometric": ["start/pytorch.md"], "jax": ["start/jax.md"]}
absent = [name for name in FRAMEWORK_PAGES if find_spec(name) is None]
nb_execution_excludepatterns = [page for name in absent for page in FRAMEWORK_PAGES[name]]
# Docstrings are read from the imported package.
exclude_patterns += ["api/torch.rst"] * ("torch" in absent)
exclude_patterns += ["api/jax.rst"] * any(find_spec(name) is None for name in ("jax", "flax", "equinox"))
suppress_warnings = ["myst-nb.lexer", "toc.excluded"] if absent else []
os.environ["PYTHONPATH"] = str(HERE)  # cells import pictures.py

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

html_theme = "pydata_sphinx_theme"
html_title = f"bitsparse {release}"
html_theme_options = {"show_prev_next": False, "navbar_align": "left", "secondary_sidebar_items": ["page-toc"]}
html_copy_source = False
html_show_sourcelink = False


def remove_made_pages(app: Sphinx, error: Exception | None) -> None:
    """The tree is left as it was."""
    shutil.rmtree(HERE / "api" / "made", ignore_errors=True)


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("build-finished", remove_made_pages)
