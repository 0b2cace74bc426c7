"""Imports the user's own modules from the bundle that was sent with a function."""

from __future__ import annotations

import json
import os
import sys
import zlib
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType
from typing import Any, Dict, List, Optional, Sequence


class BundleImporter:
    """Finds and loads the modules of one bundle. Python asks this importer before all other importers.

    ``__file__`` of a module is the path of its original file. So tracebacks show this path. On nodes that have the original file, the
    module finds the files beside it.
    """

    def __init__(self, bundle: bytes) -> None:
        self._modules: Dict[str, List[Any]] = json.loads(zlib.decompress(bundle).decode("utf-8", "surrogatepass"))

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Any = None) -> Optional[ModuleSpec]:
        found = self._modules.get(name)
        if found is None:
            return None
        kind, place, text = found
        if kind == "namespace":
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = list(place)
            return spec
        folders = [os.path.dirname(place)] if kind == "package" else None
        return spec_from_file_location(name, place, loader=BundleLoader(name, place, text), submodule_search_locations=folders)


class BundleLoader(SourceFileLoader):
    """Loads one module from the source in the bundle. ``importlib.resources`` finds the files beside the original file, if the node has
    them."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)

    def get_source(self, fullname: str) -> str:
        """Returns the source of the module. On nodes without the file of the module, tracebacks show lines of this source."""
        return self._text


def use_bundle(bundle: bytes) -> None:
    """Makes this process import the modules of the bundle. A process uses only one bundle, because the agent gives calls with other bundles
    to other slots."""
    if not any(isinstance(importer, BundleImporter) for importer in sys.meta_path):
        sys.meta_path.insert(0, BundleImporter(bundle))
