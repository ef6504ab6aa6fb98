"""`coba-rl bench`: races between solvers, strategies and trainers, as ratios with spread."""
