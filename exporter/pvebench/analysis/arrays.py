"""numpy, imported at its first use, and the array types of the analysis.

numpy takes a tenth of a second and 16 MiB. Most commands import the analysis but never judge, so
only the first array operation imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:

    class _Numpy:
        """Attributes of numpy, kept after their first use."""

        def __getattr__(self, name: str) -> object:
            import numpy  # noqa: PLC0415, ICN001 # see above

            value = getattr(numpy, name)
            setattr(self, name, value)
            return value

    np = _Numpy()

__all__ = ["Flags", "Matrix", "Places", "Words", "np"]

Matrix: TypeAlias = "NDArray[np.float64]"
Places: TypeAlias = "NDArray[np.int_]"
Flags: TypeAlias = "NDArray[np.bool_]"
Words: TypeAlias = "NDArray[np.str_]"
