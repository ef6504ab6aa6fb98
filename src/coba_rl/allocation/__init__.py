"""The heart: how many rollouts each prompt gets. NumPy only."""

from coba_rl.allocation.allocation import Allocation
from coba_rl.allocation.allocator import BudgetAllocator
from coba_rl.allocation.strategies import STRATEGIES, GainStrategy, Strategy

__all__ = ["STRATEGIES", "Allocation", "BudgetAllocator", "GainStrategy", "Strategy"]
