"""Makes `import benchmarks.…` work without the root in sys.path, where `kernels` must not be."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"

package = ModuleType("benchmarks")
package.__path__ = [str(FOLDER)]
sys.modules["benchmarks"] = package
sys.path.append(str(FOLDER / "peers"))  # peers import each other by bare names
