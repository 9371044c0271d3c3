"""Floor 6's checking: `validate` measures one call, `check_launch` every attention launch under validation."""

from .launch import check_launch as check_launch
from .report import Report as Report
from .report import validate as validate
