"""What a reader must know of the machine to judge a number; nothing that names it."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True)
class Machine:
    """Facts at one moment; the load counts everything that runs, us included."""

    date: str
    cores: int
    processor: str
    threads: int
    python: str
    torch: str
    numpy: str
    scipy: str
    load: float

    @classmethod
    def now(cls) -> Machine:
        import numpy
        import scipy
        import torch

        torch.set_num_threads(1)
        return cls(
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            cores=os.cpu_count() or 1,
            processor=f"{_model()} ({platform.machine()})",
            threads=torch.get_num_threads(),
            python=platform.python_version(),
            torch=str(torch.__version__),
            numpy=numpy.__version__,
            scipy=scipy.__version__,
            load=round(os.getloadavg()[0], 2),
        )

    def sentence(self, later: Machine) -> str:
        return (
            f"{self.date}, {self.cores} cores {self.processor}, threads = {self.threads}, Python {self.python}, "
            f"torch {self.torch}, numpy {self.numpy}, scipy {self.scipy}; load average {self.load} before and "
            f"{later.load} after (other processes share the cores: compare CPU times and ratios, not wall times)."
        )


def _model() -> str:
    """The processor's model where the system tells it."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except FileNotFoundError:
        names = []
    return names[0] if names else platform.processor() or "processor"
