"""A small, deterministic GRPO on the embedded task, for comparing strategies in minutes.

`run_study` runs a study and gives its `StudyResults`; `coba_rl.report.write_study` makes tables and a page of them.

Example:
    >>> study = load_study("main", seeds=[7])
    >>> len(study.runs()) == len(study.settings) * len(study.arms)
    True
"""

from coba_rl.lab.comparison import StudyResults
from coba_rl.lab.runner import run_study
from coba_rl.lab.study import Study, load_study, shipped_studies

__all__ = ["Study", "StudyResults", "load_study", "run_study", "shipped_studies"]
